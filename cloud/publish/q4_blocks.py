"""Weights in blocks of 32, as the MatMulNBits operator takes them, carried over from GGUF without loss.

A block holds w = scale * (q - middle) + offset with middle = 2 ** (bits - 1). MatMulNBits computes the first term with
its default zero point; the offset is one number per block and output, so its share is a small product of block sums of
the input. That keeps Q4_1 (scale and minimum) exact: with float zero points, which would say the same in one operator,
ONNX Runtime leaves its fast kernels and is some 30 times slower on a CPU.
Sources: ONNX Runtime's documentation of com.microsoft.MatMulNBits; ggml's block_q4_0, block_q4_1 and block_q8_0.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import quantize
from numpy.typing import NDArray

from cloud.gguf_file import GgufTensor
from shared.errors import BadInput

BLOCK = 32


@dataclass(frozen=True, slots=True)
class BlockWeights:
    """A linear layer's weights of `rows` outputs and `columns` inputs.

    packed: uint8 `[rows, columns / 32, 4 * bits]`, neighbours in a byte from its low bits up; scales and offsets:
    float32 `[rows, columns / 32]`. No offsets means that all are zero.
    """

    bits: int
    packed: NDArray[np.uint8]
    scales: NDArray[np.float32]
    offsets: NDArray[np.float32] | None

    @property
    def rows(self) -> int:
        return int(self.packed.shape[0])

    @property
    def columns(self) -> int:
        return int(self.packed.shape[1]) * BLOCK

    def take(self, rows: NDArray[np.int32]) -> "BlockWeights":
        """The same layer with these outputs alone, in this order."""
        offsets = None if self.offsets is None else self.offsets[rows]
        return BlockWeights(self.bits, self.packed[rows], self.scales[rows], offsets)

    def values(self) -> NDArray[np.float32]:
        """The weights they stand for: float32 `[rows, columns]`."""
        codes = _unpack(self.packed) if self.bits == 4 else self.packed
        values: NDArray[np.float32] = (codes.astype(np.float32) - 2 ** (self.bits - 1)) * self.scales[..., None]
        if self.offsets is not None:
            values += self.offsets[..., None]
        return values.reshape(self.rows, self.columns)


def carry_blocks(tensor: GgufTensor) -> BlockWeights | None:
    """The same weights in MatMulNBits' layout: Q4_0, Q4_1 and Q8_0 exactly; None for another type."""
    raw = tensor.data
    match tensor.kind:
        case GGMLQuantizationType.Q4_1:
            blocks = raw.reshape(len(raw), -1, 20)
            scales, minima = _halves(blocks, 0), _halves(blocks, 2)
            return BlockWeights(4, _repack(blocks[..., 4:]), scales, minima + 8 * scales)
        case GGMLQuantizationType.Q4_0:
            blocks = raw.reshape(len(raw), -1, 18)
            return BlockWeights(4, _repack(blocks[..., 2:]), _halves(blocks, 0), None)
        case GGMLQuantizationType.Q8_0:
            blocks = raw.reshape(len(raw), -1, 34)
            # Two's complement plus 128 is the same byte with its top bit turned over.
            return BlockWeights(8, blocks[..., 2:] ^ np.uint8(0x80), _halves(blocks, 0), None)
    return None


def quantise(values: NDArray[np.float32], kind: GGMLQuantizationType) -> BlockWeights:
    """Round float32 `[rows, columns]` as ggml does: Q4_1 keeps more of the weights, Q4_0 has no offsets to add up.

    Raises BadInput where the columns don't come in blocks of 32.
    """
    if values.shape[1] % BLOCK:
        raise BadInput(
            f"a layer with {values.shape[1]} inputs can't be cut into blocks of {BLOCK}; build with --weights fp32"
        )
    blocks = carry_blocks(GgufTensor(kind, quantize(values, kind)))
    assert blocks is not None, f"{kind.name} is not carried"
    return blocks


def stack(parts: list[BlockWeights]) -> BlockWeights:
    """Several layers with the same input as one, outputs one after the other. All need the same number of bits."""
    offsets = None
    if any(part.offsets is not None for part in parts):
        offsets = np.concatenate([np.zeros_like(p.scales) if p.offsets is None else p.offsets for p in parts])
    packed = np.concatenate([part.packed for part in parts])
    return BlockWeights(parts[0].bits, packed, np.concatenate([part.scales for part in parts]), offsets)


def _halves(blocks: NDArray[np.uint8], at: int) -> NDArray[np.float32]:
    """The float16 at byte `at` of each block: float32 `[rows, blocks]`."""
    values: NDArray[Any] = np.ascontiguousarray(blocks[..., at : at + 2]).view(np.float16)[..., 0]
    return values.astype(np.float32)


def _repack(nibbles: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """From ggml's order, where byte j holds weights j and j + 16, to neighbours in a byte."""
    return _pack(np.concatenate([nibbles & 0x0F, nibbles >> 4], axis=-1))


def _pack(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return codes[..., 0::2] | (codes[..., 1::2] << np.uint8(4))


def _unpack(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.stack([packed & 0x0F, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1)
