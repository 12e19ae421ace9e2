"""The link as the generating thread sees it: its state changes only when that thread takes the event."""

from itertools import count
from typing import Protocol

from edge.link_events import LinkDown, LinkEvent, LinkUp
from shared.frames import Cancel, Draft, Open, Steer
from shared.params import Limits


class Channel(Protocol):
    """What carries frames: `edge.link.Link`, or a fake in tests."""

    bytes_up: int
    bytes_down: int

    def poll(self, timeout: float | None) -> LinkEvent | None: ...

    def send(self, frame: Open | Draft | Steer | Cancel) -> None: ...


class Uplink:
    """A channel, what is known of its state, and the numbering of its sessions. Outlives single answers."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.limits: Limits | None = None
        self.decided = False
        self._sessions = count(1)

    @property
    def up(self) -> bool:
        return self.limits is not None

    def new_session(self) -> int:
        return next(self._sessions)

    def take(self, timeout: float | None) -> LinkEvent | None:
        """The next event, or None when none comes within `timeout` seconds."""
        event = self.channel.poll(timeout)
        match event:
            case LinkUp(welcome=welcome):
                self.limits = welcome.limits
                self.decided = True
            case LinkDown():
                self.limits = None
                self.decided = True
        return event
