"""Writing an ONNX file: nodes in order, weights beside it in files of at most 1 GB."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from cloud.publish.weight_files import WeightFiles

OPSET = 21
CONTRIB = "com.microsoft"


class GraphWriter:
    """Collects one graph. Names of values are the strings that its methods return."""

    def __init__(self, folder: Path, stem: str) -> None:
        self._folder = folder
        self._stem = stem
        self._nodes: list[Any] = []
        self._constants: dict[str, Any] = {}
        self._shared: dict[int, tuple[NDArray[Any], str]] = {}
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._count = 0
        self._files = WeightFiles(folder, stem)

    def input(self, name: str, dtype: type[np.generic], shape: Sequence[int | str]) -> str:
        self._inputs.append(helper.make_tensor_value_info(name, _code(dtype), list(shape)))
        return name

    def output(self, name: str, dtype: type[np.generic], shape: Sequence[int | str]) -> None:
        self._outputs.append(helper.make_tensor_value_info(name, _code(dtype), list(shape)))

    def constant(self, values: NDArray[Any]) -> str:
        """Weights; the same array object is stored once. The graph keeps it alive until it is saved."""
        known = self._shared.get(id(values))
        if known is not None:
            return known[1]
        name = self._name("w")
        self._shared[id(values)] = (values, name)
        tensor = TensorProto(name=name, data_type=_code(values.dtype.type), dims=values.shape)
        self._files.store(tensor, values)
        self._constants[name] = tensor
        return name

    def node(self, op: str, inputs: Sequence[str], outputs: int | Sequence[str] = 1, **attributes: Any) -> list[str]:
        """One operator; `""` stands for an optional input or output that isn't used."""
        names = [self._name(op.lower()) for _ in range(outputs)] if isinstance(outputs, int) else list(outputs)
        domain = attributes.pop("domain", "")
        self._nodes.append(helper.make_node(op, list(inputs), names, domain=domain, **attributes))
        return names

    def op(self, op: str, *inputs: str, **attributes: Any) -> str:
        """One operator with one output."""
        return self.node(op, inputs, 1, **attributes)[0]

    def save(self) -> str:
        """Write the graph; its file name. The weights are written already."""
        graph = helper.make_graph(self._nodes, self._stem, self._inputs, self._outputs, list(self._constants.values()))
        imports = [helper.make_opsetid("", OPSET), helper.make_opsetid(CONTRIB, 1)]
        model = helper.make_model(graph, opset_imports=imports, ir_version=10, producer_name="edgewise")
        (self._folder / f"{self._stem}.onnx").write_bytes(model.SerializeToString())
        return f"{self._stem}.onnx"

    def _name(self, kind: str) -> str:
        self._count += 1
        return f"{kind}_{self._count}"


def _code(dtype: type[np.generic]) -> int:
    return int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
