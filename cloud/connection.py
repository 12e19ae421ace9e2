"""The shell around the cloud's protocol core: one WebSocket, its reader and its writer."""

import asyncio
import logging
from collections import Counter

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from cloud.engine import Engine
from cloud.metrics import Metrics
from shared.bundle import BundleIdentity
from shared.errors import Code, PeerError
from shared.frames import Cancel, Commit, Draft, Finish, Frame, Open, Opened, Refuse, Steer
from shared.params import Limits
from shared.protocol import CloudProtocol, State

log = logging.getLogger(__name__)

# The last frame and the close must leave within this time, in seconds; a reader that slow is cut off.
CLOSE_TIMEOUT = 5.0


class Connection:
    """Carries frames between one device and the engine until either goes."""

    def __init__(
        self,
        socket: WebSocket,
        engine: Engine,
        identity: BundleIdentity,
        limits: Limits,
        token: str | None,
        hello_timeout_s: float,
        metrics: Metrics,
    ) -> None:
        self._socket = socket
        self._engine = engine
        self._protocol = CloudProtocol(identity, limits, token)
        self._limits = limits
        self._hello_timeout = hello_timeout_s
        self._metrics = metrics
        self._slots: dict[int, int] = {}
        self._unanswered: Counter[int] = Counter()
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def serve(self) -> None:
        """Run the connection to its end; every slot that it opened is free afterwards."""
        await self._socket.accept()
        writer = asyncio.create_task(self._write())
        with self._metrics.connections.track_inprogress():
            try:
                await self._read()
                self._wake.set()
                async with asyncio.timeout(CLOSE_TIMEOUT):
                    await writer
            except (WebSocketDisconnect, TimeoutError):
                pass
            finally:
                writer.cancel()
                for slot in self._slots.values():
                    self._engine.drop(slot)
        if self._protocol.error is not None:
            self._metrics.refused(self._protocol.error.code)
            log.warning("connection refused: %s", self._protocol.error)

    def drain(self, grace: float) -> None:
        """Tell the device that this server goes away."""
        self._protocol.drain(grace)
        self._wake.set()

    async def _read(self) -> None:
        while self._protocol.state is not State.CLOSING:
            patience = self._hello_timeout if self._protocol.state is State.HANDSHAKE else self._limits.idle_ttl_s
            try:
                async with asyncio.timeout(patience):
                    message = await self._socket.receive()
            except TimeoutError:
                self._protocol.refuse_connection(Code.IDLE, f"nothing came for {patience:g} s")
                return
            if message["type"] == "websocket.disconnect":
                raise WebSocketDisconnect(message.get("code", 1005))
            self._take(message.get("bytes"))
            self._wake.set()

    def _take(self, data: bytes | None) -> None:
        if data is None:
            self._protocol.fail(PeerError(Code.BAD_FRAME, "a text message; frames are binary"))
            return
        self._metrics.bytes_in.inc(len(data))
        self._protocol.receive(data)
        for frame in self._protocol.frames():
            self._act(frame)

    def _act(self, frame: Frame) -> None:
        match frame:
            case Open():
                slot = self._slots[frame.session] = self._engine.new_slot()
                self._engine.open(slot, frame, self._reply)
            case Draft() | Steer() | Cancel() if frame.session in self._slots:
                # Between two Commits a device has at most its window to send, and a window that crossed the first.
                self._unanswered[frame.session] += 1
                if self._unanswered[frame.session] > 4 * self._limits.max_draft_nodes:
                    message = f"{self._unanswered[frame.session]} frames since the last Commit; keep to the window"
                    self._engine.drop(self._slots.pop(frame.session))
                    self._protocol.finish(Refuse(frame.session, Code.WINDOW_EXCEEDED, message))
                    return
                self._engine.update(self._slots[frame.session], frame)

    def _reply(self, frame: Opened | Commit | Finish | Refuse) -> None:
        """Called in the engine's thread."""
        try:
            self._loop.call_soon_threadsafe(self._send, frame)
        except RuntimeError:
            # The event loop has closed, and the device's socket with it.
            log.debug("no event loop for %s", frame)

    def _send(self, frame: Opened | Commit | Finish | Refuse) -> None:
        if isinstance(frame, Opened | Commit):
            self._unanswered[frame.session] = 0
            self._protocol.send(frame)
        else:
            self._slots.pop(frame.session, None)
            self._unanswered.pop(frame.session, None)
            self._protocol.finish(frame)
        self._wake.set()

    async def _write(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            for message in self._protocol.outgoing():
                self._metrics.bytes_out.inc(len(message))
                await self._socket.send_bytes(message)
            closing = self._protocol.closing
            if closing is not None:
                if self._socket.client_state is WebSocketState.CONNECTED:
                    await self._socket.close(closing.code, closing.reason)
                return
