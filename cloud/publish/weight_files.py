"""ONNX weights beside the graph, in files of at most 1 GB, as phones and browsers need them."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

MAX_WEIGHT_FILE = 1_000_000_000
# ONNX asks that external data begin on a page, so that a runtime may map it.
_ALIGNMENT = 4096
# Smaller tensors stay in the graph.
_SMALL = 1024


class WeightFiles:
    """Appends tensors to `STEM.0.weights`, `STEM.1.weights` and so on in one folder."""

    def __init__(self, folder: Path, stem: str, limit: int = MAX_WEIGHT_FILE) -> None:
        self._folder = folder
        self._stem = stem
        self._limit = limit
        self._at = 0
        self._count = 0

    def store(self, tensor: Any, values: NDArray[Any]) -> None:
        """Put the values of `tensor`, a TensorProto, into a file, or into the graph if they are few."""
        raw = np.ascontiguousarray(values)
        if raw.nbytes <= _SMALL:
            tensor.raw_data = raw.tobytes()
            return
        begin = -(-self._at // _ALIGNMENT) * _ALIGNMENT
        if self._count == 0 or begin + raw.nbytes > self._limit:
            self._count += 1
            begin = self._at = 0
        name = f"{self._stem}.{self._count - 1}.weights"
        with (self._folder / name).open("ab") as file:
            file.write(bytes(begin - self._at))
            file.write(raw.data)
        self._at = begin + raw.nbytes
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in {"location": name, "offset": str(begin), "length": str(raw.nbytes)}.items():
            tensor.external_data.add(key=key, value=value)

    def move_out(self, model: Any) -> None:
        """Move all weights of a loaded ModelProto into files."""
        for tensor in model.graph.initializer:
            values = numpy_helper.to_array(tensor)
            tensor.ClearField("raw_data")
            for field in ("float_data", "int32_data", "int64_data", "double_data", "uint64_data"):
                tensor.ClearField(field)
            self.store(tensor, values)
