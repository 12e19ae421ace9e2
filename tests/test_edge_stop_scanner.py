"""Stop strings across the borders of pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.stop_scanner import StopScanner
from shared.errors import BadInput

# A small alphabet makes overlaps and near misses common.
LETTERS = st.text(alphabet="ab", max_size=12)
STOPS = st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=3)


def test_text_that_may_begin_a_stop_string_is_held_back() -> None:
    """Hazard 3: a stop string over three pieces, and a near miss before it."""
    scanner = StopScanner(["\nUser:"])
    assert scanner.push("one\nUse") == ("one", None)
    assert scanner.push("ful\n") == ("\nUseful", None)
    assert scanner.push("Us") == ("", None)
    assert scanner.held == "\nUs"
    assert scanner.push("er: more") == ("", "\nUser:")
    assert scanner.push("never seen") == ("", "\nUser:")
    assert scanner.flush() == ""


def test_what_was_held_back_leaves_at_the_end() -> None:
    scanner = StopScanner(["END"])
    assert scanner.push("the EN") == ("the ", None)
    assert scanner.flush() == "EN"
    assert scanner.flush() == ""


def test_the_stop_string_that_ends_first_wins_then_the_longest() -> None:
    assert StopScanner(["abc", "b"]).push("abc") == ("a", "b")
    assert StopScanner(["c", "abc"]).push("abc") == ("", "abc")


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(BadInput, match="stop string is empty"):
        StopScanner(["ok", ""])


@given(LETTERS, STOPS)
def test_the_pieces_do_not_matter(text: str, stops: list[str]) -> None:
    whole, pieces = StopScanner(stops), StopScanner(stops)
    safe, matched = whole.push(text)
    results = [pieces.push(letter) for letter in text]
    assert "".join(part for part, _ in results) + pieces.flush() == safe + whole.flush()
    assert (results[-1][1] if results else None) == matched


@given(LETTERS, STOPS)
def test_no_stop_string_ever_leaves(text: str, stops: list[str]) -> None:
    scanner = StopScanner(stops)
    out = "".join(scanner.push(letter)[0] for letter in text) + scanner.flush()
    assert not any(stop in out for stop in stops)
    assert text.startswith(out)
    if not any(stop in text for stop in stops):
        assert out == text
