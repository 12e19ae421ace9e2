"""The command `edgewise`: answers on this device, with the cloud where there is a link."""

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from rich.console import Console

from edge.config import DEFAULT_CLOUD, DeviceConfig, find_bundle
from edge.conversation import converse
from edge.device import Device
from edge.display import notice
from edge.pacing import FixedPacing
from edge.plan import Plan, WhenBack
from edge.report import answer_report
from edge.speaker import Speaker
from edge.tokenizer import Message
from shared.errors import BadInput, EdgewiseError, PeerError, Refused
from shared.hidden_codec import DTYPES
from shared.params import Placement, SamplingParams
from shared.settings import Settings, home_folder, read_config_file

EXIT_BAD_INPUT = 2
EXIT_REFUSED = 3
EXIT_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; its exit code: 0 done, 2 bad input, 3 refused by the cloud, 130 interrupted."""
    console = Console(stderr=True)
    try:
        settings = Settings(os.environ, read_config_file(os.environ, "device"))
        parser = _parser(settings)
        settings.refuse_unknown()
        arguments = parser.parse_args(argv)
        with Device(_config(arguments, os.environ)) as device:
            return int(arguments.command(arguments, device))
    except EdgewiseError as error:
        notice(console, "red", "error:", error)
        return EXIT_REFUSED if isinstance(error, Refused | PeerError) else EXIT_BAD_INPUT
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _parser(settings: Settings) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="edgewise", description=__doc__, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"edgewise {version('edgewise')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="answer one prompt", allow_abbrev=False)
    run.set_defaults(command=_run)
    run.add_argument("prompt", type=_words, help="what to ask")
    run.add_argument("--json", action="store_true", help="print one JSON report instead of the text")
    chat = commands.add_parser("chat", help="talk; Ctrl-C stops an answer, Ctrl-D ends", allow_abbrev=False)
    chat.set_defaults(command=_chat)
    for command in (run, chat):
        _answer_flags(command, settings)
    return parser


def _words(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("is empty; say something")
    return text


def _answer_flags(parser: argparse.ArgumentParser, settings: Settings) -> None:
    def flag(name: str, kind: type, fallback: object, about: str) -> None:
        default = settings.default(name.strip("-").replace("-", "_"), fallback)
        choices = {"choices": list(kind)} if kind in (Placement, WhenBack) else {}
        parser.add_argument(name, type=kind, default=default, help=f"{about} (default: {fallback})", **choices)  # type: ignore[arg-type]

    sampling, pacing = SamplingParams(), FixedPacing()
    flag("--bundle", Path, None, "the bundle's folder")
    flag("--cloud", str, DEFAULT_CLOUD, "the verifier's address")
    flag("--ca", Path, None, "certificates to trust for wss, a PEM file")
    flag("--placement", Placement, Placement.EDGE, "who drafts and who decides")
    parser.add_argument("--local", action="store_true", help="keep this on the device: the same as --placement local")
    flag("--when-back", WhenBack, WhenBack.REVISE, "what becomes of text written alone when the link returns")
    flag("--hidden", str, None, f"send hidden states beside drafts: {' or '.join(DTYPES)}; they are not private")
    flag("--draft-length", int, pacing.draft_length, "tokens in a draft")
    flag("--window", int, None, "drafted tokens in flight; by default two drafts, and one draft is stop-and-wait")
    flag("--max-tokens", int, 256, "the answer's longest length")
    flag("--seed", int, sampling.seed, "the same seed gives the same answer")
    flag("--temperature", float, sampling.temperature, "0 is greedy")
    flag("--top-k", int, sampling.top_k, "0 is off")
    flag("--top-p", float, sampling.top_p, "1 is off")
    flag("--min-p", float, sampling.min_p, "0 is off")
    flag("--repetition-penalty", float, sampling.repetition_penalty, "1 is off")
    flag("--presence-penalty", float, sampling.presence_penalty, "0 is off")
    flag("--frequency-penalty", float, sampling.frequency_penalty, "0 is off")
    flag("--system", str, None, "a system message")
    flag("--threads", int, 1, "CPU threads for drafting")
    parser.add_argument("--stop", action="append", default=[], help="end the answer before this text; may be repeated")


def _config(arguments: argparse.Namespace, environment: Mapping[str, str]) -> DeviceConfig:
    window = 2 * arguments.draft_length if arguments.window is None else arguments.window
    if arguments.hidden is not None and arguments.hidden not in DTYPES:
        raise BadInput(f"--hidden {arguments.hidden} is no codec; use {' or '.join(DTYPES)}")
    params = SamplingParams(
        seed=arguments.seed,
        temperature=arguments.temperature,
        top_k=arguments.top_k,
        top_p=arguments.top_p,
        min_p=arguments.min_p,
        repetition_penalty=arguments.repetition_penalty,
        presence_penalty=arguments.presence_penalty,
        frequency_penalty=arguments.frequency_penalty,
    )
    return DeviceConfig(
        bundle=find_bundle(arguments.bundle, home_folder(environment)),
        cloud=arguments.cloud,
        token=environment.get("EDGEWISE_TOKEN"),
        ca=arguments.ca,
        threads=arguments.threads,
        max_tokens=arguments.max_tokens,
        stops=tuple(arguments.stop),
        system=arguments.system,
        params=params,
        plan=Plan(
            placement=Placement.LOCAL if arguments.local else arguments.placement,
            pacing=FixedPacing(arguments.draft_length, window),
            hidden=arguments.hidden,
            when_back=arguments.when_back,
        ),
    )


def _run(arguments: argparse.Namespace, device: Device) -> int:
    made, text = device.chat([Message("user", arguments.prompt)])
    console = Console(stderr=True)
    speaker = Speaker(None if arguments.json else Console(), console)
    try:
        speaker.speak(made, text)
    finally:
        if arguments.json:
            print(json.dumps(answer_report(made, text.finish()), ensure_ascii=False))
    return 0


def _chat(arguments: argparse.Namespace, device: Device) -> int:
    return converse(device, Console(), Console(stderr=True), sys.stdin)


if __name__ == "__main__":
    sys.exit(main())
