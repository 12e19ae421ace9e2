"""The GGUF container: metadata and tensors as stored, mapped from the file and not copied.

Source: the GGUF specification (ggml repository, docs/gguf.md), versions 2 and 3, little-endian.
"""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from shared.errors import BadInput

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING = 8
_ARRAY = 9
_PLAIN = {GGMLQuantizationType.F32: np.float32, GGMLQuantizationType.F16: np.float16}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor as stored: values for F32 and F16, else ggml's blocks as uint8 `[rows, bytes in a row]`."""

    kind: GGMLQuantizationType
    data: NDArray[Any]

    def values(self) -> NDArray[np.float32]:
        """Dequantised, a copy: float32 `[rows, columns]`, or `[columns]` for a vector."""
        if self.kind in _PLAIN:
            return self.data.astype(np.float32)
        values: NDArray[np.float32] = dequantize(self.data, self.kind)
        return values


class GgufFile:
    """Metadata by key and tensors by ggml's names. Raises BadInput for a file that is not whole, or no GGUF file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, GgufTensor] = {}
        try:
            with path.open("rb") as file:
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._at = 0
            self._parse()
        except (OSError, ValueError, struct.error, KeyError, IndexError) as error:
            raise BadInput(f"{path} is not a whole GGUF file ({error}); take it again") from None

    def _parse(self) -> None:
        if self._bytes[:4] != b"GGUF":
            raise ValueError("it doesn't begin with GGUF")
        self._at = 4
        version = self._scalar("I")
        if version not in (2, 3):
            raise ValueError(f"version {version}, where 2 or 3 is needed")
        n_tensors, n_values = self._scalar("Q"), self._scalar("Q")
        for _ in range(n_values):
            key = self._string()
            self.metadata[key] = self._value(self._scalar("I"))
        infos = []
        for _ in range(n_tensors):
            name = self._string()
            shape = [self._scalar("Q") for _ in range(self._scalar("I"))]
            infos.append((name, shape, GGMLQuantizationType(self._scalar("I")), self._scalar("Q")))
        alignment = int(self.metadata.get("general.alignment", 32))
        start = -(-self._at // alignment) * alignment
        for name, shape, kind, offset in infos:
            self.tensors[name] = self._tensor(shape[::-1], kind, start + offset)

    def _tensor(self, shape: list[int], kind: GGMLQuantizationType, at: int) -> GgufTensor:
        block, size = GGML_QUANT_SIZES[kind]
        if kind in _PLAIN:
            dtype: Any = _PLAIN[kind]
        else:
            if shape[-1] % block:
                raise ValueError(f"rows of {shape[-1]} in blocks of {block}")
            dtype, shape = np.uint8, [*shape[:-1], shape[-1] // block * size]
        count = int(np.prod(shape))
        return GgufTensor(kind, np.frombuffer(self._bytes, dtype, count, at).reshape(shape))

    def _scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self._bytes, self._at)
        self._at += struct.calcsize("<" + code)
        return value

    def _string(self) -> str:
        size = self._scalar("Q")
        if size > len(self._bytes) - self._at:
            raise ValueError("a text ends beyond the file")
        self._at += size
        return self._bytes[self._at - size : self._at].decode("utf-8", errors="replace")

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            item, count = self._scalar("I"), self._scalar("Q")
            if count > len(self._bytes) - self._at:
                raise ValueError("an array ends beyond the file")
            return [self._value(item) for _ in range(count)]
        return self._scalar(_SCALARS[kind])
