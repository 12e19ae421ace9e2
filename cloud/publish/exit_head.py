"""A trained exit head as a file: entry, decoder blocks, norm, and the tokens by how often its training text has them.

Linear layers are stored as ggml's Q4_1 blocks, the numbers that the fast bundle runs on, so three blocks of a model of
576 wide take 7 MB and a build rounds nothing again. Norms and biases are float32, the entry's matrix float16.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import quantize
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from cloud.gguf_file import GgufTensor
from cloud.publish.device_block import Block, Linear, Weights, read_block
from cloud.publish.exit_entry import ExitEntry
from cloud.publish.q4_blocks import BLOCK, carry_blocks
from shared.errors import BadInput

# What tells a head's file from an entry's. It stands in the recipe, as safetensors writes keys beside each other in
# an order of chance, and equal heads must be equal files.
_KIND = {"kind": "head"}
_Q4_1 = ".q4_1"
_FREQUENT = "frequent"
_MATRIX, _SHIFT, _NORM = "entry.matrix", "entry.shift", "norm.weight"


@dataclass(frozen=True, slots=True)
class HeadRecipe:
    """Where a head comes from and what it reaches: `acceptance` is the share of places in answers held out.

    `start` is the sha256 of the head that training began at; empty for one that began at the model's own blocks.
    """

    weights_sha256: str
    cut: int
    n_blocks: int
    data: str
    seed: int
    tokens: int
    seconds: int
    learning_rate: float
    batch: int
    vocabulary: int
    longest: int
    acceptance: float
    start: str = ""


@dataclass(frozen=True, slots=True)
class TrainedHead:
    """What replaces the model's last block at the exit. `frequent` int32 lists tokens, the most frequent first."""

    entry: ExitEntry
    blocks: tuple[Block, ...]
    norm: NDArray[np.float32]
    frequent: NDArray[np.int32]
    recipe: HeadRecipe
    digest: str

    @property
    def description(self) -> str:
        count = len(self.blocks)
        return f"{count} trained block{'s' if count > 1 else ''} behind a trained affine map from the cut"

    def to_bytes(self) -> bytes:
        """What settles the head: the sha256 of its file."""
        return self.digest.encode()


class _Stored:
    """A head's tensors by name, as `read_block` asks for them."""

    def __init__(self, tensors: Mapping[str, NDArray[Any]], max_bits: int) -> None:
        self._tensors = tensors
        self._max_bits = max_bits

    def vector(self, name: str) -> NDArray[np.float32]:
        return self._tensors[name].astype(np.float32)

    def optional(self, name: str) -> NDArray[np.float32] | None:
        return self.vector(name) if name in self._tensors else None

    def linear(self, name: str) -> Linear:
        blocks = carry_blocks(GgufTensor(GGMLQuantizationType.Q4_1, self._tensors[f"{name}.weight{_Q4_1}"]))
        assert blocks is not None, "Q4_1 is always carried"
        weights: Weights = blocks if self._max_bits else blocks.values()
        return Linear(weights, self.optional(f"{name}.bias"))


def save_head(
    path: Path,
    entry: ExitEntry,
    layers: Mapping[str, NDArray[np.float32]],
    norm: NDArray[np.float32],
    frequent: NDArray[np.int32],
    recipe: HeadRecipe,
) -> None:
    """Write a head. `layers` holds the blocks' tensors by their Hugging Face names, as in `0.mlp.up_proj.weight`.

    Raises BadInput where a layer's inputs don't come in blocks of 32.
    """
    assert entry.matrix is not None, "a trained head has a trained entry"
    tensors: dict[str, NDArray[Any]] = {
        _MATRIX: np.ascontiguousarray(entry.matrix, np.float16),
        _SHIFT: np.ascontiguousarray(entry.shift, np.float32),
        _NORM: np.ascontiguousarray(norm, np.float32),
        _FREQUENT: np.ascontiguousarray(frequent, np.int32),
    }
    for name, values in layers.items():
        if values.ndim == 1:
            tensors[name] = np.ascontiguousarray(values, np.float32)
            continue
        if values.shape[1] % BLOCK:
            raise BadInput(f"{name} has {values.shape[1]} inputs; a head is stored in blocks of {BLOCK}")
        tensors[name + _Q4_1] = np.ascontiguousarray(
            quantize(np.ascontiguousarray(values, np.float32), GGMLQuantizationType.Q4_1)
        )
    save_file(tensors, path, metadata={"recipe": json.dumps(_KIND | asdict(recipe))})


def is_head(path: Path) -> bool:
    """Whether the file is a trained head; False for one of another kind, or none."""
    try:
        return _KIND.items() <= _recipe(path).items()
    except (OSError, SafetensorError, KeyError, ValueError):
        return False


def _recipe(path: Path) -> dict[str, Any]:
    with safe_open(path, "numpy") as file:
        fields: dict[str, Any] = json.loads((file.metadata() or {})["recipe"])
        return fields


def load_head(path: Path, weights_sha256: str, cut: int, width: int, max_bits: int, digest: str) -> TrainedHead:
    """Read a head for this model and cut; `digest` is the file's sha256. Raises BadInput, which says what doesn't fit.

    Linear layers come in blocks, or for a `max_bits` of 0 as float32.
    """
    try:
        fields = _recipe(path)
        recipe = HeadRecipe(**{name: value for name, value in fields.items() if name not in _KIND})
        with safe_open(path, "numpy") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}
        if recipe.weights_sha256 != weights_sha256:
            raise BadInput(f"{path} was trained for another model; train one with `edgewise-cloud distil`")
        if recipe.cut != cut:
            raise BadInput(f"{path} was trained for a cut at {recipe.cut}, not {cut}")
        if tensors[_SHIFT].shape != (width,):
            raise BadInput(f"{path} is {len(tensors[_SHIFT])} wide; the model is {width} wide")
        stored = _Stored(tensors, max_bits)
        blocks = tuple(read_block(stored, f"{i}.") for i in range(recipe.n_blocks))
        entry = ExitEntry(stored.vector(_MATRIX), stored.vector(_SHIFT))
        return TrainedHead(entry, blocks, stored.vector(_NORM), tensors[_FREQUENT], recipe, digest)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise BadInput(f"{path} is no trained exit head: {error}") from error
