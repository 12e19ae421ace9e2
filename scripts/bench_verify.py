"""What a pass costs against its rows, on one core, in the dtype that `serve` uses by default.

python -m scripts.bench_verify --json verify.json
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from cloud.batch import Work
from cloud.config import AUTO
from cloud.load import DTYPES, pick_dtype
from cloud.source import resolve_source
from cloud.target import load_target
from cloud.torch_model import TorchModel
from edge.display import notice
from shared.errors import EdgewiseError
from shared.params import SamplingParams
from shared.settings import home_folder

ROWS = (1, 2, 4, 5, 8, 9, 16, 17, 32, 33)


def measure(model: TorchModel, context: int, rows: Sequence[int], repeats: int) -> dict[int, float]:
    """Median milliseconds of a pass over so many rows at the end of a `context`; repeats go round robin."""
    prompt = tuple(range(100, 100 + context))
    greedy = SamplingParams()
    model.forward([Work(1, 0, prompt, len(prompt), greedy, len(prompt))])
    times: dict[int, list[float]] = {count: [] for count in rows}
    for repeat in range(repeats + 1):
        for count in rows:
            work = Work(1, context, tuple(range(200, 200 + count)), 0, greedy, context)
            began = time.perf_counter()
            model.forward([work])
            if repeat:
                times[count].append(1000 * (time.perf_counter() - began))
    model.free(1)
    return {count: statistics.median(values) for count, values in times.items()}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table; its exit code: 0 done, 2 bad input."""
    parser = argparse.ArgumentParser(prog="bench_verify", description=__doc__, allow_abbrev=False)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", choices=(AUTO, *sorted(DTYPES)), default=AUTO)
    parser.add_argument("--context", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)), help="the core to run on")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args(argv)
    if arguments.core not in os.sched_getaffinity(0):
        parser.error(f"--core {arguments.core} is not one of {sorted(os.sched_getaffinity(0))}")
    if arguments.repeats < 1 or arguments.context < 1:
        parser.error("--repeats and --context must be 1 or more")
    os.sched_setaffinity(0, {arguments.core})
    torch.set_num_threads(1)
    try:
        source = resolve_source(arguments.model, home_folder(os.environ), None)
        dtype = pick_dtype(arguments.dtype, "cpu")
        hf_model = load_target(source, DTYPES[dtype])
    except EdgewiseError as error:
        notice(Console(stderr=True), "red", "error:", error)
        return 2
    model = TorchModel(hf_model, cut=1, max_context=arguments.context + max(ROWS), device="cpu")
    medians = measure(model, arguments.context, ROWS, arguments.repeats)
    table = Table(title=f"one pass, {dtype}, one core, context {arguments.context}")
    for column in ("rows", "ms (median)", "against 1 row"):
        table.add_column(column, justify="right")
    for count, value in medians.items():
        table.add_row(str(count), f"{value:.1f}", f"{value / medians[1]:.2f}x")
    Console().print(table)
    report = {
        "dtype": dtype,
        "verify_rows_ms": {str(count): round(value, 3) for count, value in medians.items()},
        "verify8_over_verify1": round(medians[9] / medians[1], 4),
    }
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
