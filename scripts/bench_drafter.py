"""Drafting speed on one core: the fast bundle against the portable one on the same layers, early and late in a text."""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np
from rich.console import Console
from rich.table import Table

from cloud.publish.build import build_bundle
from cloud.source import ModelSource, resolve_source
from edge.draft_model import DraftModel
from edge.onnx_model import open_model
from shared.errors import EdgewiseError
from shared.settings import home_folder

NEAR, FAR = 100, 2000
ROUNDS = 5


def main(argv: Sequence[str] | None = None) -> int:
    """Build both bundles in a scratch folder, measure, print a table; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m", help="as for edgewise-cloud build")
    parser.add_argument("--cut", type=int, default=10, help="layers on the device; the exit block comes on top")
    parser.add_argument("--tokens", type=int, default=100, help="drafted tokens in each measurement")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args(argv)
    console = Console()
    try:
        source = resolve_source(arguments.model, home_folder(os.environ))
        with tempfile.TemporaryDirectory() as scratch:
            figures = measure(source, arguments.cut, arguments.tokens, Path(scratch))
    except EdgewiseError as error:
        console.print(f"[red]error:[/] {error}", highlight=False)
        return 2
    table = Table(title=f"{source.name}, {arguments.cut} layers and the exit block, one core")
    for column in ("context", "fast q4, ms a token", "portable fp32, ms a token", "ratio"):
        table.add_column(column, justify="right")
    table.add_row(f"{NEAR}", f"{figures['fast_ms']:.2f}", f"{figures['portable_ms']:.2f}", f"{figures['ratio']:.1f}")
    far, portable = figures["fast_ms_ctx2000"], figures["portable_ms_ctx2000"]
    table.add_row(f"{FAR}", f"{far:.2f}", f"{portable:.2f}", f"{portable / far:.1f}")
    console.print(table)
    console.print(
        f"the fast bundle drafts {figures['draft_vocabulary']} of {figures['vocabulary']} tokens; "
        f"with all of them it is {figures['ratio_whole_vocabulary']:.1f} times as fast as the portable one"
    )
    console.print(f"growth of the fast bundle from {NEAR} to {FAR}: {figures['growth']:.2f}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return 0


def measure(source: ModelSource, cut: int, tokens: int, scratch: Path) -> dict[str, float]:
    """Milliseconds a drafted token, by median: all bundles at both contexts, taking turns within one run.

    `whole` is the fast bundle with a head over the whole vocabulary, as the portable one has.
    """
    context = FAR + tokens + 1
    fast_folder, portable_folder = scratch / "fast", scratch / "portable"
    fast_manifest = build_bundle(source, cut, fast_folder, max_context=context)
    whole_manifest = build_bundle(
        source, cut, scratch / "whole", max_context=context, draft_vocabulary=fast_manifest.vocab_size
    )
    portable_manifest = build_bundle(
        source, cut, portable_folder, exporter="portable", weights="fp32", max_context=context
    )
    models = {
        "fast": open_model(fast_folder, fast_manifest),
        "whole": open_model(scratch / "whole", whole_manifest),
        "portable": open_model(portable_folder, portable_manifest),
    }
    ids = np.random.default_rng(0).integers(0, fast_manifest.vocab_size, context).tolist()
    figures: dict[str, float] = {}
    for at in (NEAR, FAR):
        for model in models.values():
            model.truncate(0)
            model.forward(ids[:at])
        times: dict[str, list[float]] = {name: [] for name in models}
        for _ in range(ROUNDS):
            for name, model in models.items():
                times[name] += draft_times(model, ids[at], -(-tokens // ROUNDS), at)
        for name, seconds in times.items():
            figures[f"{name}_ms_ctx{at}"] = 1e3 * median(seconds)
    for model in models.values():
        model.close()
    near = figures[f"fast_ms_ctx{NEAR}"]
    figures["fast_ms"] = near
    figures["portable_ms"] = figures[f"portable_ms_ctx{NEAR}"]
    figures["ratio"] = figures["portable_ms"] / near
    figures["ratio_whole_vocabulary"] = figures["portable_ms"] / figures[f"whole_ms_ctx{NEAR}"]
    figures["draft_vocabulary"] = fast_manifest.draft_vocab_size
    figures["vocabulary"] = fast_manifest.vocab_size
    figures["growth"] = figures[f"fast_ms_ctx{FAR}"] / near
    return figures


def draft_times(model: DraftModel, token: int, count: int, at: int) -> list[float]:
    """Seconds for each of `count` greedy tokens after the first `at` cached ones; rolled back at the end."""
    seconds = []
    for _ in range(count):
        begin = time.perf_counter()
        logits, _ = model.forward([token])
        token = int(logits.argmax())
        seconds.append(time.perf_counter() - begin)
    model.truncate(at)
    return seconds


if __name__ == "__main__":
    sys.exit(main())
