"""Where a model comes from: a folder, a GGUF file, a hub id or the pinned wheel, made into files on this machine.

Imports no torch, so that a server can answer before its model has loaded; `cloud.target` loads the model.
"""

import hashlib
import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from cloud.architecture import check_supported
from cloud.gguf_file import GgufFile
from cloud.gguf_model import GgufModel
from cloud.pinned_wheel import fetch, find_pinned
from cloud.safetensors_folder import read_json, weight_files
from shared.bundle import Progress, sha256_file
from shared.errors import BadInput


class SourceKind(StrEnum):
    FOLDER = "folder"
    GGUF = "gguf"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A supported model on this machine. `path` is a Hugging Face folder or a GGUF file.

    `weights_sha256` is the weight file's, or for several files the hash over their hashes in the order of their names.
    """

    kind: SourceKind
    path: Path
    name: str
    licence: str
    weights_sha256: str
    config: dict[str, Any]


def resolve_source(text: str, home: Path, progress: Progress | None = None) -> ModelSource:
    """Find what `text` names and check that it is a supported model with weights.

    `home` keeps downloads. Raises BadInput, which says what is wrong: no such file, no weights, not supported.
    """
    if not text:
        raise BadInput("no model is named; use a Hugging Face folder, a .gguf file, a hub id or smollm2-135m")
    pinned = find_pinned(text)
    if pinned is not None:
        return _gguf(fetch(pinned, home, progress), pinned.name, pinned.licence)
    path = Path(text).expanduser()
    if path.is_dir():
        return _folder(path, path.resolve().name)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise BadInput(f"there is no file {path}")
        return _gguf(path, None, None)
    if path.exists():
        raise BadInput(f"{path} is neither a Hugging Face folder nor a .gguf file")
    if re.fullmatch(r"[\w.-]+/[\w.-]+", text) and not text.startswith("."):
        return _folder(_from_hub(text, home), text.split("/")[1])
    raise BadInput(f"there is no model {text}: use a Hugging Face folder, a .gguf file, a hub id or smollm2-135m")


def _gguf(path: Path, name: str | None, licence: str | None) -> ModelSource:
    model = GgufModel(GgufFile(path))
    check_supported(model.config, str(path))
    metadata = model.file.metadata
    return ModelSource(
        SourceKind.GGUF,
        path,
        name or str(metadata.get("general.name", path.stem)),
        licence or str(metadata.get("general.license", "unknown")),
        sha256_file(path),
        model.config,
    )


def _folder(path: Path, name: str) -> ModelSource:
    config = read_json(path / "config.json")
    check_supported(config, str(path))
    hashes = [sha256_file(file) for file in weight_files(path)]
    digest = hashes[0] if len(hashes) == 1 else hashlib.sha256("\n".join(hashes).encode()).hexdigest()
    return ModelSource(SourceKind.FOLDER, path, name, _licence(path), digest, config)


def _licence(folder: Path) -> str:
    """The licence in the model card's header, or `unknown`."""
    card = folder / "README.md"
    if card.is_file():
        found = re.search(r"^license:\s*(\S+)", card.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
        if found:
            return found[1]
    return "unknown"


def _from_hub(name: str, home: Path) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    wanted = ["*.safetensors", "*.json", "*.jinja", "*.model", "README.md", "LICENSE*"]
    try:
        return Path(snapshot_download(name, cache_dir=home / "hub", allow_patterns=wanted))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise BadInput(
            f"the hub has no model {name}, or can't be reached, and there is no such folder: {reason}"
        ) from None
