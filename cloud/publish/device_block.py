"""One decoder layer of the device's graph: its weights, and how they are read by name."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cloud.publish.q4_blocks import BlockWeights

Weights = BlockWeights | NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Linear:
    """y = x W^T + bias. `weights` is `[outputs, inputs]`, as blocks or float32; `bias` float32 `[outputs]`."""

    weights: Weights
    bias: NDArray[np.float32] | None


@dataclass(frozen=True, slots=True)
class Block:
    """One decoder layer. Norms are float32 `[d]`, those of q and k `[head_dim]` (Qwen3 only)."""

    input_norm: NDArray[np.float32]
    q: Linear
    k: Linear
    v: Linear
    q_norm: NDArray[np.float32] | None
    k_norm: NDArray[np.float32] | None
    o: Linear
    ffn_norm: NDArray[np.float32]
    gate: Linear
    up: Linear
    down: Linear


class LayerTensors(Protocol):
    """Tensors by Hugging Face name."""

    def vector(self, name: str) -> NDArray[np.float32]: ...

    def optional(self, name: str) -> NDArray[np.float32] | None: ...

    def linear(self, name: str) -> Linear:
        """A linear layer, named without `.weight`."""
        ...


def block_values(block: Block) -> dict[str, NDArray[np.float32]]:
    """The layer's tensors in float32, by Hugging Face name: the inverse of `read_block`."""
    vectors = {
        "input_layernorm.weight": block.input_norm,
        "self_attn.q_norm.weight": block.q_norm,
        "self_attn.k_norm.weight": block.k_norm,
        "post_attention_layernorm.weight": block.ffn_norm,
    }
    linears = {
        "self_attn.q_proj": block.q,
        "self_attn.k_proj": block.k,
        "self_attn.v_proj": block.v,
        "self_attn.o_proj": block.o,
        "mlp.gate_proj": block.gate,
        "mlp.up_proj": block.up,
        "mlp.down_proj": block.down,
    }
    values = {name: vector for name, vector in vectors.items() if vector is not None}
    for name, linear in linears.items():
        weights = linear.weights
        values[f"{name}.weight"] = weights.values() if isinstance(weights, BlockWeights) else weights
        if linear.bias is not None:
            values[f"{name}.bias"] = linear.bias
    return values


def read_block(tensors: LayerTensors, at: str) -> Block:
    """The decoder layer whose tensors' names begin with `at`."""
    return Block(
        tensors.vector(at + "input_layernorm.weight"),
        tensors.linear(at + "self_attn.q_proj"),
        tensors.linear(at + "self_attn.k_proj"),
        tensors.linear(at + "self_attn.v_proj"),
        tensors.optional(at + "self_attn.q_norm.weight"),
        tensors.optional(at + "self_attn.k_norm.weight"),
        tensors.linear(at + "self_attn.o_proj"),
        tensors.vector(at + "post_attention_layernorm.weight"),
        tensors.linear(at + "mlp.gate_proj"),
        tensors.linear(at + "mlp.up_proj"),
        tensors.linear(at + "mlp.down_proj"),
    )
