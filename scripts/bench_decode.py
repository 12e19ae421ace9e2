"""Whole answers with device and cloud on one core each: speed, passes and where the time goes, by placement.

python -m scripts.bench_decode --json decode.json
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from edge.config import DeviceConfig, find_bundle
from edge.device import Device
from edge.display import notice
from edge.pacing import FixedPacing
from edge.plan import Plan
from edge.report import answer_report
from edge.tokenizer import Message
from scripts.prompts import load_prompts
from scripts.verifier_process import verifier_process
from shared.errors import EdgewiseError
from shared.hidden_codec import DTYPES
from shared.params import Placement
from shared.settings import home_folder

STAGES = ("draft", "send", "queue", "verify", "link", "commit")


def answers(config: DeviceConfig, prompts: Sequence[str]) -> list[dict[str, Any]]:
    """The report of each answer."""
    reports = []
    with Device(config) as device:
        for prompt in track(prompts, description=f"{config.plan.placement:<6}", console=Console(stderr=True)):
            made, text = device.chat([Message("user", prompt)])
            for _ in made.run():
                pass
            reports.append(answer_report(made, text.finish()))
    return reports


def summarise(reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Speed and passes over all tokens together; the rest are plain means over the answers that have the figure."""
    tokens = sum(r["completion_tokens"] for r in reports)
    seconds = sum(r["completion_tokens"] / r["tokens_per_s"] for r in reports if r["tokens_per_s"])
    passes = sum(r["cloud_passes"] for r in reports)
    stages = {
        stage: _mean([r["stage_ms"][stage] for r in reports if r["stage_ms"][stage] is not None]) for stage in STAGES
    }
    depths = max((len(r["acceptance_by_depth"]) for r in reports), default=0)
    return {
        "tokens": tokens,
        "tokens_per_s": round(tokens / seconds, 3) if seconds else 0.0,
        "passes_per_token": round(passes / tokens, 4) if tokens else None,
        "tokens_per_pass": round(tokens / passes, 4) if passes else None,
        "acceptance_by_depth": [
            _mean([r["acceptance_by_depth"][d] for r in reports if len(r["acceptance_by_depth"]) > d])
            for d in range(depths)
        ],
        "bytes_up_per_token": _mean([r["bytes_up_per_token"] for r in reports]),
        "bytes_down_per_token": _mean([r["bytes_down_per_token"] for r in reports]),
        "ttft_ms": _mean([r["ttft_ms"] for r in reports]),
        "stage_ms": stages,
    }


