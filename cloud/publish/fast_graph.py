"""The fast graph: grouped-query attention over one preallocated KV buffer, and linear layers in blocks of 4 bits.

Rows are kept as `[T, d]` throughout; only attention sees a batch of one. Contract, the same for both exporters:

inputs   input_ids int64 `[1, T]`; logits_from int64 `[1]`, the first row to compute logits for;
         total_length int32 `[]` = tokens cached + T, and last_index int32 `[1]` = total_length - 1;
         past_key_i, past_value_i float32 `[1, kv heads, max_context, head_dim]` for each block;
         context_ids int64 `[K]` where the head is for a part of the vocabulary: more tokens that can be drafted now
outputs  logits float32 `[1, T - logits_from, listed]`, of the tokens that the head is for, in ascending order;
         context_logits float32 `[1, T - logits_from, K]`, of `context_ids`;
         hidden float32 `[1, T, d]`, the residual at the cut before any norm;
         present_key_i, present_value_i: bind them to the buffers of the past

Source: ONNX Runtime's documentation of the com.microsoft operators.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cloud.publish.device_block import Block, Linear, Weights
from cloud.publish.graph_writer import CONTRIB, GraphWriter
from cloud.publish.q4_blocks import BLOCK, BlockWeights, stack
from cloud.publish.rotary import rotary_tables
from cloud.publish.split import DeviceHalf
from shared.bundle import Progress

GRAPH_STEM = "model"


def write_fast_graph(
    half: DeviceHalf, max_context: int, accuracy_level: int, folder: Path, progress: Progress | None = None
) -> str:
    """Write the graph and its weights into `folder`; the graph's file name.

    `accuracy_level` is MatMulNBits': 1 keeps inputs in float32, 4 rounds them to int8 in blocks of 32.
    """
    return _FastGraph(half, max_context, accuracy_level, folder).write(progress)


class _FastGraph:
    """One graph on its way into a file."""

    def __init__(self, half: DeviceHalf, max_context: int, accuracy_level: int, folder: Path) -> None:
        self._half = half
        self._max_context = max_context
        self._accuracy_level = accuracy_level
        self._graph = GraphWriter(folder, GRAPH_STEM)
        cosines, sines = rotary_tables(half.config, half.shape.head_dim, max_context)
        self._rotary = (self._graph.constant(cosines), self._graph.constant(sines))
        self._block_sums: dict[int, NDArray[np.float32]] = {}

    def write(self, progress: Progress | None) -> str:
        graph, half, shape = self._graph, self._half, self._half.shape
        ids = graph.input("input_ids", np.int64, [1, "T"])
        graph.input("logits_from", np.int64, [1])
        graph.input("total_length", np.int32, [])
        graph.input("last_index", np.int32, [1])
        if half.head_table is not None:
            graph.input("context_ids", np.int64, ["K"])
        cache = [1, shape.n_kv_heads, self._max_context, shape.head_dim]
        blocks = (*half.blocks, *half.exit_blocks)
        for i in range(len(blocks)):
            graph.input(f"past_key_{i}", np.float32, cache)
            graph.input(f"past_value_{i}", np.float32, cache)

        residual = self._rows_of(half.embedding, graph.op("Squeeze", ids, self._ints(0)))
        update = ""
        last = len(blocks) - 1
        for i, block in enumerate(blocks):
            if i == len(half.blocks):
                residual = graph.op("Add", residual, update)
                graph.node("Unsqueeze", [residual, self._ints(0)], ["hidden"])
                residual, update = self._enter_exit(residual), ""
            residual, update = self._block(i, block, residual, update, only_from="logits_from" if i == last else "")
            if progress is not None:
                progress("write the graph", i + 1, len(blocks) + 1)
        normed, _ = self._norm(residual, update, half.norm)
        graph.node("Unsqueeze", [self._project(normed, half.head), self._ints(0)], ["logits"])

        if half.head_table is not None:
            rows = self._rows_of(half.head_table, "context_ids")
            product = graph.op("Gemm", normed, rows, transB=1)
            graph.node("Unsqueeze", [product, self._ints(0)], ["context_logits"])

        graph.output("logits", np.float32, [1, "R", _outputs(half.head)])
        if half.head_table is not None:
            graph.output("context_logits", np.float32, [1, "R", "K"])
        graph.output("hidden", np.float32, [1, "T", shape.hidden_size])
        for i in range(len(blocks)):
            graph.output(f"present_key_{i}", np.float32, cache)
            graph.output(f"present_value_{i}", np.float32, cache)
        name = graph.save()
        if progress is not None:
            progress("write the graph", len(blocks) + 1, len(blocks) + 1)
        return name

    def _enter_exit(self, residual: str) -> str:
        """What the first exit block reads, `[T, d]`, from the residual at the cut."""
        graph, entry = self._graph, self._half.entry
        shift = graph.constant(entry.shift)
        if entry.matrix is None:
            return graph.op("Add", residual, shift)
        return graph.op("Add", residual, graph.op("Gemm", residual, graph.constant(entry.matrix), shift))

    def _rows_of(self, table: Weights, ids: str) -> str:
        """Rows of the embedding or the head: `[T]` to `[T, d]`. Both read the same bytes where the two are tied."""
        graph = self._graph
        if not isinstance(table, BlockWeights):
            return graph.op("Gather", graph.constant(table), ids)
        codes = graph.op("Gather", graph.constant(table.packed), ids)  # [T, d / 32, bytes in a block]
        if table.bits == 4:
            low = graph.op("BitwiseAnd", codes, graph.constant(np.array(15, np.uint8)))
            high = graph.op("BitShift", codes, graph.constant(np.array(4, np.uint8)), direction="RIGHT")
            parts = [graph.op("Unsqueeze", part, self._ints(-1)) for part in (low, high)]
            codes = graph.op("Reshape", graph.op("Concat", *parts, axis=-1), self._ints(0, -1, BLOCK))
        middle = graph.constant(np.array(2 ** (table.bits - 1), np.float32))
        values = graph.op("Sub", graph.op("Cast", codes, to=1), middle)
        values = graph.op("Mul", values, self._per_block(table.scales, ids))
        if table.offsets is not None:
            values = graph.op("Add", values, self._per_block(table.offsets, ids))
        return graph.op("Reshape", values, self._ints(-1, self._half.shape.hidden_size))

    def _per_block(self, numbers: NDArray[np.float32], ids: str) -> str:
        """One number a block for each id: `[T, d / 32, 1]`."""
        return self._graph.op("Unsqueeze", self._graph.op("Gather", self._graph.constant(numbers), ids), self._ints(-1))

    def _block(self, index: int, block: Block, residual: str, update: str, only_from: str) -> tuple[str, str]:
        """One decoder layer: its residual and what is to be added to it, `[T, d]`, or only rows from `only_from`."""
        graph, shape = self._graph, self._half.shape
        normed, residual = self._norm(residual, update, block.input_norm)
        attended = self._attend(index, block, normed)
        if only_from:
            attended, residual = (self._rows_from(value, only_from) for value in (attended, residual))
        normed, residual = self._norm(residual, self._linear(attended, [block.o]), block.ffn_norm)
        width = _outputs(block.gate.weights)
        both = self._linear(normed, [block.gate, block.up])
        gate, up = graph.node("Split", [both, self._ints(width, width)], 2, axis=-1)
        # QuickGelu with alpha 1 is x * sigmoid(x): SiLU in one operator.
        activated = graph.op("Mul", graph.op("QuickGelu", gate, domain=CONTRIB, alpha=1.0), up)
        assert shape.hidden_size == _outputs(block.down.weights)
        return residual, self._linear(activated, [block.down])

    def _attend(self, index: int, block: Block, normed: str) -> str:
        """Attention over the cache and the new rows: `[T, d]` to `[T, heads * head_dim]`."""
        graph, shape = self._graph, self._half.shape
        joined = self._linear(normed, [block.q, block.k, block.v])
        key = value = ""
        if block.q_norm is not None and block.k_norm is not None:
            sizes = [shape.n_heads * shape.head_dim, *[shape.n_kv_heads * shape.head_dim] * 2]
            joined, key, value = graph.node("Split", [joined, self._ints(*sizes)], 3, axis=-1)
            joined, key = self._head_norm(joined, block.q_norm), self._head_norm(key, block.k_norm)
            key, value = (graph.op("Unsqueeze", part, self._ints(0)) for part in (key, value))
        query = graph.op("Unsqueeze", joined, self._ints(0))
        past = [f"past_key_{index}", f"past_value_{index}"]
        attended = f"attended_{index}"
        graph.node(
            "GroupQueryAttention",
            [query, key, value, *past, "last_index", "total_length", *self._rotary],
            [attended, f"present_key_{index}", f"present_value_{index}"],
            domain=CONTRIB,
            num_heads=shape.n_heads,
            kv_num_heads=shape.n_kv_heads,
            do_rotary=1,
            rotary_interleaved=0,
        )
        return graph.op("Squeeze", attended, self._ints(0))

    def _head_norm(self, rows: str, weights: NDArray[np.float32]) -> str:
        """Normalise each head of `[T, heads * head_dim]` by itself (Qwen3)."""
        heads = self._graph.op("Reshape", rows, self._ints(0, -1, self._half.shape.head_dim))
        return self._graph.op("Reshape", self._norm(heads, "", weights)[0], self._ints(0, -1))

    def _norm(self, residual: str, update: str, weights: NDArray[np.float32]) -> tuple[str, str]:
        """RMS norm of residual + update (an empty name for none), and that sum."""
        constant = self._graph.constant(weights)
        eps = self._half.shape.eps
        if not update:
            normed = self._graph.op("SimplifiedLayerNormalization", residual, constant, axis=-1, epsilon=eps)
            return normed, residual
        outputs = [f"{update}_normed", "", "", f"{update}_sum"]
        self._graph.node(
            "SkipSimplifiedLayerNormalization", [residual, update, constant], outputs, domain=CONTRIB, epsilon=eps
        )
        return outputs[0], outputs[3]

    def _rows_from(self, rows: str, first: str) -> str:
        return self._graph.op("Slice", rows, first, self._ints(np.iinfo(np.int64).max), self._ints(0))

    def _linear(self, rows: str, layers: list[Linear]) -> str:
        """Layers with the same input in one product: `[T, inputs]` to `[T, outputs of all]`."""
        biases: NDArray[np.float32] | None = None
        if any(layer.bias is not None for layer in layers):
            biases = _join([np.zeros(_outputs(a.weights), np.float32) if a.bias is None else a.bias for a in layers])
        blocks = [layer.weights for layer in layers if isinstance(layer.weights, BlockWeights)]
        if len(blocks) == len(layers):
            if len({part.bits for part in blocks}) > 1:
                # A GGUF may keep some layers in 8 bits.
                return self._graph.op("Concat", *[self._linear(rows, [layer]) for layer in layers], axis=-1)
            product = self._project(rows, stack(blocks) if len(blocks) > 1 else blocks[0])
        else:
            product = self._project(rows, _join([a.weights for a in layers if not isinstance(a.weights, BlockWeights)]))
        return product if biases is None else self._graph.op("Add", product, self._graph.constant(biases))

    def _project(self, rows: str, weights: Weights) -> str:
        """`[T, inputs]` times the transposed weights."""
        graph = self._graph
        if not isinstance(weights, BlockWeights):
            return graph.op("Gemm", rows, graph.constant(weights), transB=1)
        inputs = [rows, graph.constant(weights.packed), graph.constant(weights.scales)]
        product = graph.op(
            "MatMulNBits",
            *inputs,
            domain=CONTRIB,
            K=weights.columns,
            N=weights.rows,
            bits=weights.bits,
            block_size=BLOCK,
            accuracy_level=self._accuracy_level,
        )
        if weights.offsets is None:
            return product
        sums = graph.op("MatMul", rows, graph.constant(self._summing(weights.columns)))  # [T, inputs / 32]
        return graph.op("Gemm", sums, graph.constant(np.ascontiguousarray(weights.offsets.T)), product)

    def _summing(self, columns: int) -> NDArray[np.float32]:
        """A matrix that adds up the inputs of each block: float32 `[columns, columns / 32]`."""
        if columns not in self._block_sums:
            self._block_sums[columns] = np.repeat(np.eye(columns // BLOCK, dtype=np.float32), BLOCK, axis=0)
        return self._block_sums[columns]

    def _ints(self, *values: int) -> str:
        return self._graph.constant(np.array(values, np.int64))


def _outputs(weights: Weights) -> int:
    return weights.rows if isinstance(weights, BlockWeights) else len(weights)


def _join(parts: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
