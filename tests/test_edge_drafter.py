"""Drafting keeps one cache on the wanted tokens, whatever was accepted."""

import pytest

from edge.drafter import Drafter
from shared.params import SamplingParams
from tests.fakes import ToyDraftModel, ToyModel

TRUNK = [5, 6, 7]


def drafter(keep_hidden: bool = False) -> tuple[Drafter, ToyDraftModel]:
    model = ToyDraftModel(ToyModel(1), wrong=0.0)
    return Drafter(model, SamplingParams(), len(TRUNK), keep_hidden), model


@pytest.mark.parametrize(
    ("trunk", "tail"),
    [([5, 6, 7, 8, 9, 10], []), ([5, 6, 7, 8, 20], []), ([5, 6, 7, 20], []), ([5, 6, 7, 8, 9], [11])],
    ids=["all and a bonus", "some", "none", "another tail"],
)
def test_the_cache_follows_what_was_accepted(trunk: list[int], tail: list[int]) -> None:
    """Hazards 1 and 2: the cache, its length and the next draft are those of a fresh start."""
    made, model = drafter()
    made.sync(TRUNK, [])
    made.sync(TRUNK, [8])
    made.sync(TRUNK, [8, 9])
    made.sync(trunk, tail)
    assert model.tokens == trunk + tail
    fresh, _ = drafter()
    fresh.sync(trunk, tail)
    assert made.next_token() == fresh.next_token()


def test_going_back_feeds_the_last_row_again() -> None:
    made, model = drafter()
    made.sync(TRUNK, [])
    first = made.next_token()
    made.sync(TRUNK, [first])
    made.sync(TRUNK, [])
    assert made.next_token() == first and model.length == len(TRUNK)


def test_an_unchanged_text_costs_no_pass() -> None:
    made, model = drafter()
    made.sync(TRUNK, [8])
    calls: list[object] = []
    model.forward = calls.append  # type: ignore[assignment, method-assign]
    made.sync([*TRUNK, 8], [])
    assert calls == []


def test_a_new_answer_starts_with_an_empty_cache() -> None:
    """Hazard 8: the next answer never sees the last one's tokens."""
    _, model = drafter()
    model.forward([1, 2, 3])
    Drafter(model, SamplingParams(), 1, keep_hidden=False)
    assert model.length == 0


def test_rows_at_the_cut_follow_a_rollback() -> None:
    """Hazard 17: rows of rejected drafts are replaced by the true ones."""
    made, _ = drafter(keep_hidden=True)
    made.sync(TRUNK, [8, 9])
    made.sync([*TRUNK, 20], [21])
    assert made.rows(2, 5)[:, 0].tolist() == [7.25, 20.25, 21.25]
