"""One answer as a program may read it, and as the rows of a table."""

from types import MappingProxyType
from typing import Any

from edge.answer import Provenance
from edge.generation import Generation

# Names that leave room for two columns of figures on a terminal of 80.
SHORT = MappingProxyType({Provenance.ACCEPTED: "accepted", Provenance.CLOUD: "cloud", Provenance.LOCAL: "local"})


def answer_report(made: Generation, text: str) -> dict[str, Any]:
    """The JSON report of a finished answer. Rates are per token of the answer; times are milliseconds."""
    statistics, answer = made.statistics, made.answer
    count = len(answer.tokens)
    return {
        "text": text,
        "token_ids": answer.tokens,
        "finish_reason": answer.finish_reason,
        "provenance": [[kind.value, length] for kind, length in answer.provenance_runs],
        "prompt_tokens": answer.prompt_len,
        "completion_tokens": count,
        "cloud_passes": statistics.cloud_passes,
        "tokens_per_pass": _rounded(_per(count, statistics.cloud_passes)),
        "drafted": statistics.drafted,
        "accepted": statistics.accepted,
        "acceptance_by_depth": [round(rate, 4) for rate in statistics.acceptance_by_depth],
        "written_alone": statistics.local_tokens,
        "links_lost": statistics.links_lost,
        "bytes_up_per_token": _rounded(_per(statistics.bytes_up, count)),
        "bytes_down_per_token": _rounded(_per(statistics.bytes_down, count)),
        "ttft_ms": _rounded(statistics.ttft_ms),
        "tokens_per_s": round(statistics.tokens_per_s(count), 3),
        "stage_ms": stage_times(made),
    }


def stage_times(made: Generation) -> dict[str, float | None]:
    """Mean milliseconds: drafting per token; sending, queue, verify, link and commit per window."""
    s = made.statistics
    return {
        "draft": _rounded(_per(1000 * s.draft_s, s.draft_steps)),
        "send": _rounded(_per(1000 * s.send_s, s.windows)),
        "queue": _rounded(_per(1000 * s.queue_s, s.windows)),
        "verify": _rounded(_per(1000 * s.verify_s, s.windows)),
        "link": _rounded(_per(1000 * s.link_s, s.windows)),
        "commit": _rounded(_per(1000 * s.commit_s, s.windows)),
    }


def summary_rows(report: dict[str, Any]) -> dict[str, str]:
    """The report's figures as labels and values for people."""
    tokens = report["completion_tokens"]
    kinds = {kind: sum(length for name, length in report["provenance"] if name == kind) for kind in Provenance}
    accepted, drafted = report["accepted"], report["drafted"]
    depths = " ".join(f"{rate:.0%}" for rate in report["acceptance_by_depth"][:8]) or "–"
    per_pass = report["tokens_per_pass"]
    up, down = report["bytes_up_per_token"], report["bytes_down_per_token"]
    ttft = report["ttft_ms"]
    alone, lost = report["written_alone"], report["links_lost"]
    return {
        "tokens": f"{tokens}: {', '.join(f'{count} {SHORT[kind]}' for kind, count in kinds.items() if count)}",
        "cloud passes": f"{report['cloud_passes']}" + (f" ({per_pass:.2f} tokens each)" if per_pass else ""),
        "accepted / drafted": f"{accepted} / {drafted}" + (f" ({accepted / drafted:.0%})" if drafted else ""),
        "acceptance by depth": depths,
        "written alone": f"{alone} tokens"
        + (f", link lost {'once' if lost == 1 else f'{lost} times'}" if lost else ""),
        "bytes per token": f"{up or 0:.1f} up, {down or 0:.1f} down",
        "time to first token": "–" if ttft is None else f"{ttft:.0f} ms",
        "tokens/s": f"{report['tokens_per_s']:.1f}",
        "ended by": str(report["finish_reason"]),
    }


def _per(total: float, count: int) -> float | None:
    return total / count if count else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
