"""Text that the model writes itself, to train and to measure exits on: many conversations at once, on the verifier.

Without prompts the model is given the opening of a user's turn, writes the user's words at temperature 1, and answers
them. Each conversation has its own number and seed, so what is missing from a file can be written later and comes out
the same. Source: Magpie (arXiv 2406.08464) for prompts out of nothing.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from cloud.batch import Batch, Work
from cloud.publish.conversations import ChatFormat, Prompt, read_prompts
from cloud.publish.tokenizer_files import tokenizer_files
from cloud.source import ModelSource
from cloud.target import load_target
from cloud.torch_model import TorchModel
from cloud.verifier import Verifier
from shared.errors import BadInput
from shared.params import SamplingParams

# How the model plays the user: at temperature 1 whole languages and scripts go astray without a bound.
USER_TEMPERATURE, USER_TOP_K, USER_TOKENS = 1.0, 40, 96
# Conversations that are written where neither prompts nor a count are given.
DEFAULT_COUNT = 1000
# Tokens of a prompt and its answer together; the caches of a batch take memory by it.
CONTEXT = 2048


@dataclass(frozen=True, slots=True)
class WritingPlan:
    """How answers are written: at most `max_tokens` each, `batch` conversations at once."""

    max_tokens: int = 288
    temperature: float = 0.0
    top_k: int = 0
    batch: int = 48
    seed: int = 0

    def __post_init__(self) -> None:
        if self.max_tokens < 1 or self.batch < 1:
            raise BadInput("--max-tokens and --batch must be 1 or more")

    def answering(self, number: int) -> SamplingParams:
        return SamplingParams(self.seed * 2**32 + 2 * number, self.temperature, self.top_k)

    def asking(self, number: int) -> SamplingParams:
        return SamplingParams(self.seed * 2**32 + 2 * number + 1, USER_TEMPERATURE, USER_TOP_K)


@dataclass(slots=True)
class _Turn:
    """One turn on its way. `prompt` is None while the model writes the user's words."""

    number: int
    prompt: Prompt | None
    start: tuple[int, ...]
    params: SamplingParams
    limit: int
    written: list[int] = field(default_factory=list)
    ended: bool = False

    def work(self, slot: int) -> Work:
        """The whole prompt at first, then the last token."""
        rows = (self.written[-1],) if self.written else self.start
        at = len(self.start) + len(self.written) - len(rows)
        return Work(slot, at, rows, len(rows) - 1, self.params, len(self.start))


def selfchat(
    source: ModelSource,
    out: Path,
    prompts: Sequence[Path],
    count: int | None,
    plan: WritingPlan,
    dtype: torch.dtype,
    device: str,
    report: Callable[[str, int, int], None],
) -> int:
    """Write conversations to `out`; how many it has then. The same call goes on where the last one was stopped.

    Without files of prompts the model writes the users' words as well. `count` takes so many, the first of the files.
    Raises BadInput for files that can't be used and a count that can't be.
    """
    if count is not None and count < 1:
        raise BadInput(f"--count is {count}; it must be 1 or more")
    wanted: list[Prompt | None] = [*read_prompts(prompts)[:count]]
    if not prompts:
        wanted = [None] * (DEFAULT_COUNT if count is None else count)
    return write_file(
        lambda: open_writer(source, dtype, device, report),
        out,
        wanted,
        plan,
        lambda done, total: report("write", done, total),
    )


def open_writer(
    source: ModelSource, dtype: torch.dtype, device: str, report: Callable[[str, int, int], None]
) -> "SelfChat":
    """The model, ready to write."""
    files = tokenizer_files(source)
    report("load the model", 0, 1)
    context = min(CONTEXT, int(source.config["max_position_embeddings"]))
    # No rows join at a cut here; any will do.
    model = TorchModel(load_target(source, dtype), cut=1, max_context=context, device=device)
    report("load the model", 1, 1)
    return SelfChat(Verifier(model), ChatFormat(files), files.stop_ids, context)


