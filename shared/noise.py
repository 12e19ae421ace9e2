"""The noise that both sides add to their logits: a pure function of (seed, position, token).

With Gumbel noise the arg-max of `logits + noise` is a sample of their softmax (the Gumbel-max trick, Gumbel 1954;
arXiv 1411.0030). Device and cloud use the same noise on their own logits, so similar distributions usually give the
same token. The hash is SplitMix64 (Steele, Lea, Flood, OOPSLA 2014); PROTOCOL.md gives it for other languages.
"""

import numpy as np
from numpy.typing import NDArray

MASK = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB


def mix64(z: int) -> int:
    """SplitMix64's finaliser: a bijection on 64-bit integers."""
    z &= MASK
    z = ((z ^ (z >> 30)) * MIX_1) & MASK
    z = ((z ^ (z >> 27)) * MIX_2) & MASK
    return z ^ (z >> 31)


def position_key(seed: int, position: int) -> int:
    """The 64-bit key of one place in the text; `position` counts the tokens before it, prompt included."""
    return mix64(seed + (position + 1) * GAMMA)


def gumbel(seed: int, position: int, tokens: NDArray[np.integer]) -> NDArray[np.float64]:
    """Standard Gumbel noise for each of `tokens` [n] at `position`: float64 [n]."""
    # 1-element arrays, not scalars: numpy warns of overflow for scalars only, and here overflow is the arithmetic.
    key = np.array([position_key(seed, position)], dtype=np.uint64)
    z = key + (tokens.astype(np.uint64) + np.uint64(1)) * np.uint64(GAMMA)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(MIX_1)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(MIX_2)
    z = z ^ (z >> np.uint64(31))
    # 52 bits plus a half are exact in float64 and never 0 or 1, so both logarithms are finite.
    uniform = ((z >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return np.asarray(-np.log(-np.log(uniform)), dtype=np.float64)
