"""The shared noise: the published generator, and the law that it gives."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shared.noise import GAMMA, MASK, gumbel, mix64, position_key

# The output of splitmix64.c (Vigna, prng.di.unimi.it) for the seed 1234567.
PUBLISHED = [
    6457827717110365317,
    3203168211198807973,
    9817491932198370423,
    4593380528125082431,
    16408922859458223821,
]
VOCAB = 7
# The 0.9999 quantile of chi-square with 6 and 36 degrees of freedom.
CHI2_6 = 27.86
CHI2_36 = 77.09


def unmix64(z: int) -> int:
    """The inverse of mix64, to build tokens' hashes with chosen bits."""
    z ^= (z >> 31) ^ (z >> 62)
    z = z * pow(0x94D049BB133111EB, -1, 1 << 64) & MASK
    z ^= (z >> 27) ^ (z >> 54)
    z = z * pow(0xBF58476D1CE4E5B9, -1, 1 << 64) & MASK
    return z ^ (z >> 30) ^ (z >> 60)


def scalar_gumbel(seed: int, position: int, token: int) -> float:
    """The definition in PROTOCOL.md, one number at a time."""
    bits = mix64(position_key(seed, position) + (token + 1) * GAMMA)
    uniform = ((bits >> 12) + 0.5) / 2**52
    return float(-np.log(-np.log(uniform)))


def chi_square(counts: NDArray[Any], expected: NDArray[np.float64]) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


def test_mix64_gives_the_published_splitmix64_stream() -> None:
    assert [mix64(1234567 + (i + 1) * GAMMA) for i in range(5)] == PUBLISHED
    assert mix64(GAMMA) == 16294208416658607535  # seed 0


def test_a_key_is_the_stream_of_its_seed() -> None:
    assert [position_key(1234567, position) for position in range(5)] == PUBLISHED


@pytest.mark.parametrize("seed", [0, 1, 2**32, 2**63, 2**64 - 1])
@pytest.mark.parametrize("position", [0, 1, 4095, 2**31 - 1])
def test_vectorised_equals_scalar(seed: int, position: int) -> None:
    tokens = np.asarray([0, 1, 2, 49151, 2**31 - 1])
    expected = [scalar_gumbel(seed, position, int(token)) for token in tokens]
    assert gumbel(seed, position, tokens).tolist() == expected


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32])
def test_the_dtype_of_the_ids_does_not_matter(dtype: type[np.integer]) -> None:
    tokens = np.arange(100)
    assert np.array_equal(gumbel(5, 6, tokens.astype(dtype)), gumbel(5, 6, tokens))


@pytest.mark.parametrize("bits", [0, 1, MASK, 1 << 63, (1 << 12) - 1, MASK - ((1 << 12) - 1)])
def test_extreme_bits_give_finite_noise(bits: int) -> None:
    """Bits of all 0 or all 1 must reach neither log(0) nor log(1) (hazard 6: a token would win or lose always)."""
    wanted = unmix64(bits)
    # The seed whose place has the key that leads token 0 to these bits.
    seed = (unmix64((wanted - GAMMA) & MASK) - GAMMA) & MASK
    assert mix64(position_key(seed, 0) + GAMMA) == bits
    noise = gumbel(seed, 0, np.asarray([0]))
    assert np.isfinite(noise).all()
    assert noise[0] == scalar_gumbel(seed, 0, 0)


def test_no_token_of_a_large_vocabulary_shares_its_noise() -> None:
    noise = gumbel(3, 17, np.arange(200_000))
    assert np.unique(noise).size == noise.size


def test_the_noise_has_the_moments_of_gumbel() -> None:
    noise = gumbel(1, 2, np.arange(400_000))
    assert abs(noise.mean() - np.euler_gamma) < 0.01
    assert abs(noise.var() - np.pi**2 / 6) < 0.02


def winners(seed: int, positions: int, logits: NDArray[np.float64]) -> NDArray[np.int64]:
    tokens = np.arange(logits.size)
    return np.asarray([np.argmax(logits + gumbel(seed, position, tokens)) for position in range(positions)])


def test_the_arg_max_follows_the_softmax_over_positions() -> None:
    """Hazard 6: the law of what is drawn, not only its extremes."""
    logits = np.asarray([1.0, 0.5, 0.0, -0.5, -1.0, 2.0, 0.25])
    law = np.exp(logits) / np.exp(logits).sum()
    drawn = winners(7, 6_000, logits)
    assert chi_square(np.bincount(drawn, minlength=VOCAB), drawn.size * law) < CHI2_6


def test_the_arg_max_follows_the_softmax_over_seeds() -> None:
    """Hazard 6: small consecutive seeds, as people choose them, at one place."""
    logits = np.asarray([1.0, 0.5, 0.0, -0.5, -1.0, 2.0, 0.25])
    law = np.exp(logits) / np.exp(logits).sum()
    tokens = np.arange(VOCAB)
    drawn = np.asarray([np.argmax(logits + gumbel(seed, 40, tokens)) for seed in range(6_000)])
    assert chi_square(np.bincount(drawn, minlength=VOCAB), drawn.size * law) < CHI2_6


@pytest.mark.parametrize("step", [1, 2, 16])
def test_places_are_independent_of_each_other(step: int) -> None:
    """Pairs of draws at a distance are spread evenly over all pairs of tokens."""
    drawn = winners(13, 4_000, np.zeros(VOCAB))
    pairs = np.zeros((VOCAB, VOCAB))
    np.add.at(pairs, (drawn[:-step], drawn[step:]), 1)
    rows, columns = pairs.sum(axis=1), pairs.sum(axis=0)
    assert chi_square(pairs, np.outer(rows, columns) / pairs.sum()) < CHI2_36


def test_seeds_are_independent_of_each_other() -> None:
    first, second = winners(1, 4_000, np.zeros(VOCAB)), winners(2, 4_000, np.zeros(VOCAB))
    pairs = np.zeros((VOCAB, VOCAB))
    np.add.at(pairs, (first, second), 1)
    rows, columns = pairs.sum(axis=1), pairs.sum(axis=0)
    assert chi_square(pairs, np.outer(rows, columns) / pairs.sum()) < CHI2_36
