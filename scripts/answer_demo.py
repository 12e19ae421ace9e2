"""One prompt through the whole path: device drafts, cloud verdicts, a cut link, a resume, and the proof.

Run it as ./scripts/demo, which makes the environment first.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from cloud.publish.exit_file import SHIPPED
from edge.config import DeviceConfig
from edge.device import Device
from edge.display import notice, summary_table
from edge.generation import Generation
from edge.plan import Plan
from edge.report import answer_report, summary_rows
from edge.speaker import Speaker
from edge.tokenizer import Message
from scripts.link_proxy import ThreadedLinkProxy
from scripts.verifier_process import Verifier, verifier_process
from shared.bundle import load_manifest, sha256_file, verify_files
from shared.errors import BundleError, EdgewiseError
from shared.params import Placement
from shared.settings import home_folder

MODEL = "smollm2-135m"
# The trained head that ships for the model; a bundle is named after it, so a new head makes a new one.
CUT = 10
HEAD = SHIPPED / "smollm2-135m" / f"cut{CUT}.safetensors"
PROMPT = "Explain in a few sentences why the sky is blue."
# The link is cut when this many tokens are final, and comes back when the device has written this many alone.
CUT_AFTER = 24
ALONE = 12


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; its exit code: 0 when the text equals the cloud's own, 1 when not, 2 for bad input, 130 stopped."""
    parser = argparse.ArgumentParser(prog="demo", description=__doc__, allow_abbrev=False)
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--no-cut", action="store_true", help="leave the link alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there too")
    arguments = parser.parse_args(argv)
    if not arguments.prompt.strip():
        parser.error("--prompt is empty; say something")
    if arguments.max_tokens < 1:
        parser.error(f"--max-tokens is {arguments.max_tokens}; it must be 1 or more")
    if arguments.json is not None and not os.access(arguments.json.resolve().parent, os.W_OK):
        parser.error(f"--json {arguments.json}: its folder isn't there or can't be written to")
    console = Console()
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        report = run_demo(
            arguments.prompt, arguments.max_tokens, not arguments.no_cut, home_folder(os.environ), console
        )
    except EdgewiseError as error:
        notice(Console(stderr=True), "red", "error:", error)
        return 2
    except KeyboardInterrupt:
        return 130
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0 if report["equal_to_cloud_alone"] else 1


def run_demo(prompt: str, max_tokens: int, cut: bool, home: Path, console: Console) -> dict[str, Any]:
    """Build the bundle if need be, answer through a link that is cut, answer by the cloud alone, compare."""
    bundle = home / "bundles" / f"{MODEL}-cut{CUT}-{sha256_file(HEAD)[:8]}"
    _ensure_bundle(bundle, home, console)
    with console.status("loading the verifier") as status:
        # One core is left to the device, which drafts on it.
        threads = max(1, len(os.sched_getaffinity(0)) - 1)
        with verifier_process(MODEL, bundle, home, ["--threads", str(threads)]) as verifier:
            status.stop()
            return _compare(prompt, max_tokens, cut, bundle, verifier, console)


def _compare(
    prompt: str, max_tokens: int, cut: bool, bundle: Path, verifier: Verifier, console: Console
) -> dict[str, Any]:
    console.print(f"[bold]prompt[/] {prompt}\n", highlight=False)
    with ThreadedLinkProxy(verifier.host, verifier.port) as proxy:
        config = _config(f"ws://127.0.0.1:{proxy.port}", bundle, max_tokens, Placement.EDGE)
        with Device(config) as device:
            made, text = device.chat([Message("user", prompt)])
            scene = _Scene(proxy, made) if cut else None
            Speaker(console, Console(stderr=True)).speak(made, text, each=scene)
            report = answer_report(made, text.finish())
    with Device(_config(verifier.url, bundle, max_tokens, Placement.AR)) as device:
        alone, alone_text = device.chat([Message("user", prompt)])
        for _ in alone.run():
            pass
        beside = answer_report(alone, alone_text.finish())
    report["equal_to_cloud_alone"] = report["token_ids"] == beside["token_ids"]
    report["cloud_alone"] = beside
    console.print()
    if report["tokens_per_pass"]:
        console.print(f"[bold]{report['tokens_per_pass']:.2f} committed tokens a cloud pass[/]", highlight=False)
    console.print(summary_table({"edgewise": summary_rows(report), "cloud alone": summary_rows(beside)}))
    if report["equal_to_cloud_alone"]:
        console.print("[bold green]the two texts are equal[/], token for token")
    else:
        console.print("[bold red]the two texts differ[/]; the cloud alone wrote:")
        console.print(beside["text"], highlight=False)
    return report


class _Scene:
    """Cuts the link in mid-answer and brings it back, once each."""

    def __init__(self, proxy: ThreadedLinkProxy, made: Generation) -> None:
        self._proxy = proxy
        self._made = made
        self._cut = False
        self._restored = False

    def __call__(self) -> None:
        if not self._cut and len(self._made.answer.tokens) >= CUT_AFTER:
            self._cut = True
            self._proxy.cut()
        elif self._cut and not self._restored:
            ended = self._made.alone and not self._made.answer.can_draft
            if self._made.statistics.local_tokens >= ALONE or ended:
                self._restored = True
                self._proxy.restore()


def _config(cloud: str, bundle: Path, max_tokens: int, placement: Placement) -> DeviceConfig:
    plan = Plan(placement=placement)
    return DeviceConfig(bundle=bundle, cloud=cloud, max_tokens=max_tokens, plan=plan)


def _ensure_bundle(bundle: Path, home: Path, console: Console) -> None:
    """Build the bundle once; a damaged one is built again."""
    try:
        verify_files(bundle, load_manifest(bundle))
        return
    except BundleError:
        console.print(f"building the device bundle in {bundle} (once)", highlight=False)
    command = [sys.executable, "-m", "cloud", "build", "--model", MODEL, "--cut", str(CUT), "--exit", str(HEAD)]
    command += ["--out", str(bundle)]
    began = time.monotonic()
    done = subprocess.run(command, env={**os.environ, "EDGEWISE_HOME": str(home)}, check=False)
    if done.returncode:
        raise BundleError(f"building the bundle failed with exit code {done.returncode}; its reason stands above")
    console.print(f"built in {time.monotonic() - began:.0f} s")


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
