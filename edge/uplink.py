"""The link as the generating thread sees it: its state changes only when that thread takes the event."""

from itertools import count
from typing import Protocol

from edge.link_events import Declined, LinkDown, LinkEvent, LinkUp
from shared.frames import Cancel, Draft, Open, Steer
from shared.params import Limits


class Channel(Protocol):
    """What carries frames: `edge.link.Link`, or a fake in tests."""

    @property
    def bytes_up(self) -> int: ...

    @property
    def bytes_down(self) -> int: ...

    def poll(self, timeout: float | None) -> LinkEvent | None: ...

    def send(self, frame: Open | Draft | Steer | Cancel) -> None: ...


class Uplink:
    """A channel, what is known of its state, and the numbering of its sessions. Outlives single answers.

    `limits` are those of the connection that is up; neither up nor `lost`, the link is being made or was declined.
    """

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.limits: Limits | None = None
        self.lost = False
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
                self.limits, self.lost = welcome.limits, False
            case LinkDown():
                self.limits, self.lost = None, True
            case Declined():
                # The cloud is there, so this is not offline; a device that is alone already stays alone.
                self.limits = None
        return event
