"""How residuals at the cut travel: row-major little-endian fp32 or fp16 (PROTOCOL.md, "Hidden states").

Residuals of real models can pass fp16's range (hazard: overflow becomes NaN and every later token is wrong), so both
ends check that all values are finite.
"""

import numpy as np
from numpy.typing import NDArray

from shared.errors import BadInput, Code, PeerError

DTYPES: dict[str, np.dtype[np.floating]] = {"fp32": np.dtype("<f4"), "fp16": np.dtype("<f2")}


def bytes_per_row(codec: str, width: int) -> int:
    """Bytes that one row of `width` values takes."""
    return DTYPES[codec].itemsize * width


def encode_rows(rows: NDArray[np.float32], codec: str) -> bytes:
    """Encode `rows` [n, d].

    Raises BadInput when a value isn't finite in this codec.
    """
    with np.errstate(over="ignore"):
        encoded = rows.astype(DTYPES[codec])
    if not np.isfinite(encoded).all():
        peak = float(np.abs(rows).max())
        raise BadInput(f"a hidden state of magnitude {peak:.4g} has no finite value in {codec}; use fp32")
    return encoded.tobytes()


def decode_rows(data: bytes, codec: str, width: int) -> NDArray[np.float32]:
    """Decode to float32 [n, width].

    Raises PeerError (bad_hidden) for an unknown codec, a length that is no whole number of rows, or a value that
    isn't finite.
    """
    if codec not in DTYPES:
        raise PeerError(Code.BAD_HIDDEN, f"unknown hidden codec {codec!r}; known: {', '.join(DTYPES)}")
    size = bytes_per_row(codec, width)
    if len(data) % size:
        raise PeerError(Code.BAD_HIDDEN, f"{len(data)} bytes of {codec} are no whole rows of {size} bytes")
    rows = np.frombuffer(data, dtype=DTYPES[codec]).reshape(-1, width).astype(np.float32)
    if not np.isfinite(rows).all():
        raise PeerError(Code.BAD_HIDDEN, "the hidden states hold values that are not finite")
    return rows
