"""Blocks of a GGUF in the operator's layout: the same numbers; and rounding where there are none."""

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from cloud.gguf_file import GgufTensor
from cloud.publish.q4_blocks import carry_blocks, quantise, stack
from shared.errors import BadInput

WEIGHTS = np.random.default_rng(0).standard_normal((48, 96)).astype(np.float32)


@pytest.mark.parametrize("kind", [GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q8_0])
def test_blocks_are_carried_exactly(kind: GGMLQuantizationType) -> None:
    raw = quantize(WEIGHTS, kind)
    blocks = carry_blocks(GgufTensor(kind, raw))
    assert blocks is not None
    assert (blocks.rows, blocks.columns) == WEIGHTS.shape
    # Scale and minimum are float16, so the offset is exact and only its last addition in float32 rounds.
    np.testing.assert_allclose(blocks.values(), dequantize(raw, kind), rtol=0, atol=5e-7)


def test_other_types_are_not_carried() -> None:
    assert carry_blocks(GgufTensor(GGMLQuantizationType.F32, WEIGHTS)) is None


@pytest.mark.parametrize("kind", [GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q4_1])
def test_rounding_stays_within_a_step(kind: GGMLQuantizationType) -> None:
    blocks = quantise(WEIGHTS, kind)
    error = np.abs(blocks.values() - WEIGHTS).reshape(48, 3, 32)
    # Half a step within the range; Q4_0's range is one step short on one side.
    assert (error <= 1.01 * np.abs(blocks.scales[..., None])).all()
    assert np.mean(error) < 0.3 * np.mean(np.abs(blocks.scales))


def test_stack_keeps_each_part() -> None:
    kind = GGMLQuantizationType.Q4_0
    plain = carry_blocks(GgufTensor(kind, quantize(WEIGHTS, kind)))
    assert plain is not None and plain.offsets is None
    offset = quantise(WEIGHTS[:16], GGMLQuantizationType.Q4_1)
    joined = stack([plain, offset])
    np.testing.assert_array_equal(joined.values(), np.concatenate([plain.values(), offset.values()]))


def test_columns_that_are_no_blocks_are_refused() -> None:
    kind = GGMLQuantizationType.Q4_0
    with pytest.raises(BadInput, match="40 inputs.*--weights fp32"):
        quantise(np.zeros((2, 40), np.float32), kind)
