"""Stop strings in text that comes in pieces: nothing leaves that may be the start of one."""

from collections.abc import Sequence

from shared.errors import BadInput


class StopScanner:
    """Looks for the stop string that ends first; of those that end there, the longest.

    Raises BadInput for an empty stop string, which would stop everything.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if not all(stops):
            raise BadInput("a stop string is empty; give at least one character")
        self._stops = tuple(stops)
        self._held = ""
        self._matched: str | None = None

    @property
    def held(self) -> str:
        """The text that is held back since a stop string may begin with it."""
        return self._held

    def push(self, text: str) -> tuple[str, str | None]:
        """(text that is safe to show, the stop string that has come). After a match nothing leaves any more."""
        if self._matched is not None:
            return "", self._matched
        text = self._held + text
        found = self.find(text)
        if found is not None:
            start, self._matched = found
            self._held = ""
            return text[:start], self._matched
        split = len(text) - self._held_length(text)
        self._held = text[split:]
        return text[:split], None

    def flush(self) -> str:
        """What was held back, when no more text comes."""
        text, self._held = self._held, ""
        return text

    def find(self, text: str) -> tuple[int, str] | None:
        """(where it starts, the stop string) for the first match in `text` alone."""
        matches = [(start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if not matches:
            return None
        _, start, stop = min(matches)
        return start, stop

    def _held_length(self, text: str) -> int:
        """The length of the longest end of `text` that a stop string begins with."""
        longest = max((len(stop) - 1 for stop in self._stops), default=0)
        for length in range(min(longest, len(text)), 0, -1):
            end = text[-length:]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0
