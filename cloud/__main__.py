"""The command `edgewise-cloud`: build a device bundle, make its exit draft better, serve the full model."""

import argparse
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.text import Text

from cloud.config import ServeConfig
from cloud.exit_commands import DTYPES, add_exit_commands, model_flag
from cloud.progress import StageProgress
from cloud.scheduler import SchedulerLimits
from shared.errors import BadInput, EdgewiseError
from shared.params import Limits
from shared.settings import Settings, home_folder, read_config_file

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
    model_flag(build, settings)
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

    add_exit_commands(commands, settings)

    serve = commands.add_parser("serve", help="run the verifier", allow_abbrev=False)
    serve.set_defaults(command=_serve)
    model_flag(serve, settings)
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
