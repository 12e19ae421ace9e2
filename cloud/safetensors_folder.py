"""A local Hugging Face folder: config.json and safetensors weights, read tensor by tensor."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.errors import BadInput


class SafetensorsFolder:
    """Tensors by name, read when asked for. Raises BadInput for a folder without configuration or weights."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = read_json(path / "config.json")
        self.weight_files = weight_files(path)

    def tensor_files(self) -> dict[str, Path]:
        """Which file holds each tensor. Raises BadInput for a file that is not whole."""
        from safetensors import SafetensorError, safe_open

        found: dict[str, Path] = {}
        for file in self.weight_files:
            try:
                with safe_open(file, framework="pt") as tensors:
                    found.update(dict.fromkeys(tensors.keys(), file))
            except (SafetensorError, OSError) as error:
                raise BadInput(f"{file} is not a whole safetensors file ({error}); take it again") from None
        return found

    def values(self, file: Path, name: str) -> NDArray[np.float32]:
        """One tensor as float32."""
        from safetensors import safe_open

        # Through torch, since numpy has no bfloat16.
        with safe_open(file, framework="pt") as tensors:
            values: NDArray[np.float32] = tensors.get_tensor(name).float().numpy()
        return values


def weight_files(folder: Path) -> tuple[Path, ...]:
    """The safetensors files that the folder's index names, or its only one. Raises BadInput if one is missing."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = sorted(set(read_json(index).get("weight_map", {}).values()))
    else:
        names = ["model.safetensors"]
    for name in names:
        if not (folder / name).is_file():
            raise BadInput(f"{folder} holds no weights: {name} is missing; a Hugging Face folder has it in safetensors")
    return tuple(folder / name for name in names)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; BadInput if it is missing or isn't one."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadInput(f"{path} is missing; a Hugging Face model folder has it") from None
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} can't be read as JSON ({error})") from None
    if not isinstance(record, dict):
        raise BadInput(f"{path} is not a JSON object")
    return record
