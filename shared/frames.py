"""The closed catalogue of frames (PROTOCOL.md, "Frames"). `shared.codec` turns them into bytes and back.

On the wire a frame is one msgpack array: `[tag, session, field, ...]` in the order written here. Session 0 is the
connection itself.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from shared.bundle import BundleIdentity
from shared.errors import Code
from shared.params import Limits, Placement, SamplingParams

VERSION = 1
CONNECTION = 0


class FinishReason(StrEnum):
    """Why an answer ended: a stop token, the token limit, or the device's own wish."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class HiddenRows:
    """Residuals at the cut, before any norm: one row for each position from `first` on, encoded by `codec`."""

    codec: str
    first: int
    data: bytes

    def __repr__(self) -> str:
        return f"HiddenRows({self.codec}, first={self.first}, {len(self.data)} bytes)"


@dataclass(frozen=True, slots=True)
class Timings:
    """Where a Commit's time went: waiting for a batch, the pass itself (microseconds), and the rows in that pass."""

    queue_us: int
    verify_us: int
    rows: int


@dataclass(frozen=True, slots=True)
class Hello:
    """Device: the first frame. `token` is for clients that can't set an Authorization header."""

    TAG: ClassVar[int] = 1
    session: int
    version: int
    identity: BundleIdentity
    token: str | None


@dataclass(frozen=True, slots=True)
class Welcome:
    """Cloud: the answer to a Hello that fits."""

    TAG: ClassVar[int] = 2
    session: int
    version: int
    identity: BundleIdentity
    limits: Limits


@dataclass(frozen=True, slots=True)
class Open:
    """Device: begin an answer, or resume one: a resume is the same frame with more `tokens`.

    `tokens` are prompt and committed answer; the first `prompt_len` are the prompt. `max_tokens` bounds the answer,
    counted from the prompt's end. With `hidden` the device streams residuals in that codec beside its drafts.
    """

    TAG: ClassVar[int] = 3
    session: int
    tokens: tuple[int, ...]
    prompt_len: int
    max_tokens: int
    params: SamplingParams
    placement: Placement
    stop_ids: tuple[int, ...]
    hidden: str | None


@dataclass(frozen=True, slots=True)
class Opened:
    """Cloud: the session is admitted; (at, hash) is the place after the tokens of its Open."""

    TAG: ClassVar[int] = 4
    session: int
    at: int
    hash: int


@dataclass(frozen=True, slots=True)
class Draft:
    """Device: `tokens` drafted on the place (at, hash); `parents` when they are more than a chain.

    An empty Draft asks for one pass without drafts.
    """

    TAG: ClassVar[int] = 5
    session: int
    at: int
    hash: int
    tokens: tuple[int, ...]
    parents: tuple[int, ...] | None = None
    hidden: HiddenRows | None = None

    def __post_init__(self) -> None:
        if self.hidden is not None and self.hidden.first > self.at:
            raise ValueError(f"hidden rows from position {self.hidden.first} on leave a gap: the draft is at {self.at}")
        if self.parents is None:
            return
        if len(self.parents) != len(self.tokens):
            raise ValueError(f"{len(self.tokens)} tokens but {len(self.parents)} parents")
        for index, parent in enumerate(self.parents):
            if not -1 <= parent < index:
                raise ValueError(f"token {index} has parent {parent}; a parent comes before its child, -1 is the place")


@dataclass(frozen=True, slots=True)
class Commit:
    """Cloud: `tokens` are final and follow the place (at, hash); the first `accepted` of them were drafts.

    `drafted` counts the drafts that this pass looked at. `deep` carries final hidden states for exit heads that
    read them.
    """

    TAG: ClassVar[int] = 6
    session: int
    at: int
    hash: int
    tokens: tuple[int, ...]
    accepted: int
    drafted: int
    timings: Timings
    deep: HiddenRows | None = None

    def __post_init__(self) -> None:
        if self.accepted > min(len(self.tokens), self.drafted):
            raise ValueError(f"{self.accepted} accepted, of {self.drafted} drafted and {len(self.tokens)} tokens")


@dataclass(frozen=True, slots=True)
class Steer:
    """Device: change the placement in mid-answer."""

    TAG: ClassVar[int] = 7
    session: int
    placement: Placement


@dataclass(frozen=True, slots=True)
class Cancel:
    """Device: end the answer here."""

    TAG: ClassVar[int] = 8
    session: int


@dataclass(frozen=True, slots=True)
class Finish:
    """Cloud: the answer ended at the place (at, hash)."""

    TAG: ClassVar[int] = 9
    session: int
    at: int
    hash: int
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class Refuse:
    """Cloud: this session (or, with session 0, this connection) is declined. `retry_after` is in seconds."""

    TAG: ClassVar[int] = 10
    session: int
    code: Code
    message: str
    retry_after: float | None = None
    differs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Beat:
    """Either side: an application heartbeat; the other side sends it back with `echo` set."""

    TAG: ClassVar[int] = 11
    session: int
    nonce: int
    echo: bool


@dataclass(frozen=True, slots=True)
class Drain:
    """Cloud: this server goes away within `grace` seconds; resume on a new connection."""

    TAG: ClassVar[int] = 12
    session: int
    grace: float


Frame = Hello | Welcome | Open | Opened | Draft | Commit | Steer | Cancel | Finish | Refuse | Beat | Drain
DeviceFrame = Hello | Open | Draft | Steer | Cancel | Beat
CloudFrame = Welcome | Opened | Commit | Finish | Refuse | Beat | Drain
