"""The torch twin against the numpy reference: the same logits must give the same tokens."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from cloud import torch_sampling
from shared import noise, sampling
from shared.params import SamplingParams

PLAIN = SamplingParams(seed=3, temperature=0.8)
CASES = [
    SamplingParams(),
    PLAIN,
    replace(PLAIN, seed=2**64 - 1, temperature=1.7),
    replace(PLAIN, top_k=1),
    replace(PLAIN, top_k=20),
    replace(PLAIN, top_k=10**6),
    replace(PLAIN, top_p=0.9),
    replace(PLAIN, top_p=1e-9),
    replace(PLAIN, min_p=0.1),
    replace(PLAIN, top_k=30, top_p=0.8, min_p=0.02),
    SamplingParams(repetition_penalty=1.3),
    SamplingParams(presence_penalty=0.9, frequency_penalty=-0.4),
    replace(PLAIN, repetition_penalty=0.8, presence_penalty=-1.0, frequency_penalty=0.5, top_k=50, top_p=0.95),
]


def by_reference(
    logits: NDArray[np.float32], params: SamplingParams, position: int, history: list[int], prompt_len: int
) -> list[int]:
    return [
        sampling.choose(row, params, position + index, history[: position + index], prompt_len)
        for index, row in enumerate(logits)
    ]


@pytest.mark.parametrize("params", CASES, ids=range(len(CASES)))
@pytest.mark.parametrize("vocab", [7, 1000])
def test_the_same_logits_give_the_same_tokens(params: SamplingParams, vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    for position in (1, 50, 2000):
        logits = (rng.standard_normal((9, vocab)) * 3).astype(np.float32)
        history = rng.integers(0, vocab, position + 8).tolist()
        ours = torch_sampling.choose(torch.from_numpy(logits), params, position, history, min(10, position))
        assert ours.dtype is torch.int64
        assert ours.tolist() == by_reference(logits, params, position, history, min(10, position))


probabilities = st.floats(0.001, 1)


@settings(max_examples=80, deadline=None)
@given(
    # Multiples of 1/8 make ties common.
    st.lists(st.lists(st.integers(-40, 40).map(lambda n: n / 8), min_size=12, max_size=12), min_size=1, max_size=4),
    st.builds(
        SamplingParams,
        seed=st.integers(0, 2**64 - 1),
        temperature=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
        top_k=st.integers(0, 14),
        top_p=probabilities,
        min_p=st.floats(0, 0.9),
        repetition_penalty=st.sampled_from([1.0, 0.5, 2.0]),
        presence_penalty=st.sampled_from([0.0, 1.0]),
        frequency_penalty=st.sampled_from([0.0, -0.5]),
    ),
    st.integers(0, 2**31),
)
def test_processed_scores_agree_with_ties_and_any_parameters(
    rows: list[list[float]], params: SamplingParams, seed: int
) -> None:
    logits = np.array(rows, dtype=np.float32)
    history = np.random.default_rng(seed).integers(0, 12, 5 + len(rows)).tolist()
    ours = torch_sampling.process(torch.from_numpy(logits), params, 5, history, 3).numpy()
    for index, row in enumerate(logits):
        want = sampling.process(row, params, history[: 5 + index], 3)
        np.testing.assert_allclose(ours[index], want, rtol=1e-12)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**31 - 1))
def test_the_noise_is_the_same(seed: int, position: int) -> None:
    """int64 arithmetic stands for uint64: seeds and products beyond 2^63 are the point."""
    ours = torch_sampling.gumbel(seed, position, torch.empty(3, 40)).numpy()
    np.testing.assert_allclose(ours, noise.gumbel(seed, position, np.arange(40)), rtol=1e-12, atol=1e-12)


def test_logits_are_left_as_they_were() -> None:
    logits = torch.randn(2, 50, dtype=torch.float64)
    before = logits.clone()
    torch_sampling.choose(logits, replace(PLAIN, top_k=3, repetition_penalty=2.0), 4, [1, 2, 3, 4, 5], 2)
    assert torch.equal(logits, before)
