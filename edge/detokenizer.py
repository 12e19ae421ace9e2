"""Token ids to text as they come: a character leaves when all its bytes are there, and never twice (hazard 4)."""

import codecs
from collections.abc import Iterable

from edge.token_bytes import TokenBytes

# The bytes of an unfinished character with the decoder's flag, and whether anything has been written.
DetokenizerState = tuple[tuple[bytes, int], bool]


class Detokenizer:
    """An incremental UTF-8 decoder over the bytes of tokens. Broken bytes become U+FFFD, as in `bytes.decode`."""

    def __init__(self, table: TokenBytes, skip_special: bool = True) -> None:
        self._table = table
        self._skipped = table.special if skip_special else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._begun = False

    def push(self, ids: Iterable[int]) -> str:
        """The text that these tokens complete."""
        return self._write(self._decoder.decode(self._bytes(ids)))

    def flush(self) -> str:
        """What an unfinished character leaves at the end of the text; the next token starts a new text."""
        text = self._write(self._decoder.decode(b"", final=True))
        self._decoder.reset()
        self._begun = False
        return text

    def snapshot(self) -> DetokenizerState:
        """The state, for `restore`: cheap, whatever the length of the text."""
        return self._decoder.getstate(), self._begun

    def restore(self, state: DetokenizerState) -> None:
        """Go back to a snapshot, as if nothing had been pushed since."""
        decoder_state, self._begun = state
        self._decoder.setstate(decoder_state)

    def preview(self, ids: Iterable[int]) -> str:
        """What `push` would return, with nothing pushed: for tokens that may yet be taken back."""
        state = self.snapshot()
        text = self.push(ids)
        self.restore(state)
        return text

    def text_of(self, ids: Iterable[int]) -> str:
        """The whole text of `ids` alone, whatever has been pushed."""
        state = self.snapshot()
        self._decoder.reset()
        self._begun = False
        text = self.push(ids) + self.flush()
        self.restore(state)
        return text

    def _bytes(self, ids: Iterable[int]) -> bytes:
        return b"".join(self._table.piece(token) for token in ids if token not in self._skipped)

    def _write(self, text: str) -> str:
        if text and not self._begun:
            self._begun = True
            if self._table.drops_first_space:
                return text.removeprefix(" ")
        return text
