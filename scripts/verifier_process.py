"""A verifier in a process of its own, for the demo and the benchmarks."""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, build_opener

from shared.errors import BadInput

START_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Verifier:
    """Where a running verifier listens, and the process behind it."""

    url: str
    host: str
    port: int
    pid: int


@contextmanager
def verifier_process(
    model: str,
    bundle: Path,
    home: Path,
    options: Sequence[str] = (),
    cores: set[int] | None = None,
    waiting: Callable[[], None] = lambda: None,
) -> Iterator[Verifier]:
    """Run `edgewise-cloud serve` on a free loopback port until the block ends; it never outlives the block.

    `cores` are the CPUs that it may use. Raises BadInput with the server's own words when it doesn't start.
    """
    command = [
        sys.executable,
        "-m",
        "cloud",
        "serve",
        "--model",
        model,
        "--bundle",
        str(bundle),
        "--port",
        "0",
        "--json",
    ]
    environment = {key: value for key, value in os.environ.items() if key != "EDGEWISE_TOKEN"}
    environment["EDGEWISE_HOME"] = str(home)
    # Into a file: a pipe that nobody reads would stop a server that has much to say.
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as words:
        process = subprocess.Popen(
            [*command, *options],
            stdout=subprocess.PIPE,
            stderr=words,
            text=True,
            env=environment,
            # Ctrl-C reaches this program only, which then ends the server in order.
            start_new_session=True,
        )
        try:
            if cores is not None:
                os.sched_setaffinity(process.pid, cores)
            deadline = time.monotonic() + START_TIMEOUT_S
            announced = json.loads(_first_line(process, words, deadline))
            port = int(announced["port"])
            _wait_until_healthy(process, words, port, deadline, waiting)
            yield Verifier(announced["url"], "127.0.0.1", port, process.pid)
        finally:
            _end(process)


def _first_line(process: "subprocess.Popen[str]", words: TextIO, deadline: float) -> str:
    assert process.stdout is not None
    while time.monotonic() < deadline:
        readable, _, _ = select.select([process.stdout], [], [], 0.2)
        if readable:
            line = process.stdout.readline()
            if line:
                return line
        if process.poll() is not None:
            raise BadInput(_last_words(process, words))
    raise BadInput(f"the verifier did not announce its address within {START_TIMEOUT_S:g} s")


def _wait_until_healthy(
    process: "subprocess.Popen[str]", words: TextIO, port: int, deadline: float, waiting: Callable[[], None]
) -> None:
    opener = build_opener(ProxyHandler({}))
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise BadInput(_last_words(process, words))
        try:
            with opener.open(f"http://127.0.0.1:{port}/health", timeout=5):
                return
        except (HTTPError, URLError, TimeoutError, ConnectionError):
            waiting()
            time.sleep(0.1)
    raise BadInput(f"the verifier was not ready within {START_TIMEOUT_S:g} s")


def _last_words(process: "subprocess.Popen[str]", words: TextIO) -> str:
    words.seek(0)
    said = words.read().strip()[-2000:]
    return f"the verifier ended with exit code {process.returncode}: {said or 'it said nothing'}"


def _end(process: "subprocess.Popen[str]") -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.communicate(timeout=15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
