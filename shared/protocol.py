"""The sans-I/O protocol core: bytes in, frames and bytes out (PROTOCOL.md). No socket, clock or await.

A shell per side owns the socket and time: it gives `receive` each message it gets, takes `frames()` to act on, and
sends each of `outgoing()`. When `closing` is set it sends what is left and closes with that code.

A parser never raises at its caller. Bytes that are no valid frame, or a frame out of order, queue a Refuse (on the
cloud's side), set `closing` and leave the cause in `error`.
"""

import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from shared.bundle import BundleIdentity
from shared.codec import decode, encode
from shared.errors import Code, PeerError
from shared.frames import (
    CONNECTION,
    VERSION,
    Beat,
    Cancel,
    Commit,
    Draft,
    Drain,
    Finish,
    Frame,
    Hello,
    Open,
    Opened,
    Refuse,
    Steer,
    Welcome,
)
from shared.params import Limits

# What either side accepts during the handshake: nobody has shown a token yet, and the Welcome tells the real bound.
HANDSHAKE_BYTES = 1 << 16

CLOSE_CODES = {
    Code.TOO_LARGE: 1009,
    Code.UNAUTHORIZED: 1008,
    Code.BUNDLE_MISMATCH: 1008,
    Code.IDLE: 1001,
    Code.INTERNAL: 1011,
    Code.DRAINING: 1012,
    Code.BUSY: 1013,
}
PROTOCOL_ERROR = 1002


class State(Enum):
    """Where a connection stands."""

    HANDSHAKE = auto()
    READY = auto()
    CLOSING = auto()


@dataclass(frozen=True, slots=True)
class Closing:
    """How the shell is to close: a WebSocket close code (RFC 6455, section 7.4) and a reason."""

    code: int
    reason: str


class Protocol:
    """What both sides share: decoding, the queue of frames to act on and of bytes to send, heartbeats."""

    def __init__(self, max_frame_bytes: int) -> None:
        self.max_frame_bytes = max_frame_bytes
        self.state = State.HANDSHAKE
        self.closing: Closing | None = None
        self.error: PeerError | None = None
        self._frames: list[Frame] = []
        self._outgoing: list[bytes] = []

    def receive(self, data: bytes) -> None:
        """Take one binary message. Ignored once the connection is closing."""
        if self.state is State.CLOSING:
            return
        try:
            frame = decode(data, self.max_frame_bytes)
            # No Beat keeps a connection alive that has not shown who it is.
            if isinstance(frame, Beat) and self.state is State.READY:
                self._on_beat(frame)
            else:
                self._on_frame(frame)
        except PeerError as error:
            self.fail(error)

    def frames(self) -> list[Frame]:
        """The frames to act on since the last call."""
        frames, self._frames = self._frames, []
        return frames

    def outgoing(self) -> list[bytes]:
        """The messages to send since the last call."""
        messages, self._outgoing = self._outgoing, []
        return messages

    def send_beat(self, nonce: int) -> None:
        """Ask the other side for a sign of life; its echo comes out of `frames()`. Call it after the handshake."""
        assert self.state is not State.HANDSHAKE, "no Welcome yet"
        self._send(Beat(CONNECTION, nonce, echo=False))

    def fail(self, error: PeerError) -> None:
        """End the connection because the other side broke the protocol."""
        if self.state is not State.CLOSING:
            self.error = error
        self._close(error.code, error.message)

    def _on_beat(self, beat: Beat) -> None:
        if beat.echo:
            self._frames.append(beat)
        else:
            self._send(Beat(CONNECTION, beat.nonce, echo=True))

    def _on_frame(self, frame: Frame) -> None:
        raise NotImplementedError

    def _send(self, frame: Frame) -> None:
        if self.state is not State.CLOSING:
            self._outgoing.append(encode(frame))

    def _close(self, code: Code, message: str) -> None:
        if self.state is State.CLOSING:
            return
        self.state = State.CLOSING
        # RFC 6455 allows 123 bytes for a reason.
        reason = f"{code}: {message}".encode()[:123].decode(errors="ignore")
        self.closing = Closing(CLOSE_CODES.get(code, PROTOCOL_ERROR), reason)


