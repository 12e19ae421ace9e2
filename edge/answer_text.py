"""The text of one answer, kept in step with its committed tokens and trimmed together with them (hazard 3)."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from edge.detokenizer import Detokenizer
from edge.stop_scanner import StopScanner
from edge.token_bytes import TokenBytes

Kind = TypeVar("Kind")


class HasTable(Protocol):
    """What a text needs of a tokenizer: `edge.tokenizer.BundleTokenizer` has it."""

    @property
    def table(self) -> TokenBytes: ...


class AnswerText:
    """Committed tokens in, text out that is never taken back.

    A character waits until its bytes are whole, and text that may begin a stop string waits until that is decided.
    Raises BadInput for an empty stop string.
    """

    def __init__(self, tokenizer: HasTable, stops: Sequence[str] = ()) -> None:
        self._detokenizer = Detokenizer(tokenizer.table)
        self._scanner = StopScanner(stops)
        self._may_stop = bool(stops)
        self._decoded = ""
        # Characters decoded after each token: [tokens].
        self._ends: list[int] = []
        self._shown = 0
        self._keep: int | None = None
        self._finished = False

    @property
    def text(self) -> str:
        """What may be shown as final so far."""
        return self._decoded[: self._shown]

    def extend(self, tokens: Sequence[int]) -> int | None:
        """Take all committed tokens of the answer; how many to keep when a stop string has come, else None.

        The kept tokens are the fewest whose text reaches to the stop string; the last may reach into it.
        """
        for token in tokens[len(self._ends) :]:
            if self._keep is not None:
                break
            self._decode(self._detokenizer.push((token,)), tokens=1)
        return self._keep

    def stop_in(self, drafted: Sequence[int]) -> int | None:
        """As `extend`, for drafted tokens that may yet be taken back: nothing is remembered."""
        if not self._may_stop or self._keep is not None:
            return self._keep
        ends = list(self._ends)
        text = self._decoded
        state = self._detokenizer.snapshot()
        for token in drafted:
            text += self._detokenizer.push((token,))
            ends.append(len(text))
        self._detokenizer.restore(state)
        found = self._scanner.find(text[self._shown :])
        return None if found is None else _tokens_reaching(self._shown + found[0], ends)

    def provisional(self, drafted: Iterable[int]) -> str:
        """What would follow `text` if the drafted tokens were committed; it ends before a stop string."""
        if self._keep is not None:
            return ""
        text = self._scanner.held + self._detokenizer.preview(drafted)
        found = self._scanner.find(text)
        return text if found is None else text[: found[0]]

    def runs(self, kinds: Iterable[tuple[Kind, int]]) -> list[tuple[Kind, str]]:
        """Cut `text` along runs of (kind, count of tokens): (kind, the characters that those tokens completed)."""
        pieces = []
        first = tokens = 0
        for kind, count in kinds:
            tokens += count
            end = min(self._ends[tokens - 1], self._shown) if 0 < tokens <= len(self._ends) else self._shown
            if end > first:
                pieces.append((kind, self._decoded[first:end]))
                first = end
        if pieces and first < self._shown:
            pieces[-1] = pieces[-1][0], pieces[-1][1] + self._decoded[first : self._shown]
        return pieces

    def finish(self) -> str:
        """The whole text of the answer, now that no more tokens come."""
        if not self._finished and self._keep is None:
            self._finished = True
            self._decode(self._detokenizer.flush(), tokens=0)
            self._shown += len(self._scanner.flush())
        return self.text

    def _decode(self, piece: str, tokens: int) -> None:
        self._decoded += piece
        self._ends.extend([len(self._decoded)] * tokens)
        safe, matched = self._scanner.push(piece)
        self._shown += len(safe)
        if matched is not None:
            self._keep = _tokens_reaching(self._shown, self._ends)


def _tokens_reaching(length: int, ends: Sequence[int]) -> int:
    """The fewest tokens whose text has `length` characters."""
    return 0 if length == 0 else min(bisect_left(ends, length) + 1, len(ends))
