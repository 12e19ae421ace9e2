"""The text of an answer, in step with its committed tokens."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.answer_text import AnswerText
from edge.detokenizer import Detokenizer
from edge.token_bytes import TokenBytes
from shared.errors import BadInput
from tests.byte_tokenizer import byte_table

BYTES = SimpleNamespace(table=byte_table(special=["<|im_end|>"]))
WORDS = SimpleNamespace(table=TokenBytes((b"one", b" two", b" three", b"\nUs", b"er: x", b"!"), frozenset()))


def test_committed_text_grows_and_the_rest_is_provisional() -> None:
    text = AnswerText(WORDS)
    assert text.extend([0]) is None
    assert (text.text, text.provisional([1, 2])) == ("one", " two three")
    assert text.extend([0, 5]) is None
    assert (text.text, text.provisional([])) == ("one!", "")
    assert text.finish() == "one!"


def test_a_stop_string_trims_text_and_tokens_together() -> None:
    """Hazard 3: the stop string begins inside no token, so the tokens that hold it are not kept."""
    text = AnswerText(WORDS, ["\nUser:"])
    assert text.extend([0, 1, 3]) is None
    assert text.text == "one two"
    assert text.extend([0, 1, 3, 4, 2, 2]) == 2
    assert text.text == text.finish() == "one two"
    assert text.provisional([0]) == ""
    assert text.extend([0, 1]) == 2


def test_a_token_that_reaches_into_the_stop_string_is_kept_and_its_text_trimmed() -> None:
    text = AnswerText(WORDS, ["o th"])
    assert text.extend([0, 1, 2, 5]) == 2
    assert text.finish() == "one tw"


def test_a_stop_string_at_the_very_beginning_keeps_nothing() -> None:
    text = AnswerText(WORDS, ["one"])
    assert text.extend([0, 1]) == 0
    assert text.finish() == ""


def test_a_stop_string_in_drafted_tokens_is_seen_and_not_remembered() -> None:
    text = AnswerText(WORDS, ["\nUser:"])
    text.extend([0])
    assert text.stop_in([1, 3]) is None
    assert text.stop_in([1, 3, 4]) == 2
    assert text.provisional([1, 3, 4]) == " two"
    assert text.stop_in([1]) is None
    assert text.extend([0, 2]) is None
    assert text.finish() == "one three"


def test_held_back_text_leaves_when_the_answer_ends() -> None:
    text = AnswerText(WORDS, ["\nUser:"])
    text.extend([0, 3])
    assert text.text == "one"
    assert text.provisional([]) == "\nUs"
    assert text.finish() == text.finish() == "one\nUs"


def test_an_unfinished_character_ends_as_a_replacement() -> None:
    """Hazard 4: an answer that ends at its token limit in the middle of a character."""
    text = AnswerText(BYTES)
    text.extend([*b"a", 0xE6, 0x97])
    assert text.text == "a"
    assert text.finish() == "a�"


def test_runs_cut_the_text_where_the_tokens_end() -> None:
    text = AnswerText(BYTES)
    text.extend(list("aé日b".encode()))
    # The first byte of é was drafted and its second came from the cloud, which completed it.
    assert text.runs([("draft", 2), ("cloud", 1), ("draft", 4)]) == [("draft", "a"), ("cloud", "é"), ("draft", "日b")]
    assert text.runs([]) == []


def test_runs_hold_nothing_that_is_held_back() -> None:
    text = AnswerText(WORDS, ["\nUser:"])
    text.extend([0, 3])
    assert text.runs([("draft", 1), ("cloud", 1)]) == [("draft", "one")]
    text.finish()
    assert text.runs([("draft", 1), ("cloud", 1)]) == [("draft", "one"), ("cloud", "\nUs")]


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(BadInput, match="empty"):
        AnswerText(WORDS, [""])


@given(
    st.lists(st.integers(0, 5), max_size=20),
    st.lists(st.sampled_from(["o t", "!", "\nUser", "e", "three!"]), max_size=2),
    st.integers(1, 5),
)
def test_text_tokens_and_stop_strings_agree(tokens: list[int], stops: list[str], step: int) -> None:
    """Hazard 3: however the commits fall, the kept tokens are the fewest whose text holds the trimmed one."""
    text = AnswerText(WORDS, stops)
    keep = None
    for end in range(step, len(tokens) + step, step):
        before = text.text
        keep = text.extend(tokens[:end])
        assert text.text.startswith(before)
    detokenizer = Detokenizer(WORDS.table)
    whole = detokenizer.text_of(tokens)
    if keep is None:
        assert text.finish() == whole and not any(stop in whole for stop in stops)
        return
    final = text.finish()
    assert detokenizer.text_of(tokens[:keep]).startswith(final)
    assert keep == 0 or not detokenizer.text_of(tokens[: keep - 1]).startswith(final)
    assert any(whole[len(final) :].startswith(stop) for stop in stops)
    assert AnswerText(WORDS, stops).stop_in(tokens) == keep
    assert "".join(piece for _, piece in text.runs([("draft", keep)])) == final
