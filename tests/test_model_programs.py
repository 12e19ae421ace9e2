"""The real programs as a user runs them, on a tiny model: build, serve, run, chat, and how each of them ends."""

import json
import os
import pty
import re
import select
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import HTTPSHandler, ProxyHandler, build_opener

import pytest
import trustme
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from cloud.config import ServeConfig
from cloud.serve import serve
from scripts.verifier_process import Verifier, verifier_process
from shared.bundle import load_manifest
from shared.codec import decode, encode
from shared.errors import BadInput
from shared.frames import (
    CONNECTION,
    VERSION,
    Cancel,
    Commit,
    Drain,
    Finish,
    Frame,
    Hello,
    Open,
    Opened,
    Welcome,
)
from shared.params import Placement, SamplingParams
from tests.tiny_checkpoints import write_folder

pytestmark = pytest.mark.model

TOKEN = "a-long-enough-token"
ROOT = Path(__file__).parent.parent


def call(module: str, *arguments: str, home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run one of the programs to its end."""
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
        env={**clean(), "EDGEWISE_HOME": str(home), **environment},
    )


def clean() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith("EDGEWISE_")}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model in `model` and its bundle in `bundle`, both made by the real commands."""
    folder = tmp_path_factory.mktemp("home")
    write_folder(folder / "model", initializer_range=0.3)
    config = (folder / "model" / "config.json").read_text()
    for name, text in (("weightless", config), ("mamba", json.dumps({"model_type": "mamba"})), ("empty", None)):
        (folder / name).mkdir()
        if text is not None:
            (folder / name / "config.json").write_text(text)
    for name, cut in (("bundle", "2"), ("other", "1")):
        built = call("cloud", "build", "--model", str(folder / "model"), "--cut", cut, "--out", str(folder / name),
                     "--weights", "fp32", "--max-context", "200", home=folder)  # fmt: skip
        assert built.returncode == 0, built.stderr
    return folder


@pytest.fixture(scope="module")
def verifier(home: Path) -> Iterator[Verifier]:
    with verifier_process(str(home / "model"), home / "bundle", home, ["--dtype", "fp32", "--threads", "1"]) as running:
        yield running


def ask(
    home: Path, url: str, *flags: str, bundle: str = "bundle", **environment: str
) -> subprocess.CompletedProcess[str]:
    return call("edge", "run", "hello world", "--bundle", str(home / bundle), "--cloud", url, "--max-tokens", "40",
                "--json", *flags, home=home, **environment)  # fmt: skip


def report(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    made: dict[str, Any] = json.loads(done.stdout)
    return made


@pytest.mark.parametrize("flags", [(), ("--temperature", "0.8", "--seed", "9")], ids=["greedy", "T=0.8"])
def test_every_way_of_asking_gives_the_clouds_text(home: Path, verifier: Verifier, flags: Sequence[str]) -> None:
    alone = report(ask(home, verifier.url, "--placement", "ar", *flags))
    for way in ([], ["--window", "9"], ["--hidden", "fp32"]):
        made = report(ask(home, verifier.url, *way, *flags))
        assert made["token_ids"] == alone["token_ids"], way
        assert made["links_lost"] == made["written_alone"] == 0
    assert alone["completion_tokens"] == sum(count for _, count in alone["provenance"]) > 0


def test_without_a_cloud_the_device_says_so_and_answers_alone(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    done = ask(home, f"ws://127.0.0.1:{port}")
    made = report(done)
    assert "no link" in done.stderr and "refused" in done.stderr
    assert {kind for kind, _ in made["provenance"]} == {"local"}
    assert report(ask(home, "ws://127.0.0.1:1", "--local"))["token_ids"] == made["token_ids"]


def test_another_bundle_is_refused_by_what_differs(home: Path, verifier: Verifier) -> None:
    """Hazard 16."""
    done = ask(home, verifier.url, bundle="other")
    assert done.returncode == 3
    assert "differs in cut" in done.stderr and json.loads(done.stdout)["token_ids"] == []


def test_a_changed_file_is_refused_by_its_name(home: Path, verifier: Verifier, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for file in (home / "bundle").iterdir():
        data = file.read_bytes()
        (damaged / file.name).write_bytes(data[:-1] + b"?" if file.name == "tokenizer.json" else data)
    done = call("edge", "run", "hi", "--bundle", str(damaged), home=home)
    assert done.returncode == 2 and "tokenizer.json" in done.stderr


def test_tls_and_tokens_on_both_sides(home: Path, tmp_path: Path) -> None:
    """Hazard 22."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    cert, key, ca = tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "ca.pem"
    issued.cert_chain_pems[0].write_to_path(str(cert))
    issued.private_key_pem.write_to_path(str(key))
    authority.cert_pem.write_to_path(str(ca))
    with serving(home, "--tls-cert", str(cert), "--tls-key", str(key), ca=ca, EDGEWISE_TOKEN=TOKEN) as (url, _):
        assert url.startswith("wss://")
        right = report(ask(home, url, "--ca", str(ca), EDGEWISE_TOKEN=TOKEN))
        assert right["completion_tokens"] > 0 and right["written_alone"] == 0
        wrong = ask(home, url, "--ca", str(ca), EDGEWISE_TOKEN="another-long-token")
        assert wrong.returncode == 3 and "token" in wrong.stderr
        unknown = ask(home, url, EDGEWISE_TOKEN=TOKEN)
        assert unknown.returncode == 2 and "--ca" in unknown.stderr
        for done in (wrong, unknown):
            assert json.loads(done.stdout)["written_alone"] == 0


class serving:
    """`edgewise-cloud serve` with an environment of its own; gives its address and the process."""

    def __init__(self, home: Path, *options: str, ca: Path | None = None, **environment: str) -> None:
        self._tls = ssl.create_default_context(cafile=ca)
        command = [sys.executable, "-m", "cloud", "serve", "--model", str(home / "model"), "--port", "0", "--json"]
        self._command = [*command, "--bundle", str(home / "bundle"), "--threads", "1", *options]
        self._environment = {**clean(), "EDGEWISE_HOME": str(home), **environment}

    def __enter__(self) -> tuple[str, "subprocess.Popen[str]"]:
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self._environment, cwd=ROOT
        )
        assert self._process.stdout is not None
        announced = json.loads(self._process.stdout.readline())
        deadline = time.monotonic() + 60
        while not self._healthy(announced["url"]):
            assert self._process.poll() is None and time.monotonic() < deadline, "the server did not become ready"
            time.sleep(0.1)
        return announced["url"], self._process

    def __exit__(self, *error: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()

    def _healthy(self, url: str) -> bool:
        opener = build_opener(ProxyHandler({}), HTTPSHandler(context=self._tls))
        try:
            with opener.open(url.replace("ws", "http", 1) + "/health", timeout=5) as answer:
                return bool(json.load(answer)["status"] == "ok")
        except HTTPError:
            return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_a_server_that_is_told_to_stop_drains_and_ends_in_order(home: Path, number: signal.Signals) -> None:
    with serving(home) as (url, process):
        alone, drafted = report(ask(home, url, "--placement", "ar")), report(ask(home, url))
        assert drafted["token_ids"] == alone["token_ids"], "in bf16 too, on a CPU"
        assert alone["written_alone"] == drafted["written_alone"] == 0
        with connect(f"{url}/v1/session", proxy=None, compression=None) as socket:
            socket.send(encode(Hello(CONNECTION, VERSION, load_manifest(home / "bundle").identity, None)))
            assert isinstance(hear(socket), Welcome)
            # Where the device drafts, a session stays open after its first Commit.
            socket.send(encode(Open(1, (5, 6, 7), 3, 20, SamplingParams(), Placement.EDGE, (2,), None)))
            assert [type(hear(socket)) for _ in range(2)] == [Opened, Commit]
            process.send_signal(number)
            assert isinstance(hear(socket), Drain)
            with pytest.raises(ConnectionRefusedError):
                connect(f"{url}/v1/session", proxy=None)
            if number is signal.SIGTERM:
                # It has its time, and what is open goes on.
                socket.send(encode(Cancel(1)))
                assert isinstance(hear(socket), Finish)
            else:
                with pytest.raises(ConnectionClosed) as closed:
                    socket.recv(timeout=10)
                assert closed.value.rcvd is not None and closed.value.rcvd.code == 1012
        _, words = process.communicate(timeout=10)
    assert (process.returncode, words) == (0, "")


def hear(socket: ClientConnection) -> Frame:
    data = socket.recv(timeout=10)
    assert isinstance(data, bytes)
    return decode(data, 1 << 20)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--host", "0.0.0.0"], "EDGEWISE_TOKEN"),
        (["--device", "cuda"], "sees no CUDA device"),
        (["--dtype", "fp16"], "use bf16 or fp32"),
        (["--max-context", "100000"], "made for 1 to 256"),
        (["--bundle", "nowhere"], "nowhere"),
        (["--model", "nowhere/at/all"], "nowhere/at/all"),
        (["--model", "{home}/weightless"], "weightless holds no weights: model.safetensors is missing"),
        (["--model", "{home}/mamba"], "mamba"),
        (["--tls-cert", "cert.pem"], "go together"),
        (["--nonsense"], "unrecognized arguments"),
    ],
)
def test_a_server_that_cannot_start_says_why(home: Path, options: list[str], words: str) -> None:
    flags = ["--model", str(home / "model"), "--bundle", str(home / "bundle"), "--port", "0", "--json"]
    done = call("cloud", "serve", *flags, *(option.format(home=home) for option in options), home=home)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr and "Traceback" not in done.stderr
    assert "usage:" in done.stderr or len(done.stderr.splitlines()) == 1, "one sentence"


def test_a_model_that_fails_to_load_ends_the_server(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> None:
        raise MemoryError("no room for the weights")

    monkeypatch.setattr("cloud.load.load_verifier", fails)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    config = ServeConfig(model=str(home / "model"), bundle=home / "bundle", home=home, port=0)
    assert serve(config, as_json=True) == 1
    assert caplog.messages == ["the model did not load: MemoryError('no room for the weights')"]


def test_a_port_that_is_taken_is_named(home: Path, verifier: Verifier) -> None:
    with pytest.raises(BadInput, match=f"can't listen on 127.0.0.1:{verifier.port}"):
        with verifier_process(str(home / "model"), home / "bundle", home, ["--port", str(verifier.port)]):
            pass


def test_what_cannot_be_built_is_refused_by_name(home: Path, tmp_path: Path) -> None:
    for model, cut, words in (
        ("empty", "2", "empty/config.json is missing"),
        ("weightless", "2", "weightless holds no weights"),
        ("mamba", "2", "mamba"),
        ("model", "99", "cut"),
    ):
        out = tmp_path / "out"
        done = call("cloud", "build", "--model", str(home / model), "--cut", cut, "--out", str(out), home=home)
        assert done.returncode == 2 and words in done.stderr, done.stderr
        assert "Traceback" not in done.stderr and not out.exists()


def test_chat_on_a_terminal_goes_on_after_an_interrupt(home: Path, verifier: Verifier) -> None:
    command = [sys.executable, "-m", "edge", "chat", "--bundle", str(home / "bundle"), "--cloud", verifier.url]
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(ROOT)
        os.execve(sys.executable, [*command, "--max-tokens", "150"], {**clean(), "TERM": "xterm", "HOME": str(home)})
    seen = b""

    def wait_for(pattern: bytes) -> None:
        nonlocal seen
        deadline = time.monotonic() + 60
        while not re.search(pattern, seen):
            assert time.monotonic() < deadline, seen[-2000:]
            if select.select([terminal], [], [], 0.2)[0]:
                seen += os.read(terminal, 65536)

    try:
        wait_for(rb"you")
        os.write(terminal, b"hello world\n")
        # Colours: something of the answer is drawn.
        wait_for(rb"\x1b\[(32|94|2)m")
        os.write(terminal, b"\x03")
        wait_for(rb"tokens/s")
        seen = b""
        os.write(terminal, b"and again\n")
        wait_for(rb"tokens/s")
        os.write(terminal, b"\x04")
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
    finally:
        os.close(terminal)
