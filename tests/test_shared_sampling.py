"""The sampling reference against naive implementations that share no code with it."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from shared.noise import gumbel
from shared.params import SamplingParams
from shared.sampling import choose, process

FAST = settings(max_examples=40, deadline=None)
# The 0.9999 quantiles of chi-square by degrees of freedom.
CHI2 = {3: 21.11, 7: 29.88}

# Multiples of 1/8 make ties common and sums exact.
logit_lists = st.lists(st.integers(-80, 80).map(lambda n: n / 8), min_size=1, max_size=40)


def softmax(scores: Sequence[float]) -> list[float]:
    peak = max(scores)
    weights = [math.exp(score - peak) for score in scores]
    return [weight / sum(weights) for weight in weights]


def kept(logits: Sequence[float], params: SamplingParams) -> set[int]:
    scores = process(np.asarray(logits), params)
    return {index for index, score in enumerate(scores) if score != -math.inf}


@FAST
@given(logit_lists, st.floats(0.05, 10))
def test_temperature_divides(logits: list[float], temperature: float) -> None:
    scores = process(np.asarray(logits, dtype=np.float32), SamplingParams(temperature=temperature))
    assert scores.tolist() == [logit / temperature for logit in logits]


@FAST
@given(logit_lists, st.integers(0, 50))
def test_top_k_keeps_the_k_best_and_all_that_tie_with_the_last(logits: list[float], k: int) -> None:
    expected = set(range(len(logits)))
    if 0 < k < len(logits):
        kth = sorted(logits, reverse=True)[k - 1]
        expected = {index for index, logit in enumerate(logits) if logit >= kth}
    assert kept(logits, SamplingParams(temperature=1, top_k=k)) == expected


def test_top_k_ties_are_kept_together() -> None:
    assert kept([1, 3, 2, 2, 2, 0], SamplingParams(temperature=1, top_k=2)) == {1, 2, 3, 4}


@FAST
@given(logit_lists, st.floats(0.01, 0.999))
def test_top_p_keeps_the_smallest_set_that_reaches_p(logits: list[float], top_p: float) -> None:
    law = softmax(logits)
    mass, floor = 0.0, -math.inf
    for logit, share in sorted(zip(logits, law, strict=True), reverse=True):
        mass += share
        # At the border itself the rounding of the sum decides.
        assume(abs(mass - top_p) > 1e-9)
        if mass >= top_p:
            floor = logit
            break
    expected = {index for index, logit in enumerate(logits) if logit >= floor}
    assert kept(logits, SamplingParams(temperature=1, top_p=top_p)) == expected


@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.9, 0.99, 0.999999])
def test_top_p_on_a_whole_vocabulary(top_p: float) -> None:
    """The nucleus found without sorting everything is that of the full sort."""
    logits = np.random.default_rng(4).standard_normal(49_152) * 4
    order = np.argsort(-logits)
    law = np.exp(logits[order] - logits.max())
    reached = int(np.searchsorted(np.cumsum(law / law.sum()), top_p))
    assert kept(logits.tolist(), SamplingParams(temperature=1, top_p=top_p)) == set(order[: reached + 1].tolist())


def test_top_p_that_nothing_but_rounding_separates_from_1_keeps_the_likely() -> None:
    logits = [0.0] * 3 + [-1000.0]
    assert {0, 1, 2} <= kept(logits, SamplingParams(temperature=1, top_p=1 - 2**-53))


@FAST
@given(logit_lists, st.floats(0.001, 0.99))
def test_min_p_is_a_share_of_the_best(logits: list[float], min_p: float) -> None:
    law = softmax(logits)
    assume(all(abs(share / max(law) - min_p) > 1e-9 for share in law))
    expected = {index for index, share in enumerate(law) if share >= min_p * max(law)}
    assert kept(logits, SamplingParams(temperature=1, min_p=min_p)) == expected


@FAST
@given(
    logits=st.lists(st.integers(-80, 80).map(lambda n: n / 8), min_size=6, max_size=6),
    prompt=st.lists(st.integers(0, 5), max_size=6),
    answer=st.lists(st.integers(0, 5), max_size=6),
    repetition=st.sampled_from([1.0, 0.5, 1.25, 2.0]),
    presence=st.sampled_from([0.0, -0.5, 0.75]),
    frequency=st.sampled_from([0.0, -0.25, 0.5]),
)
def test_penalties(
    logits: list[float],
    prompt: list[int],
    answer: list[int],
    repetition: float,
    presence: float,
    frequency: float,
) -> None:
    """Hazard 18: repetition counts prompt and answer, presence and frequency the answer only."""
    expected = []
    for token, logit in enumerate(logits):
        score = logit
        if token in prompt + answer:
            score = score / repetition if score > 0 else score * repetition
        if token in answer:
            score -= presence + frequency * answer.count(token)
        expected.append(score)
    params = SamplingParams(
        repetition_penalty=repetition, presence_penalty=presence, frequency_penalty=frequency, temperature=0
    )
    scores = process(np.asarray(logits), params, prompt + answer, len(prompt))
    assert scores == pytest.approx(expected, abs=1e-12)
    assert choose(np.asarray(logits), params, 9, prompt + answer, len(prompt)) == int(np.argmax(scores))


def test_the_order_of_processors() -> None:
    """Penalty, temperature, top-k, top-p, min-p: each step sees what the one before it left."""
    logits = np.log([0.4, 0.3, 0.2, 0.1])
    # The penalty puts token 0 last; top-k then drops it; of what remains, top-p drops the third.
    params = SamplingParams(temperature=1, top_k=3, top_p=0.7, presence_penalty=2)
    scores = process(logits, params, [1, 0], prompt_len=1)
    assert np.isfinite(scores).tolist() == [False, True, True, False]


def test_greedy_takes_the_smallest_id_of_equals_and_no_noise() -> None:
    logits = np.asarray([1.0, 3.0, 3.0, 2.0], dtype=np.float32)
    assert {choose(logits, SamplingParams(seed=seed), seed) for seed in range(50)} == {1}


def test_the_choice_is_the_arg_max_of_scores_and_noise_at_that_place() -> None:
    logits = np.random.default_rng(0).standard_normal(64)
    for position in range(40):
        params = SamplingParams(seed=9, temperature=0.7)
        expected = int(np.argmax(logits / 0.7 + gumbel(9, position, np.arange(64))))
        assert choose(logits, params, position) == expected


def test_a_token_keeps_its_own_noise_when_others_are_removed() -> None:
    """The device and the cloud may remove different tokens and must still meet on the others."""
    logits = np.random.default_rng(1).standard_normal(64)
    best = np.sort(np.argsort(-logits)[:10])
    for position in range(40):
        params = SamplingParams(seed=9, temperature=2, top_k=10)
        expected = best[np.argmax(logits[best] / 2 + gumbel(9, position, best))]
        assert choose(logits, params, position) == expected


def test_what_was_removed_is_never_chosen() -> None:
    logits = np.zeros(8)
    logits[3:] = -0.001
    assert {choose(logits, SamplingParams(temperature=5, top_k=3), position) for position in range(300)} == {0, 1, 2}


def test_logits_are_not_changed_in_place() -> None:
    logits = np.asarray([1.0, 2.0, 3.0])
    choose(logits, SamplingParams(temperature=0.5, top_k=1, repetition_penalty=2), 3, [0, 1, 2], 1)
    assert logits.tolist() == [1.0, 2.0, 3.0]


def chi_square(law: NDArray[np.float64], params: SamplingParams, logits: NDArray[np.float64]) -> float:
    draws = 4_000
    counts = np.bincount([choose(logits, params, position) for position in range(draws)], minlength=law.size)
    assert not counts[law == 0].any()
    inside = law > 0
    return float(((counts[inside] - draws * law[inside]) ** 2 / (draws * law[inside])).sum())


def test_the_law_with_temperature() -> None:
    """Hazard 6: what is drawn follows the softmax of the processed logits."""
    logits = np.asarray([1.0, 0.4, 0.0, -0.3, -1.0, 2.0, 0.3, 1.4])
    law = np.asarray(softmax((logits / 0.8).tolist()))
    assert chi_square(law, SamplingParams(seed=21, temperature=0.8), logits) < CHI2[7]


def test_the_law_with_temperature_and_top_p() -> None:
    """Hazard 6: after top-p the rest is renormalised and nothing else comes."""
    logits = np.log([0.05, 0.3, 0.1, 0.25, 0.2, 0.04, 0.03, 0.03])
    law = np.asarray([0, 0.3, 0.1, 0.25, 0.2, 0, 0, 0]) / 0.85
    assert chi_square(law, SamplingParams(seed=22, temperature=1, top_p=0.84), logits) < CHI2[3]