def run(
    model: str, bundle: Path, home: Path, prompts: Sequence[str], max_tokens: int, dtype: str, pacing: FixedPacing
) -> dict[str, Any]:
    """All placements against one verifier; the figures by placement."""
    cores = sorted(os.sched_getaffinity(0))
    device_core, cloud_core = cores[0], cores[-1]
    os.sched_setaffinity(0, {device_core})
    report: dict[str, Any] = {
        "dtype": dtype,
        "prompts": len(prompts),
        "max_tokens": max_tokens,
        "draft_length": pacing.draft_length,
        "window": pacing.window,
    }
    plans = {p.value: Plan(placement=p, pacing=pacing) for p in Placement}
    plans["edge pipelined"] = Plan(pacing=FixedPacing(pacing.draft_length, 2 * pacing.window))
    for codec in DTYPES:
        plans[f"edge {codec}"] = Plan(placement=Placement.EDGE, pacing=pacing, hidden=codec)
    options = ["--dtype", dtype, "--threads", "1"]
    with verifier_process(model, bundle, home, options, cores={cloud_core}) as verifier:
        texts = {}
        for name, plan in plans.items():
            reports = answers(DeviceConfig(bundle, verifier.url, max_tokens=max_tokens, plan=plan), prompts)
            report[name] = summarise(reports)
            texts[name] = [r["token_ids"] for r in reports]
    report["edge_equals_ar"] = texts["edge"] == texts["ar"] == texts["edge pipelined"]
    for codec in DTYPES:
        split = report[f"edge {codec}"]
        split["agreement_with_full_model"] = _agreement(texts[f"edge {codec}"], texts["ar"])
        split["verify_saved"] = round(1 - split["stage_ms"]["verify"] / report["edge"]["stage_ms"]["verify"], 4)
    os.sched_setaffinity(0, set(cores))
    # The cloud's cost beside the draft's length is the verifier's alone, so it is measured without the network.
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "verify.json"
        command = [sys.executable, "-m", "scripts.bench_verify", "--model", model, "--dtype", dtype]
        command += ["--core", str(cloud_core), "--json", str(out)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        verify = json.loads(out.read_text(encoding="utf-8"))
    report["verify8_over_verify1"] = verify["verify8_over_verify1"]
    report["verify_rows_ms"] = verify["verify_rows_ms"]
    report["dtype"] = verify["dtype"]
    stages = report["edge"]["stage_ms"]
    # `link` is measured from the start of sending, so it holds `send`.
    report["protocol_ms_per_window"] = round(stages["queue"] + stages["link"] + stages["commit"], 4)
    return report


def show(report: dict[str, Any], console: Console) -> None:
    """The table, and the figures that matter in one line each."""
    table = Table(title=f"{report['prompts']} prompts, {report['dtype']}, device and cloud on one core each")
    names = [name for name, value in report.items() if isinstance(value, dict) and "tokens_per_s" in value]
    for column in ("", *names):
        table.add_column(column, justify="left" if not column else "right")
    for label in ("tokens_per_s", "tokens_per_pass", "passes_per_token", "bytes_up_per_token", "bytes_down_per_token"):
        table.add_row(label, *(_cell(report[name][label]) for name in names))
    table.add_row("ttft_ms", *(_cell(report[name]["ttft_ms"]) for name in names))
    for stage in STAGES:
        table.add_row(f"{stage} ms", *(_cell(report[name]["stage_ms"][stage]) for name in names))
    table.add_row(
        "acceptance by depth",
        *(" ".join(f"{rate:.2f}" for rate in report[name]["acceptance_by_depth"]) or "–" for name in names),
    )
    console.print(table)
    console.print(f"protocol, codec and scheduling: [bold]{report['protocol_ms_per_window']:.3f} ms[/] a window")
    console.print(f"a pass over 8 drafts costs [bold]{report['verify8_over_verify1']:.2f}x[/] a pass over none")
    for codec in DTYPES:
        split = report[f"edge {codec}"]
        console.print(
            f"hidden states in {codec}: [bold]{split['verify_saved']:.0%}[/] of the verify time saved, "
            f"{split['bytes_up_per_token']:.0f} bytes up a token, "
            f"{split['agreement_with_full_model']:.0%} of the tokens before the first that differs from the full model"
        )
    console.print(f"edge and ar wrote the same tokens: [bold]{report['edge_equals_ar']}[/]")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; its exit code: 0 done, 2 bad input."""
    parser = argparse.ArgumentParser(prog="bench_decode", description=__doc__, allow_abbrev=False)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--bundle", type=Path, help="default: the only one in the home folder")
    parser.add_argument("--data", type=Path, help="a JSONL file of prompts")
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--dtype", default="auto", help="as for serve")
    parser.add_argument("--draft-length", type=int, default=FixedPacing().draft_length)
    parser.add_argument("--window", type=int, help="default: the draft length, which is stop-and-wait")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args(argv)
    if arguments.prompts < 1 or arguments.max_tokens < 2:
        parser.error("--prompts must be 1 or more, and --max-tokens 2 or more")
    home = home_folder(os.environ)
    try:
        bundle = find_bundle(arguments.bundle, home)
        prompts = load_prompts(arguments.data, arguments.prompts)
        pacing = FixedPacing(arguments.draft_length, arguments.window or arguments.draft_length)
        report = run(arguments.model, bundle, home, prompts, arguments.max_tokens, arguments.dtype, pacing)
    except EdgewiseError as error:
        notice(Console(stderr=True), "red", "error:", error)
        return 2
    show(report, Console())
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


def _agreement(texts: Sequence[Sequence[int]], references: Sequence[Sequence[int]]) -> float:
    """The share of the references' tokens that come before the first difference."""
    agreed = 0
    for text, reference in zip(texts, references, strict=True):
        pairs = zip(text, reference, strict=False)
        agreed += next(
            (place for place, (ours, theirs) in enumerate(pairs) if ours != theirs), min(len(text), len(reference))
        )
    return round(agreed / max(1, sum(map(len, references))), 4)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known), 4) if known else None


def _cell(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


if __name__ == "__main__":
    sys.exit(main())
