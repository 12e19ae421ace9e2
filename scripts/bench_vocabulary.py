"""How many frequent tokens the head should be for: what a drafted token costs against what a pass then commits.

At each size the exit that ships for the cut is measured on the model's own answers to the prompts in the file, and a
bundle with a head of that size drafts after the longest of those texts, all bundles taking turns.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from cloud.distil.evaluate import Examination, evaluate
from cloud.distil.figures_table import SHOWN_LENGTH
from cloud.progress import StageProgress
from cloud.publish.build import build_bundle
from cloud.publish.conversations import ChatFormat, read_conversations
from cloud.publish.tokenizer_files import tokenizer_files
from cloud.source import ModelSource, resolve_source
from edge.draft_model import DraftModel
from edge.onnx_model import open_model
from scripts.bench_drafter import draft_times
from shared.errors import EdgewiseError
from shared.settings import home_folder

ROUNDS = 10


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table; the exit code: 0 done, 2 bad input."""
    parser = argparse.ArgumentParser(prog="bench_vocabulary", description=__doc__, allow_abbrev=False)
    parser.add_argument("--model", default="smollm2-135m", help="as for edgewise-cloud build")
    parser.add_argument("--cut", type=int, default=10, help="layers on the device before the exit")
    parser.add_argument("--data", type=Path, required=True, nargs="+", help="JSONL files of prompts")
    parser.add_argument("--count", type=int, default=60, help="prompts, spread over the files")
    parser.add_argument("--max-tokens", type=int, default=128, help="the most tokens of an answer")
    parser.add_argument("--sizes", type=int, nargs="+", default=[2048, 4096, 8192, 16384, 24576, 49152])
    parser.add_argument("--answers", type=Path, help="what the model answered (default: it answers anew)")
    parser.add_argument("--threads", type=int, default=1, help="for the evaluation; drafts have one")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(arguments.threads)
    errors = Console(stderr=True)
    try:
        with StageProgress(errors) as progress, tempfile.TemporaryDirectory() as scratch:
            source = resolve_source(arguments.model, home_folder(os.environ), progress.update)
            figures = measure(source, arguments, Path(scratch), progress)
    except EdgewiseError as error:
        errors.print(f"[red]error:[/] {error}", highlight=False)
        return 2
    table = Table(title=f"{source.name}, cut at {arguments.cut}")
    for column in ("tokens", "covered", "first", f"tokens a pass at {SHOWN_LENGTH}", "draft ms", "the text's own"):
        table.add_column(column, justify="right")
    for row in figures:
        table.add_row(
            str(row["size"]),
            f"{row['covered']:.1%}",
            f"{row['first_position_acceptance']:.1%}",
            f"{row['tokens_per_pass'][SHOWN_LENGTH]:.3f}",
            f"{row['draft_ms']:.2f}",
            str(row["context_tokens"]),
        )
    Console().print(table)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return 0


def measure(
    source: ModelSource, arguments: argparse.Namespace, scratch: Path, progress: StageProgress
) -> list[dict[str, Any]]:
    """One record a size."""
    answers = arguments.answers or scratch / "answers.jsonl"
    figures, models = [], []
    for size in arguments.sizes:
        what = Examination(arguments.cut, None, arguments.count, arguments.max_tokens, size)
        found = evaluate(source, arguments.data, answers, what, lambda *_: None)
        folder = scratch / str(size)
        manifest = build_bundle(source, arguments.cut, folder, draft_vocabulary=size)
        models.append(open_model(folder, manifest))
        figures.append({"size": size, **{k: found[k] for k in ("covered", "first_position_acceptance", "top4")}})
        figures[-1]["tokens_per_pass"] = found["tokens_per_pass"]
        progress.update("measure", len(figures), len(arguments.sizes))
    chat = ChatFormat(tokenizer_files(source))
    texts = ([*prompt, *answer] for prompt, answer in map(chat.answered_ids, read_conversations([answers])))
    longest = max(texts, key=len)[: models[0].max_context - 64]
    for record, model in zip(figures, models, strict=True):
        record["text_tokens"] = len(longest)
        record["context_tokens"] = int(np.isfinite(model.forward(longest)[0]).sum()) - record["size"]
    for record, times in zip(figures, _draft_seconds(models, longest), strict=True):
        record["draft_ms"] = 1e3 * median(times)
    return figures


def _draft_seconds(models: Sequence[DraftModel], text: Sequence[int]) -> list[list[float]]:
    """Seconds for each drafted token after the text, which all models hold, by model; they take turns."""
    times: list[list[float]] = [[] for _ in models]
    for _ in range(ROUNDS):
        for model, seconds in zip(models, times, strict=True):
            seconds += draft_times(model, text[-1], 20, len(text))
    return times


if __name__ == "__main__":
    sys.exit(main())
