"""Hits to passes, against closed forms and against walking a text token by token."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud.distil.score import acceptance_by_depth, pass_lengths, tokens_per_pass


def hits(text: str) -> np.ndarray:
    return np.array([letter == "x" for letter in text], bool)


@pytest.mark.parametrize(
    ("text", "draft_length", "accepted"),
    [
        ("", 4, []),
        ("....", 4, [0, 0, 0, 0]),
        ("xxxxxx", 2, [2, 2]),
        ("xx.x.x", 4, [2, 1, 1]),
        ("xxx", 4, [3]),
    ],
)
def test_a_pass_ends_at_the_first_miss_or_the_last_draft(text: str, draft_length: int, accepted: list[int]) -> None:
    assert pass_lengths(hits(text), draft_length) == accepted


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=60), min_size=1, max_size=4), st.integers(1, 8))
def test_passes_cover_each_place_once(texts: list[list[bool]], draft_length: int) -> None:
    for text in texts:
        at = 0
        for count in pass_lengths(np.array(text), draft_length):
            assert count <= draft_length and all(text[at : at + count])
            stopped = at + count
            assert count == draft_length or stopped >= len(text) or not text[stopped]
            at = stopped + 1
        assert len(text) <= at <= len(text) + 1
    rates = acceptance_by_depth([np.array(text) for text in texts], draft_length)
    assert len(rates) == draft_length and all(0 <= rate <= 1 for rate in rates)


@pytest.mark.parametrize("rate", [0.3, 0.6])
def test_independent_hits_give_the_geometric_sum(rate: float) -> None:
    """Leviathan et al., arXiv 2211.17192, equation 1."""
    answers = [np.random.default_rng(1).random(200_000) < rate]
    for length in (1, 4, 8):
        assert tokens_per_pass(answers, length) == pytest.approx((1 - rate ** (length + 1)) / (1 - rate), rel=0.01)
    assert acceptance_by_depth(answers, 3) == pytest.approx([rate] * 3, abs=0.01)