class SelfChat:
    """Writes conversations with a verifier that nobody else uses."""

    def __init__(self, verifier: Verifier, chat: ChatFormat, stop_ids: Sequence[int], context: int) -> None:
        self._verifier = verifier
        self._chat = chat
        self._stops = frozenset(stop_ids)
        self._context = context

    def write(self, prompts: Sequence[Prompt | None], numbers: Sequence[int], plan: WritingPlan) -> Iterator[Any]:
        """The records of the conversations with these numbers, as they end. A None stands for a prompt to be written.

        Prompts that leave no room for an answer are left out.
        """
        waiting = [turn for number in reversed(numbers) if (turn := self._first(number, prompts[number], plan))]
        active: dict[int, _Turn] = {}
        while waiting or active:
            for slot in range(plan.batch):
                if slot not in active and waiting:
                    active[slot] = waiting.pop()
            works = [turn.work(slot) for slot, turn in active.items()]
            for verdict in self._verifier.run(Batch(tuple(works))):
                assert verdict.error is None, verdict.error
                turn = active[verdict.slot]
                self._take(turn, verdict.targets[0])
                if not turn.ended:
                    continue
                del active[verdict.slot]
                self._verifier.free(verdict.slot)
                if turn.prompt is not None:
                    yield self._record(turn, plan)
                elif following := self._answer(turn, plan):
                    waiting.append(following)

    def _take(self, turn: _Turn, token: int) -> None:
        turn.written.append(token)
        turn.ended = token in self._stops or len(turn.written) >= turn.limit

    def _first(self, number: int, prompt: Prompt | None, plan: WritingPlan) -> _Turn | None:
        if prompt is None:
            return _Turn(number, None, tuple(self._chat.opening_ids()), plan.asking(number), USER_TOKENS)
        return self._turn(number, prompt, plan)

    def _answer(self, asked: _Turn, plan: WritingPlan) -> _Turn | None:
        text = self._chat.text(asked.written).strip()
        return self._turn(asked.number, Prompt(text), plan) if text else None

    def _turn(self, number: int, prompt: Prompt, plan: WritingPlan) -> _Turn | None:
        start = tuple(self._chat.prompt_ids(prompt.text))
        limit = min(plan.max_tokens, self._context - len(start))
        return _Turn(number, prompt, start, plan.answering(number), limit) if limit > 0 else None

    def _record(self, turn: _Turn, plan: WritingPlan) -> dict[str, Any]:
        assert turn.prompt is not None, "only answers are kept"
        complete = turn.written[-1] in self._stops
        record: dict[str, Any] = {
            "number": turn.number,
            "user": turn.prompt.text,
            "assistant": self._chat.text(turn.written),
            "complete": complete,
            "temperature": plan.temperature,
        }
        if turn.prompt.category is not None:
            record["category"] = turn.prompt.category
        return record


def write_file(
    opened: Callable[[], SelfChat],
    out: Path,
    prompts: Sequence[Prompt | None],
    plan: WritingPlan,
    advance: Callable[[int, int], None],
) -> int:
    """Add what is missing to `out`, one record a line; how many lines it has then.

    The writer is `opened` only if something is missing. Raises BadInput for a file that something else wrote, or that
    answers other prompts.
    """
    known = _known(out)
    if known and max(known) >= len(prompts):
        raise BadInput(f"{out} has a conversation {max(known)}, and {len(prompts)} are wanted; name another file")
    for number, asked in known.items():
        prompt = prompts[number]
        if prompt is not None and prompt.text != asked:
            raise BadInput(f"{out}: conversation {number} answers another prompt; name another file")
    missing = [number for number in range(len(prompts)) if number not in known]
    done = len(known)
    advance(done, len(prompts))
    if not missing:
        return done
    writer = opened()
    with out.open("a", encoding="utf-8") as file:
        for record in writer.write(prompts, missing, plan):
            if record["assistant"]:
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
                file.flush()
            done += 1
            advance(done, len(prompts))
    return len(_known(out))


def _known(out: Path) -> dict[int, str]:
    """The conversations that are whole in the file, and what they answer; a line that was cut off is taken out."""
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        return {}
    # By newlines alone: what the model wrote may hold other characters that Unicode counts as ends of lines.
    *lines, rest = out.read_text(encoding="utf-8").split("\n")
    if rest:
        out.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    try:
        records = [json.loads(line) for line in lines]
        return {int(record["number"]): str(record["user"]) for record in records}
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{out} was not written by selfchat; name another file") from error
