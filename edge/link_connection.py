"""One WebSocket from its Hello to its end: the shell around the protocol core, which owns no socket and no time."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from edge.link_config import LinkConfig
from edge.link_errors import closed_failure, refusal
from edge.link_events import FrameReceived, LinkUp
from shared.errors import Code, EdgewiseError, LinkLost, PeerError, Refused
from shared.frames import (
    CONNECTION,
    Beat,
    Cancel,
    Commit,
    Draft,
    Drain,
    Finish,
    Frame,
    Open,
    Opened,
    Refuse,
    Steer,
    Welcome,
)
from shared.protocol import Closing, EdgeProtocol, State

GOING_AWAY = Closing(1001, "")
# Weight of a new sample in the smoothed round trip (RFC 6298, section 2).
RTT_GAIN = 1 / 8


@dataclass(slots=True)
class Traffic:
    """What a link has carried: payload bytes of its messages, and the smoothed round trip in seconds."""

    bytes_up: int = 0
    bytes_down: int = 0
    rtt_s: float | None = None

    def saw_round_trip(self, seconds: float) -> None:
        """Take one sample of the round trip."""
        self.rtt_s = seconds if self.rtt_s is None else self.rtt_s + RTT_GAIN * (seconds - self.rtt_s)


class LinkConnection:
    """Carries frames over an open WebSocket. All of it runs on the link's event loop.

    `deliver` hands an event on; it returns False when too many wait to be taken.
    """

    def __init__(
        self,
        socket: ClientConnection,
        config: LinkConfig,
        traffic: Traffic,
        deliver: Callable[[LinkUp | FrameReceived], bool],
    ) -> None:
        self.ready_at: float | None = None
        self._socket = socket
        self._config = config
        self._traffic = traffic
        self._deliver = deliver
        # The token goes in the HTTP header, where proxies can check it too.
        self._protocol = EdgeProtocol(config.identity, token=None)
        self._clock = asyncio.get_running_loop().time
        self._wake = asyncio.Event()
        self._heard = asyncio.Event()
        self._busy = asyncio.Event()
        self._open: set[int] = set()
        self._hello_at = self._beat_at = self._clock()
        self._nonce = 0
        self._cause: EdgewiseError | None = None

    async def run(self) -> EdgewiseError:
        """Carry frames until the connection ends; why it did. Cancelling it ends the connection in order."""
        try:
            async with asyncio.TaskGroup() as tasks:
                others = [tasks.create_task(self._write()), tasks.create_task(self._beat())]
                error = await self._read()
                for task in others:
                    task.cancel()
            return error
        finally:
            await self._hang_up()

    def send(self, frame: Open | Draft | Steer | Cancel) -> None:
        """Queue a frame. Only after the Welcome."""
        if isinstance(frame, Open):
            self._open.add(frame.session)
            self._busy.set()
        self._protocol.send(frame)
        self._wake.set()

    async def _read(self) -> EdgewiseError:
        config = self._config
        try:
            async with asyncio.timeout(config.hello_timeout_s) as patience:
                while True:
                    error = self._take(await self._socket.recv())
                    if error is not None:
                        return error
                    if self.ready_at is not None:
                        patience.reschedule(None)
        except TimeoutError:
            return LinkLost(
                f"connected to {config.where}, but no Welcome within {config.hello_timeout_s:g} s: the peer hangs"
            )
        except ConnectionClosed as closed:
            return self._cause or closed_failure(closed, config.where)

    def _take(self, data: str | bytes) -> EdgewiseError | None:
        """Act on one message; the reason to end the connection, if it is one."""
        if isinstance(data, str):
            self._protocol.fail(PeerError(Code.BAD_FRAME, "a text message; frames are binary"))
        else:
            self._traffic.bytes_down += len(data)
            self._protocol.receive(data)
        self._heard.set()
        for frame in self._protocol.frames():
            error = self._on_frame(frame)
            if error is not None:
                return error
        self._wake.set()
        return self._protocol.error

    def _on_frame(self, frame: Frame) -> EdgewiseError | None:
        match frame:
            case Welcome():
                self.ready_at = self._clock()
                round_trip = self.ready_at - self._hello_at
                self._traffic.saw_round_trip(round_trip)
                self._deliver(LinkUp(frame, round_trip))
            case Beat():
                if frame.nonce == self._nonce:
                    self._traffic.saw_round_trip(self._clock() - self._beat_at)
            case Refuse(session=session) if session == CONNECTION:
                return refusal(frame)
            case Drain():
                self._deliver(FrameReceived(frame))
                return LinkLost(f"{self._config.where} is going away; resuming on a new connection")
            case Opened() | Commit() | Finish() | Refuse():
                if isinstance(frame, Finish | Refuse):
                    self._close_session(frame.session)
                if not self._deliver(FrameReceived(frame)):
                    return PeerError(Code.WINDOW_EXCEEDED, "the cloud sends frames faster than any answer needs")
        return None

    def _close_session(self, session: int) -> None:
        self._open.discard(session)
        if not self._open:
            self._busy.clear()

    async def _write(self) -> None:
        try:
            while True:
                for message in self._protocol.outgoing():
                    if self._is_too_large(message):
                        return
                    self._traffic.bytes_up += len(message)
                    await self._socket.send(message)
                await self._wake.wait()
                self._wake.clear()
        except ConnectionClosed:
            # The reader finds it closed too, and tells why.
            return

    def _is_too_large(self, message: bytes) -> bool:
        """Whether the cloud would refuse this message for its size (hazard 11); then the connection ends here."""
        limits = self._protocol.limits
        if limits is None or len(message) <= limits.max_frame_bytes:
            return False
        sizes = f"a message of {len(message)} bytes; {self._config.where} takes {limits.max_frame_bytes}"
        self._end(Refused(Code.TOO_LARGE, sizes))
        return True

    async def _beat(self) -> None:
        """Ask for a sign of life now and then; without one the peer hangs, or the link is gone without a word."""
        while True:
            await self._until_next_beat()
            if self._protocol.state is not State.READY:
                continue
            self._nonce += 1
            self._beat_at = self._clock()
            self._heard.clear()
            self._protocol.send_beat(self._nonce)
            self._wake.set()
            try:
                async with asyncio.timeout(self._config.beat_timeout_s):
                    await self._heard.wait()
            except TimeoutError:
                waited = f"no sign of life from {self._config.where} for {self._config.beat_timeout_s:g} s"
                self._end(LinkLost(f"{waited}: it hangs, or the network is gone"))
                return

    async def _until_next_beat(self) -> None:
        if self._open:
            await asyncio.sleep(self._config.beat_interval_s)
            return
        # An answer that opens meanwhile ends the long pause: its first beat measures the round trip.
        try:
            async with asyncio.timeout(self._config.idle_beat_interval_s):
                await self._busy.wait()
        except TimeoutError:
            pass

    def _end(self, cause: EdgewiseError) -> None:
        """Drop the connection at once: no closing handshake with a peer that hangs."""
        self._cause = cause
        self._socket.transport.abort()

    async def _hang_up(self) -> None:
        closing = self._protocol.closing or GOING_AWAY
        try:
            async with asyncio.timeout(self._config.close_timeout_s):
                await self._socket.close(closing.code, closing.reason)
        except TimeoutError:
            pass
        finally:
            self._socket.transport.abort()
            await self._socket.wait_closed()
