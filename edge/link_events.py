"""What the link tells the generating thread."""

from dataclasses import dataclass

from shared.errors import EdgewiseError, LinkLost, Refused
from shared.frames import CloudFrame, Welcome


@dataclass(frozen=True, slots=True)
class LinkUp:
    """The handshake is done; `rtt_s` is the round trip that it took, in seconds."""

    welcome: Welcome
    rtt_s: float


@dataclass(frozen=True, slots=True)
class LinkDown:
    """The link is lost or could not be made; the next try begins in `retry_in_s` seconds."""

    error: LinkLost
    retry_in_s: float


@dataclass(frozen=True, slots=True)
class FrameReceived:
    """A frame for one of the device's sessions, or a Drain."""

    frame: CloudFrame


@dataclass(frozen=True, slots=True)
class Fatal:
    """The cloud declines, or broke the protocol: trying again will not help, and it is no reason to go offline."""

    error: EdgewiseError


@dataclass(frozen=True, slots=True)
class Declined:
    """The cloud is there and takes no connection now (full, failing): no reason to go offline. It is asked again."""

    error: Refused
    retry_in_s: float


LinkEvent = LinkUp | LinkDown | FrameReceived | Declined | Fatal