class EdgeProtocol(Protocol):
    """The device's side: says Hello at once, then sends for its sessions."""

    def __init__(self, identity: BundleIdentity, token: str | None) -> None:
        super().__init__(HANDSHAKE_BYTES)
        self.identity = identity
        self.limits: Limits | None = None
        self._opened: set[int] = set()
        self._send(Hello(CONNECTION, VERSION, identity, token))

    def send(self, frame: Open | Draft | Steer | Cancel) -> None:
        """Queue a session's frame. The shell calls this only after the Welcome."""
        assert self.state is not State.HANDSHAKE, "no Welcome yet"
        if isinstance(frame, Open):
            self._opened.add(frame.session)
        self._send(frame)

    def _on_frame(self, frame: Frame) -> None:
        match frame:
            case Welcome() if self.state is State.HANDSHAKE:
                self._on_welcome(frame)
            case Refuse() if frame.session == CONNECTION:
                self._frames.append(frame)
                self._close(frame.code, frame.message)
            case Opened() | Commit() | Finish() | Refuse() if self.state is State.READY:
                if frame.session not in self._opened:
                    raise PeerError(Code.UNKNOWN_SESSION, f"{type(frame).__name__} for session {frame.session}")
                self._frames.append(frame)
            case Drain() if self.state is State.READY:
                self._frames.append(frame)
            case _:
                raise PeerError(Code.OUT_OF_ORDER, f"{type(frame).__name__} is not expected here")

    def _on_welcome(self, welcome: Welcome) -> None:
        differs = self.identity.differences(welcome.identity)
        if differs:
            raise PeerError(Code.BUNDLE_MISMATCH, f"the cloud's bundle differs in {', '.join(differs)}")
        self.limits = welcome.limits
        self.max_frame_bytes = welcome.limits.max_frame_bytes
        self.state = State.READY
        self._frames.append(welcome)


class CloudProtocol(Protocol):
    """The cloud's side: checks the Hello, then passes frames of known sessions on.

    `token` is what a Hello must carry, or None where none is asked for or the HTTP header has shown it already.
    """

    def __init__(self, identity: BundleIdentity, limits: Limits, token: str | None) -> None:
        super().__init__(HANDSHAKE_BYTES)
        self.identity = identity
        self.limits = limits
        self._token = token
        self._draining = False
        self._open: set[int] = set()
        self._last_session = CONNECTION

    @property
    def sessions(self) -> Sequence[int]:
        """The sessions that are open on this connection."""
        return sorted(self._open)

    def send(self, frame: Opened | Commit) -> None:
        """Queue a frame of an open session; one that ended meanwhile gets nothing more."""
        if frame.session in self._open:
            self._send(frame)

    def finish(self, frame: Finish | Refuse) -> None:
        """End a session with its last frame."""
        if frame.session in self._open:
            self._open.discard(frame.session)
            self._send(frame)

    def drain(self, grace: float) -> None:
        """Tell the device to resume elsewhere; sessions that are open go on, new ones are refused."""
        self._draining = True
        if self.state is State.READY:
            self._send(Drain(CONNECTION, grace))

    def refuse_connection(self, code: Code, message: str, retry_after: float | None = None) -> None:
        """End the connection with a Refuse."""
        self._refuse(Refuse(CONNECTION, code, message, retry_after))

    def fail(self, error: PeerError) -> None:
        if self.state is not State.CLOSING:
            self.error = error
            self._refuse(Refuse(CONNECTION, error.code, error.message))

    def _refuse(self, frame: Refuse) -> None:
        self._open.clear()
        self._send(frame)
        self._close(frame.code, frame.message)

    def _on_frame(self, frame: Frame) -> None:
        match frame:
            case Hello() if self.state is State.HANDSHAKE:
                self._on_hello(frame)
            case Open() if self.state is State.READY:
                self._on_open(frame)
            case Draft() | Steer() | Cancel() if self.state is State.READY:
                self._on_session_frame(frame)
            case _:
                raise PeerError(Code.OUT_OF_ORDER, f"{type(frame).__name__} is not expected here")

    def _on_hello(self, hello: Hello) -> None:
        if self._token is not None and not hmac.compare_digest((hello.token or "").encode(), self._token.encode()):
            raise PeerError(Code.UNAUTHORIZED, "the bearer token is missing or wrong")
        differs = self.identity.differences(hello.identity)
        if differs:
            message = (
                f"the device's bundle differs in {', '.join(differs)}; build or pull it again from this cloud's model"
            )
            self.error = PeerError(Code.BUNDLE_MISMATCH, message)
            self._refuse(Refuse(CONNECTION, Code.BUNDLE_MISMATCH, message, differs=tuple(differs)))
            return
        self._send(Welcome(CONNECTION, VERSION, self.identity, self.limits))
        self.max_frame_bytes = self.limits.max_frame_bytes
        self.state = State.READY

    def _on_open(self, frame: Open) -> None:
        if frame.session <= self._last_session:
            raise PeerError(
                Code.OUT_OF_ORDER, f"session {frame.session} is not above {self._last_session}, the last one opened"
            )
        self._last_session = frame.session
        if self._draining:
            self._send(Refuse(frame.session, Code.DRAINING, "this server is going; resume on a new connection"))
        elif len(self._open) >= self.limits.max_sessions:
            message = f"{self.limits.max_sessions} sessions are open on this connection"
            self._send(Refuse(frame.session, Code.BUSY, message, 1.0))
        else:
            self._open.add(frame.session)
            self._frames.append(frame)

    def _on_session_frame(self, frame: Draft | Steer | Cancel) -> None:
        if frame.session in self._open:
            self._frames.append(frame)
        elif not CONNECTION < frame.session <= self._last_session:
            raise PeerError(Code.UNKNOWN_SESSION, f"session {frame.session} was never opened on this connection")
        # A frame for a session that has ended crossed its last frame on the way: it does no harm.
