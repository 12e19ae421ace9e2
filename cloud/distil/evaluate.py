"""From files of prompts to the figures of an exit: the model answers greedily, then each place of its answers is read.

Answers in the files are not used: an answer that a person wrote says nothing about what the model would draft from.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cloud.distil.evaluation import Answer, Evaluation
from cloud.distil.figures import group, summarise
from cloud.distil.head import ExitHead
from cloud.distil.selfchat import WritingPlan, open_writer, write_file
from cloud.distil.vocabulary import DraftVocabulary
from cloud.publish.conversations import ChatFormat, Prompt, read_conversations, read_prompts
from cloud.publish.draft_vocabulary import draft_ids
from cloud.publish.exit_entry import ExitEntry
from cloud.publish.exit_file import ready_exit
from cloud.publish.tokenizer_files import tokenizer_files
from cloud.source import ModelSource
from cloud.target import load_target
from shared.errors import BadInput

Report = Callable[[str, int, int], None]
"""Stage, done, total."""


@dataclass(frozen=True, slots=True)
class Examination:
    """What to measure: `count` prompts spread over the files or all, answers of `max_tokens`, as `dtype` computes.

    `vocabulary` frequent tokens can be drafted, and those of the conversation.
    """

    cut: int
    exit_file: Path | None = None
    count: int | None = None
    max_tokens: int = 128
    vocabulary: int = 8192
    seed: int = 0
    dtype: torch.dtype = torch.float32
    device: str = "cpu"


def evaluate(
    source: ModelSource, data: Sequence[Path], answers: Path, what: Examination, report: Report
) -> dict[str, Any]:
    """The figures of the exit in the file, or of the one that ships for the cut.

    `answers` keeps what the model wrote: the same call goes on where the last one was stopped, and later ones read it.
    Raises BadInput for files that can't be used, sizes that can't be and a cut without an exit.
    """
    if what.max_tokens < 1 or (what.count is not None and what.count < 1):
        raise BadInput("--max-tokens and --count must be 1 or more")
    exit, _ = ready_exit(source, what.cut, 0, what.exit_file)
    if exit is None:
        raise BadInput(f"no exit ships for this model and a cut of {what.cut}; name one with --head")
    prompts = _spread(read_prompts(data), what.count)
    files = tokenizer_files(source)
    chat = ChatFormat(files)
    frequent: Sequence[int] = () if isinstance(exit, ExitEntry) else exit.frequent.tolist()
    drafted = draft_ids(int(source.config["vocab_size"]), what.vocabulary, files.stop_ids, frequent)
    write_file(
        lambda: open_writer(source, what.dtype, what.device, report),
        answers,
        prompts,
        WritingPlan(what.max_tokens),
        lambda done, total: report("let the model answer", done, total),
    )
    model: Any = load_target(source, what.dtype).to(what.device)
    head = ExitHead.of(model, exit).to(what.device)
    whole = model.lm_head.weight.detach()
    vocabulary = DraftVocabulary(torch.from_numpy(drafted).long().to(whole.device), whole)
    evaluation = Evaluation(model, head, what.cut, vocabulary, what.seed)
    places = []
    conversations = read_conversations([answers])
    for done, conversation in enumerate(conversations, start=1):
        prompt, answer = chat.answered_ids(conversation)
        places.append(evaluation.read(Answer(tuple(prompt), tuple(answer), group(conversation.category))))
        report("measure", done, len(conversations))
    return {"cut": what.cut, "draft_vocabulary": len(drafted), **summarise(places)}


def _spread(prompts: Sequence[Prompt], count: int | None) -> list[Prompt]:
    """`count` of them at equal distances, so that every kind of task in a file is among them."""
    if count is None or count >= len(prompts):
        return list(prompts)
    return [prompts[i * len(prompts) // count] for i in range(count)]
