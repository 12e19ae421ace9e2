"""Events on their way from the link's thread to the generating thread: in order, and bounded."""

from collections import deque
from collections.abc import Callable
from threading import Condition
from time import monotonic

from edge.link_events import Declined, Fatal, FrameReceived, LinkDown, LinkEvent, LinkUp

# Frames that may wait to be taken: more than the longest answers have together.
MAX_FRAMES = 1 << 16


class EventBox:
    """A queue in which news of the link's state replaces older news that nobody has taken.

    So a device that is left alone in a long outage holds one LinkDown, not one for each try. A Fatal stays: it is
    what every later `take` returns. `number` says which connection an event belongs to.
    """

    def __init__(self, max_frames: int = MAX_FRAMES, clock: Callable[[], float] = monotonic) -> None:
        self._items: deque[tuple[LinkEvent, int]] = deque()
        self._changed = Condition()
        self._closed = False
        self._max_frames = max_frames
        self._clock = clock

    def put(self, event: LinkEvent, number: int) -> bool:
        """Add an event; False when too many frames wait, and this one was left out."""
        with self._changed:
            match event:
                case FrameReceived() if len(self._items) >= self._max_frames:
                    return False
                case LinkDown():
                    self._drop_last(LinkUp, LinkDown, Declined)
                case Declined():
                    self._drop_last(Declined)
            self._items.append((event, number))
            self._changed.notify()
            return True

    def take(self, timeout: float | None) -> tuple[LinkEvent, int] | None:
        """The next event; None when none comes within `timeout` seconds (None: ever), or the box is closed."""
        deadline = None if timeout is None else self._clock() + timeout
        with self._changed:
            while not self._items:
                left = None if deadline is None else deadline - self._clock()
                if self._closed or (left is not None and left <= 0):
                    return None
                self._changed.wait(left)
            if isinstance(self._items[0][0], Fatal):
                return self._items[0]
            return self._items.popleft()

    def close(self) -> None:
        """No more events will come: who waits returns."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _drop_last(self, *kinds: type[LinkEvent]) -> None:
        while self._items and isinstance(self._items[-1][0], kinds):
            self._items.pop()
