"""From files of answered prompts to a trained exit head: features once, then training that can be resumed."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch

from cloud.distil.batches import Batches, frequent_tokens
from cloud.distil.features import About, FeatureFolder, States, Text
from cloud.distil.head import ExitHead
from cloud.distil.train import Schedule, Trainer, acceptance
from cloud.distil.vocabulary import DraftVocabulary
from cloud.publish.conversations import ChatFormat, Conversation, read_conversations
from cloud.publish.exit_fit import fit_entries, residuals
from cloud.publish.exit_head import HeadRecipe, TrainedHead, load_head, save_head
from cloud.publish.split import check_cut
from cloud.publish.tokenizer_files import tokenizer_files
from cloud.source import ModelSource
from cloud.target import load_target
from shared.bundle import sha256_file
from shared.errors import BadInput

# Answers that are measured and never trained on.
HELD_OUT = 50
# Texts that the entry is fitted on before training.
ENTRY_TEXTS = 120
CHECKPOINT_NAME = "checkpoint.pt"
CURVE_NAME = "curve.jsonl"

Report = Callable[[str, int, int, str], None]
"""Stage, done, total, and a note on how it stands."""


@dataclass(frozen=True, slots=True)
class Distillation:
    """What to train, and how. `longest` is in tokens; `every` steps it is measured and a checkpoint is written.

    Training begins at the head in the file `start`, or else at the model's own last blocks.
    """

    cut: int
    schedule: Schedule
    n_blocks: int = 1
    vocabulary: int = 8192
    longest: int = 512
    start: Path | None = None
    every: int = 800
    dtype: torch.dtype = torch.float32
    device: str = "cpu"


def distil(
    source: ModelSource, data: Sequence[Path], out: Path, work: Path, what: Distillation, report: Report
) -> float:
    """Train a head and write it to `out`; its acceptance on answers held out.

    `work` keeps features, a checkpoint, and in curve.jsonl the loss and the acceptance at each of them: the same call
    goes on where the last one was stopped. The answers in `data` should be the model's own. Raises BadInput for a cut
    or sizes that can't be, files that can't be used or hold too little, and a `work` folder of something else.
    """
    _check(source, what)
    started = _started(source, what)
    texts = _texts(ChatFormat(tokenizer_files(source)), read_conversations(data), what)
    report("load the model", 0, 1, "")
    model: Any = load_target(source, what.dtype).to(what.device)
    report("load the model", 1, 1, "")
    about = About(source.weights_sha256, int(source.config["hidden_size"]), (what.cut,))
    features = FeatureFolder(work / "features", about)
    spans = features.compute(
        texts,
        lambda ids: _states(model, ids, what.cut),
        lambda done, total: report("compute features", done, total, ""),
    )
    held, learned = spans[:HELD_OUT], spans[HELD_OUT:]
    ranked = frequent_tokens(features.ids(), learned)
    frequent = torch.from_numpy(ranked[: what.vocabulary].copy()).long().to(what.device)
    if started is None:
        entry = fit_entries(
            model,
            [text.ids for text in texts[HELD_OUT : HELD_OUT + ENTRY_TEXTS]],
            [what.cut],
            lambda done, total: report("fit the entry", done, total, ""),
            what.n_blocks,
        )[what.cut]
        head = ExitHead(model, what.n_blocks, entry)
    else:
        head = ExitHead.of(model, started)
    head.to(what.device)
    vocabulary = DraftVocabulary(frequent, model.lm_head.weight.detach())
    batches = Batches(features, what.cut, torch.device(what.device))
    trainer = Trainer(head, vocabulary, batches, learned, what.schedule)
    reached = _train(trainer, work / CHECKPOINT_NAME, lambda: acceptance(head, vocabulary, batches, held), what, report)
    recipe = HeadRecipe(
        weights_sha256=source.weights_sha256,
        cut=what.cut,
        n_blocks=what.n_blocks,
        data=", ".join(path.name for path in data),
        seed=what.schedule.seed,
        tokens=trainer.progress.tokens,
        seconds=round(trainer.progress.seconds),
        learning_rate=what.schedule.learning_rate,
        batch=what.schedule.batch,
        vocabulary=len(frequent),
        longest=max(span.rows for span in learned),
        start="" if started is None else started.digest,
        acceptance=round(reached, 4),
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    head.cpu()
    save_head(out, head.exit_entry(), head.layers(), head.norm.weight.detach().numpy(), ranked, recipe)
    return reached


def _check(source: ModelSource, what: Distillation) -> None:
    check_cut(source.config, what.cut)
    layers = int(source.config["num_hidden_layers"])
    if not 1 <= what.n_blocks <= layers - what.cut:
        raise BadInput(f"{what.n_blocks} blocks at a cut of {what.cut} are not possible; use 1 to {layers - what.cut}")
    if what.schedule.tokens < 1 or what.schedule.batch < 1 or what.vocabulary < 1:
        raise BadInput("--tokens, --batch and --vocabulary must be 1 or more")
    if what.longest < 2:
        raise BadInput(f"--longest is {what.longest}; a text needs a prompt and an answer, so 2 or more")


def _started(source: ModelSource, what: Distillation) -> TrainedHead | None:
    """The head to begin at. Raises BadInput for one of another model, cut or number of blocks."""
    if what.start is None:
        return None
    width = int(source.config["hidden_size"])
    try:
        digest = sha256_file(what.start)
    except OSError as error:
        raise BadInput(f"{what.start} can't be read: {error}") from error
    head = load_head(what.start, source.weights_sha256, what.cut, width, 0, digest)
    if len(head.blocks) != what.n_blocks:
        raise BadInput(
            f"{what.start} has {len(head.blocks)} blocks, not {what.n_blocks}; give --blocks {len(head.blocks)}"
        )
    return head


def _texts(chat: ChatFormat, conversations: Sequence[Conversation], what: Distillation) -> list[Text]:
    """The conversations' ids in an order that the seed settles; those without room for an answer are left out."""
    texts = []
    for conversation in Random(what.schedule.seed).sample(conversations, len(conversations)):
        prompt, answer = chat.answered_ids(conversation)
        ids = [*prompt, *answer][: what.longest]
        if len(prompt) < len(ids):
            texts.append(Text(tuple(ids), len(prompt)))
    if len(texts) <= HELD_OUT:
        raise BadInput(
            f"the files hold {len(texts)} usable conversations; more than {HELD_OUT} are needed: those are held out"
        )
    return texts


def _states(model: Any, ids: Sequence[int], cut: int) -> States:
    states = residuals(model, ids)
    return States({cut: states[cut].numpy()}, states[-1].numpy())


def _train(
    trainer: Trainer, checkpoint: Path, measure: Callable[[], float], what: Distillation, report: Report
) -> float:
    """Train to the schedule's end; the acceptance at the end."""
    if checkpoint.exists():
        trainer.resume(checkpoint)
    reached = measure()
    while not trainer.done:
        trainer.step(time.perf_counter)
        progress = trainer.progress
        if progress.step % what.every == 0 or trainer.done:
            trainer.save(checkpoint)
            reached = measure()
            point = {"tokens": progress.tokens, "loss": round(progress.loss, 4), "acceptance": round(reached, 4)}
            with checkpoint.with_name(CURVE_NAME).open("a", encoding="utf-8") as curve:
                curve.write(json.dumps(point) + "\n")
        note = f"loss {progress.loss:.3f}, accepts {reached:.1%} held out"
        report("train", min(progress.tokens, what.schedule.tokens), what.schedule.tokens, note)
    return reached
