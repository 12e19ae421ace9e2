"""The byte table against the tokenizers library's own decoders."""

import json

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers

from edge.detokenizer import Detokenizer
from edge.token_bytes import token_bytes
from shared.errors import BundleError
from tests.byte_tokenizer import byte_level_tokenizer

TEXTS = [
    "plain",
    " spaces  and\ttabs\n",
    "naïve café",
    "日本語のテキスト",
    "👩‍👩‍👧 emoji 🇩🇪",
    "a ▁ b",
    "\x00\x7f",
    "don't 12345",
]


def sentencepiece_tokenizer() -> Tokenizer:
    """BPE with byte fallback and word marks, as in Llama 2 and Mistral 7B."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a", "é"]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("▁", "a")], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return tokenizer


@pytest.mark.parametrize("text", TEXTS)
def test_byte_level_text_comes_back(text: str) -> None:
    """Hazard 16: a byte-level vocabulary holds the character ▁ as itself; it is no space."""
    tokenizer = byte_level_tokenizer(TEXTS)
    table = token_bytes(json.loads(tokenizer.to_str()))
    ids = tokenizer.encode(text).ids
    assert Detokenizer(table).text_of(ids) == text == tokenizer.decode(ids)


@pytest.mark.parametrize("text", ["a b a", "é and ü", "a", "  a", "日本"])
def test_byte_fallback_text_comes_back_without_the_first_word_mark(text: str) -> None:
    tokenizer = sentencepiece_tokenizer()
    table = token_bytes(json.loads(tokenizer.to_str()))
    ids = tokenizer.encode(text).ids
    assert Detokenizer(table).text_of(ids) == text == tokenizer.decode(ids)
    assert Detokenizer(table).text_of(ids[1:]) == tokenizer.decode(ids[1:])


def test_special_tokens_are_marked_and_added_text_is_literal() -> None:
    tokenizer = byte_level_tokenizer(TEXTS, special=["<|im_end|>"])
    tokenizer.add_tokens(["<think> "])
    table = token_bytes(json.loads(tokenizer.to_str()))
    assert table.special == {tokenizer.token_to_id("<|im_end|>")}
    assert table.piece(tokenizer.token_to_id("<think> ")) == b"<think> "


def test_ids_beyond_the_vocabulary_have_no_bytes() -> None:
    table = token_bytes(json.loads(byte_level_tokenizer(TEXTS).to_str()))
    assert table.piece(len(table.pieces) + 7) == b""


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"model": {"vocab": {"a": 0}}, "decoder": {"type": "WordPiece"}}, "WordPiece"),
        ({"model": {"vocab": {"a": 0}}, "decoder": None}, "decoder none"),
        ({"model": {"vocab": [["a", 0.5]]}, "decoder": {"type": "ByteLevel"}}, "BPE"),
        ({"decoder": {"type": "ByteLevel"}}, "BPE"),
    ],
)
def test_other_vocabularies_are_refused(content: dict[str, object], words: str) -> None:
    with pytest.raises(BundleError, match=words):
        token_bytes(content)
