"""The bytes behind every token id, read from tokenizer.json, so that text can be put together byte by byte."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shared.errors import BundleError

# A piece of a byte-fallback vocabulary that stands for one byte, as in "<0x0A>".
_ONE_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """`pieces[id]` is what the token adds to the text; `special` are the ids that mark structure and are no text.

    `drops_first_space`: the text's first space belongs to the vocabulary's word marks and not to the text
    (SentencePiece).
    """

    pieces: tuple[bytes, ...]
    special: frozenset[int]
    drops_first_space: bool = False

    def piece(self, token: int) -> bytes:
        """The bytes of one token. Ids beyond the vocabulary, as in padded heads, have none."""
        return self.pieces[token] if token < len(self.pieces) else b""


def token_bytes(tokenizer: Mapping[str, Any]) -> TokenBytes:
    """Read the table from the content of tokenizer.json (format of Hugging Face `tokenizers`).

    Raises BundleError for a vocabulary that is neither byte-level (GPT-2) nor with byte fallback (SentencePiece).
    """
    decoders = _decoder_parts(tokenizer.get("decoder"))
    kinds = {part.get("type") for part in decoders}
    model = tokenizer.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(vocabulary, dict):
        raise BundleError("tokenizer.json has no vocabulary of pieces with ids; a BPE tokenizer is needed")
    if "ByteLevel" in kinds:
        pieces = {index: _byte_level(piece) for piece, index in vocabulary.items()}
    elif "ByteFallback" in kinds:
        pieces = {index: _byte_fallback(piece) for piece, index in vocabulary.items()}
    else:
        shown = ", ".join(sorted(str(kind) for kind in kinds)) or "none"
        raise BundleError(f"tokenizer.json has the decoder {shown}; ByteLevel or ByteFallback is needed")
    added = tokenizer.get("added_tokens") or []
    pieces |= {token["id"]: token["content"].encode() for token in added}
    return TokenBytes(
        pieces=tuple(pieces.get(index, b"") for index in range(max(pieces, default=-1) + 1)),
        special=frozenset(token["id"] for token in added if token["special"]),
        drops_first_space="ByteLevel" not in kinds
        and any(part.get("type") == "Strip" and part.get("start") for part in decoders),
    )


def _decoder_parts(decoder: Any) -> list[dict[str, Any]]:
    if not isinstance(decoder, dict):
        return []
    return list(decoder["decoders"]) if decoder.get("type") == "Sequence" else [decoder]


def _byte_alphabet() -> dict[int, int]:
    """Code point to byte in GPT-2's byte-level vocabularies: printable Latin-1 stands for itself, the rest follows."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {**{byte: byte for byte in plain}, **{256 + index: byte for index, byte in enumerate(others)}}


_ALPHABET = _byte_alphabet()


def _byte_level(piece: str) -> bytes:
    if all(ord(character) in _ALPHABET for character in piece):
        return bytes(_ALPHABET[ord(character)] for character in piece)
    return piece.encode()


def _byte_fallback(piece: str) -> bytes:
    one = _ONE_BYTE.fullmatch(piece)
    return bytes([int(one[1], 16)]) if one else piece.replace("▁", " ").encode()
