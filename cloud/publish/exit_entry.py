"""The way from the cut into the exit block: the residual is moved to where that block expects it.

The residual stream has a large mean that grows from layer to layer, and turns on its way; the last block is tuned to
what it meets, and fed from the cut as it is, it drafts next to nothing. A shift by the means' difference helps near the
top. An affine map, fitted by least squares on the model's own residuals, helps at every depth for one small product.
Source: Belrose et al., Eliciting Latent Predictions from Transformers with the Tuned Lens (arXiv 2303.08112).
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from shared.errors import BadInput


@dataclass(frozen=True, slots=True)
class ExitEntry:
    """What is added to the residual x `[d]` at the cut: `x @ matrix + shift`.

    matrix: float32 `[d, d]`, or None for a shift alone; shift: float32 `[d]`.
    """

    matrix: NDArray[np.float32] | None
    shift: NDArray[np.float32]

    def __post_init__(self) -> None:
        width = len(self.shift)
        assert self.matrix is None or self.matrix.shape == (width, width), "the matrix and the shift don't fit"

    @property
    def description(self) -> str:
        way = "shifted by the mean residual's way from the cut"
        if self.matrix is not None:
            way = "moved from the cut by a fitted affine map"
        return f"the model's last block, its input {way}"

    def to_bytes(self) -> bytes:
        """The numbers, for a hash that settles them."""
        return self.shift.tobytes() + (b"" if self.matrix is None else self.matrix.tobytes())


@dataclass(frozen=True, slots=True)
class EntryRecipe:
    """Where a fitted entry comes from: the model's weights, the cut, the text, and what came of it."""

    weights_sha256: str
    cut: int
    rows: int
    data: str
    longest: int
    agreement: float


def save_entry(path: Path, entry: ExitEntry, recipe: EntryRecipe) -> None:
    """Write the matrix as float16 and the shift as float32, with the recipe beside them."""
    assert entry.matrix is not None, "a shift alone is measured at every build"
    # safetensors writes an array's memory as it lies, so one in column order would come back transposed.
    tensors = {"matrix": np.ascontiguousarray(entry.matrix, np.float16), "shift": np.ascontiguousarray(entry.shift)}
    save_file(tensors, path, metadata={"recipe": json.dumps(asdict(recipe))})


def load_entry(path: Path, weights_sha256: str, cut: int, width: int) -> tuple[ExitEntry, EntryRecipe]:
    """Read an entry for this model and cut. Raises BadInput, which says what doesn't fit."""
    try:
        with safe_open(path, "numpy") as file:
            recipe = EntryRecipe(**json.loads((file.metadata() or {})["recipe"]))
            matrix, shift = (file.get_tensor(name).astype(np.float32) for name in ("matrix", "shift"))
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise BadInput(f"{path} is no fitted exit entry: {error}") from error
    if recipe.weights_sha256 != weights_sha256:
        raise BadInput(f"{path} was fitted for another model; fit one with `edgewise-cloud fit`")
    if recipe.cut != cut:
        raise BadInput(f"{path} was fitted for a cut at {recipe.cut}, not {cut}")
    if matrix.shape != (width, width) or shift.shape != (width,):
        raise BadInput(f"{path} has a matrix of {matrix.shape} and a shift of {shift.shape}; the model is {width} wide")
    return ExitEntry(matrix, shift), recipe
