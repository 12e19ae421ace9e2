"""Incremental text: whole characters only, each once, whatever the pieces."""

from hypothesis import given
from hypothesis import strategies as st

from edge.detokenizer import Detokenizer
from edge.token_bytes import TokenBytes
from tests.byte_tokenizer import byte_level_tokenizer, byte_table, table_of

TABLE = byte_table(special=["<|im_end|>"])
END = 256
TRAINED = byte_level_tokenizer(["the cat sat", "日本語日本語", "👩‍👩‍👧👩‍👩‍👧", "naïve naïve"], vocab_size=320)
TRAINED_TABLE = table_of(TRAINED)


def cut(ids: list[int], places: list[int]) -> list[list[int]]:
    """`ids` in pieces, some of them empty."""
    borders = sorted(place % (len(ids) + 1) for place in places)
    return [ids[a:b] for a, b in zip([0, *borders], [*borders, len(ids)], strict=True)]


def test_a_character_leaves_when_its_bytes_are_whole() -> None:
    """Hazard 4: an emoji over four tokens."""
    detokenizer = Detokenizer(TABLE)
    assert [detokenizer.push((byte,)) for byte in "a👋".encode()] == ["a", "", "", "", "👋"]
    assert detokenizer.flush() == ""


def test_an_unfinished_character_ends_as_a_replacement() -> None:
    detokenizer = Detokenizer(TABLE)
    assert detokenizer.push(b"ok\xe6\x97") == "ok"
    assert detokenizer.flush() == "�"
    assert detokenizer.push(b"next") == "next"


def test_special_tokens_are_skipped_unless_asked_for() -> None:
    assert Detokenizer(TABLE).text_of([*b"hi", END]) == "hi"
    assert Detokenizer(TABLE, skip_special=False).text_of([*b"hi", END]) == "hi<|im_end|>"


def test_a_skipped_token_inside_a_character_does_not_break_it() -> None:
    assert Detokenizer(TABLE).text_of([0xC3, END, 0xA9]) == "é"


@given(st.lists(st.integers(0, END)), st.lists(st.integers(0, 10**6), max_size=6))
def test_any_split_of_any_bytes_gives_the_same_text(ids: list[int], places: list[int]) -> None:
    """Hazard 4: nothing is lost, changed or sent twice, also where the bytes are no UTF-8."""
    detokenizer = Detokenizer(TABLE)
    text = "".join(detokenizer.push(piece) for piece in cut(ids, places)) + detokenizer.flush()
    expected = bytes(token for token in ids if token != END).decode("utf-8", "replace")
    assert text == expected == Detokenizer(TABLE).text_of(ids)


@given(st.text(), st.lists(st.integers(0, 10**6), max_size=6))
def test_any_text_comes_back_through_a_trained_vocabulary(text: str, places: list[int]) -> None:
    ids = TRAINED.encode(text).ids
    detokenizer = Detokenizer(TRAINED_TABLE)
    assert "".join(detokenizer.push(piece) for piece in cut(ids, places)) + detokenizer.flush() == text


@given(st.lists(st.integers(0, END)), st.lists(st.integers(0, END)))
def test_a_preview_and_a_restored_snapshot_leave_no_trace(ids: list[int], taken_back: list[int]) -> None:
    detokenizer, untouched = Detokenizer(TABLE), Detokenizer(TABLE)
    half = len(ids) // 2
    assert detokenizer.push(ids[:half]) == untouched.push(ids[:half])
    state = detokenizer.snapshot()
    shown = detokenizer.preview(taken_back)
    assert detokenizer.snapshot() == state
    assert detokenizer.push(taken_back) == shown
    detokenizer.restore(state)
    detokenizer.text_of(taken_back)
    assert detokenizer.push(ids[half:]) + detokenizer.flush() == untouched.push(ids[half:]) + untouched.flush()


def test_the_first_word_mark_is_no_text() -> None:
    table = TokenBytes(pieces=(b" a", b" b"), special=frozenset(), drops_first_space=True)
    detokenizer = Detokenizer(table)
    assert detokenizer.preview([0]) == "a"
    assert [detokenizer.push([0]), detokenizer.push([1])] == ["a", " b"]
    assert detokenizer.text_of([1, 0]) == "b a"
