"""Byte-level BPE written plainly, from a vocabulary and merges: what a bundle's tokenizer is checked against.

It shares no code with `tokenizers`. Sources: the GPT-2 release (byte alphabet, merge order) and llama.cpp's table of
pre-tokenizers, which names each family's regular expressions.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

import regex  # type: ignore[import-untyped]

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS_ANY_CASE = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

# Family (GGUF's tokenizer.ggml.pre) -> expressions; each cuts the pieces that the one before has left.
FAMILY_PATTERNS: Mapping[str, tuple[str, ...]] = {
    "gpt-2": (_GPT2,),
    "smollm": (r"\p{N}", _GPT2),
    "qwen2": (rf"{_CONTRACTIONS_ANY_CASE}|\p{{N}}|{_REST}",),
    "llama-bpe": (rf"{_CONTRACTIONS_ANY_CASE}|\p{{N}}{{1,3}}|{_REST}",),
}


@lru_cache(maxsize=1)
def byte_alphabet() -> tuple[str, ...]:
    """GPT-2's printable stand-in for each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    return tuple(letters[byte] for byte in range(256))


class ReferenceBpe:
    """Encodes text as the family's documentation says. Slow; for checks only."""

    def __init__(
        self, tokens: Sequence[str], merges: Sequence[str], specials: Sequence[str], family: str, ignore_merges: bool
    ) -> None:
        self._ids = {token: i for i, token in enumerate(tokens)}
        self._ranks = {tuple(merge.split(" ")): i for i, merge in enumerate(merges)}
        self._patterns = [regex.compile(pattern) for pattern in FAMILY_PATTERNS[family]]
        escaped = "|".join(regex.escape(special) for special in sorted(specials, key=len, reverse=True))
        self._special = regex.compile(f"({escaped})") if escaped else None
        self._specials = frozenset(specials)
        self._ignore_merges = ignore_merges

    def encode(self, text: str) -> list[int]:
        """Token ids, with special tokens recognised where they stand in the text."""
        ids: list[int] = []
        for part in self._special.split(text) if self._special else [text]:
            if part in self._specials:
                ids.append(self._ids[part])
            else:
                for word in self._words(part):
                    ids.extend(self._word(word))
        return ids

    def _words(self, text: str) -> list[str]:
        pieces = [text] if text else []
        for pattern in self._patterns:
            pieces = [cut for piece in pieces for cut in _isolate(pattern, piece)]
        return pieces

    def _word(self, word: str) -> list[int]:
        parts = [byte_alphabet()[byte] for byte in word.encode("utf-8")]
        if self._ignore_merges and "".join(parts) in self._ids:
            return [self._ids["".join(parts)]]
        while len(parts) > 1:
            pairs = list(zip(parts[:-1], parts[1:], strict=True))
            known = [(self._ranks[pair], i) for i, pair in enumerate(pairs) if pair in self._ranks]
            if not known:
                break
            _, at = min(known)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        return [self._ids[part] for part in parts]


def _isolate(pattern: "regex.Pattern[str]", text: str) -> list[str]:
    """The text cut into matches and what lies between them."""
    pieces, at = [], 0
    for match in pattern.finditer(text):
        if match.end() == match.start():
            continue
        pieces += [text[at : match.start()], match.group()]
        at = match.end()
    return [piece for piece in (*pieces, text[at:]) if piece]
