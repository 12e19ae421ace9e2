"""Residuals on the wire: exact bytes, and no value that isn't finite at either end."""

import math
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shared.errors import BadInput, Code, PeerError
from shared.hidden_codec import DTYPES, bytes_per_row, decode_rows, encode_rows
from shared.params import Limits

FAST = settings(max_examples=50, deadline=None)
shapes = st.tuples(st.integers(0, 5), st.integers(1, 9))


@FAST
@given(hnp.arrays(np.float32, shapes, elements=st.floats(allow_nan=False, allow_infinity=False, width=32)))
def test_fp32_is_exact(rows: np.ndarray) -> None:
    again = decode_rows(encode_rows(rows, "fp32"), "fp32", rows.shape[1])
    assert again.dtype == np.float32 and again.shape == rows.shape
    assert np.array_equal(again, rows)


@FAST
@given(hnp.arrays(np.float32, shapes, elements=st.floats(-65504, 65504, width=32)))
def test_fp16_rounds_once(rows: np.ndarray) -> None:
    data = encode_rows(rows, "fp16")
    again = decode_rows(data, "fp16", rows.shape[1])
    assert again.dtype == np.float32 and again.shape == rows.shape
    assert np.array_equal(again, rows.astype(np.float16).astype(np.float32))
    assert encode_rows(again, "fp16") == data, "what has been rounded once does not change again"


def test_the_bytes_are_little_endian_row_by_row() -> None:
    rows = np.asarray([[1.0, -2.5], [0.15625, 65504.0]], dtype=np.float32)
    values = [1.0, -2.5, 0.15625, 65504.0]
    assert encode_rows(rows, "fp32") == struct.pack("<4f", *values)
    assert encode_rows(rows, "fp16") == struct.pack("<4e", *values)
    # A transposed view must not leak its memory order.
    assert encode_rows(rows.T, "fp32") == struct.pack("<4f", 1.0, 0.15625, -2.5, 65504.0)


@pytest.mark.parametrize("codec", DTYPES)
def test_the_size_of_a_row(codec: str) -> None:
    assert len(encode_rows(np.zeros((3, 7), dtype=np.float32), codec)) == 3 * bytes_per_row(codec, 7)


def test_the_codecs_are_those_that_a_welcome_offers() -> None:
    assert set(Limits().hidden_codecs) == set(DTYPES)


@pytest.mark.parametrize("peak", [65520.0, -1e6, 3e38])
def test_overflow_of_fp16_is_caught_by_the_sender(peak: float) -> None:
    """Hazard 15: it would become infinite, then NaN, then the same token for ever."""
    rows = np.asarray([[0.0, peak]], dtype=np.float32)
    with pytest.raises(BadInput, match="use fp32"):
        encode_rows(rows, "fp16")
    assert len(encode_rows(rows, "fp32")) == 8


@pytest.mark.parametrize("codec", DTYPES)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_caught_at_both_ends(codec: str, value: float) -> None:
    """Hazard 15: the receiver does not rely on the sender's check."""
    rows = np.asarray([[0.0, 1.0], [value, 2.0]], dtype=np.float32)
    with pytest.raises(BadInput):
        encode_rows(rows, codec)
    with pytest.raises(PeerError, match="not finite") as caught:
        decode_rows(rows.astype(DTYPES[codec]).tobytes(), codec, 2)
    assert caught.value.code is Code.BAD_HIDDEN


@pytest.mark.parametrize(("codec", "size"), [("fp32", 13), ("fp32", 4), ("fp16", 6), ("fp16", 1)])
def test_a_part_of_a_row_is_refused(codec: str, size: int) -> None:
    with pytest.raises(PeerError, match="no whole rows") as caught:
        decode_rows(bytes(size), codec, 4)
    assert caught.value.code is Code.BAD_HIDDEN


@pytest.mark.parametrize("codec", ["bf16", "FP32", ""])
def test_an_unknown_codec_is_named(codec: str) -> None:
    with pytest.raises(PeerError, match="unknown hidden codec") as caught:
        decode_rows(b"", codec, 4)
    assert caught.value.code is Code.BAD_HIDDEN


@FAST
@given(st.binary(max_size=64), st.sampled_from(sorted(DTYPES)), st.integers(1, 8))
def test_any_bytes_are_rows_or_refused(data: bytes, codec: str, width: int) -> None:
    try:
        rows = decode_rows(data, codec, width)
    except PeerError:
        return
    assert np.isfinite(rows).all()
    assert encode_rows(rows, codec) == data
