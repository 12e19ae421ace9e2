"""The demo as a newcomer runs it: the report, the cut, and nothing left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
COMMAND = [sys.executable, "-m", "scripts.answer_demo"]
KEYS = {
    "text", "token_ids", "equal_to_cloud_alone", "provenance", "cloud_passes", "drafted", "accepted",
    "acceptance_by_depth", "bytes_up_per_token", "bytes_down_per_token", "ttft_ms", "tokens_per_s", "finish_reason",
}  # fmt: skip


@pytest.mark.model
@pytest.mark.parametrize("flags", [[], ["--no-cut"]], ids=["cut", "no cut"])
def test_the_text_is_the_clouds_own_through_a_cut(tmp_path: Path, flags: list[str]) -> None:
    out = tmp_path / "report.json"
    done = subprocess.run(
        [*COMMAND, "--max-tokens", "48", "--json", str(out), *flags],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())
    assert set(report) >= KEYS
    assert report["equal_to_cloud_alone"] is True
    assert report["token_ids"] == report["cloud_alone"]["token_ids"]
    assert report["links_lost"] == (0 if flags else 1)
    assert (report["written_alone"] > 0) is not bool(flags)
    assert sum(count for _, count in report["provenance"]) == len(report["token_ids"])
    assert {kind for kind, _ in report["provenance"]} <= {"draft-accepted", "cloud", "local"}
    assert report["accepted"] > 0 and report["cloud_passes"] < len(report["token_ids"])
    assert "the two texts are equal" in done.stdout


@pytest.mark.model
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_stopped_in_the_middle_it_leaves_no_process_behind(number: signal.Signals) -> None:
    demo = subprocess.Popen([*COMMAND, "--max-tokens", "400"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert demo.stdout is not None
    while not demo.stdout.readline().startswith("prompt"):
        assert demo.poll() is None
    servers = children(demo.pid)
    assert servers, "the verifier runs in a process of its own"
    demo.send_signal(number)
    demo.communicate(timeout=60)
    assert demo.returncode == 130
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{server}").exists() for server in servers):
        assert time.monotonic() < deadline, "the verifier outlived the demo"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--prompt", " "], "--prompt is empty"),
        (["--max-tokens", "0"], "--max-tokens is 0"),
        (["--json", "/nowhere/at/all.json"], "its folder isn't there"),
        (["--nonsense"], "unrecognized arguments"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_the_work(flags: list[str], words: str) -> None:
    done = subprocess.run([*COMMAND, *flags], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and words in done.stderr


def children(parent: int) -> list[int]:
    """The processes that `parent` has started and that still run."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            found.append(int(entry))
    return found
