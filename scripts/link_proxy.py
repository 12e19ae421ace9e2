"""A TCP proxy that can cut, stall and delay what passes through it, for the demo and the tests."""

import asyncio
import socket
import struct
import threading
from collections.abc import Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any

READ_BYTES = 1 << 16
# Pieces that may be on their way in one direction of one connection before its reader pauses.
MAX_ON_THE_WAY = 256


class LinkProxy:
    """Listens on a loopback port and passes bytes on to a target, both ways, each piece `delay` seconds later.

    All of it runs on one event loop. The port stays the same, and nobody else's, from `start` to `stop`.
    """

    def __init__(self, target_host: str, target_port: int, delay: float = 0.0) -> None:
        self.delay = delay
        self.port = 0
        self._target = target_host, target_port
        self._reservation: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._flowing = asyncio.Event()
        self._links: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Take a free port and listen."""
        # A bound socket that never listens keeps the port while the link is cut; else the system could hand it to
        # another program, or connect a client to itself.
        self._reservation = _reusable_socket(0)
        self.port = self._reservation.getsockname()[1]
        await self.restore()

    async def stop(self) -> None:
        """Abort all connections and free the port."""
        await self.cut()
        if self._reservation is not None:
            self._reservation.close()
            self._reservation = None

    async def cut(self) -> None:
        """Reset all connections and refuse new ones."""
        if self._server is not None:
            self._server.close()
            self._server = None
        links = list(self._links)
        for link in links:
            link.cancel()
        await asyncio.gather(*links, return_exceptions=True)

    async def restore(self) -> None:
        """Accept connections, and let bytes flow again."""
        self._flowing.set()
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, sock=_reusable_socket(self.port))

    async def hang(self) -> None:
        """Go on accepting, and forward nothing: a half-open link."""
        self._flowing.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = asyncio.current_task()
        assert link is not None
        self._links.add(link)
        try:
            await self._carry(reader, writer)
        except asyncio.CancelledError:
            # Only `cut` cancels, and what it asks for is done by now.
            return
        finally:
            _reset(writer)
            self._links.discard(link)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry both directions to their ends; cancelled, the far connection is reset."""
        await self._flowing.wait()
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            return
        try:
            async with asyncio.TaskGroup() as ways:
                ways.create_task(self._pass(reader, far_writer))
                ways.create_task(self._pass(far_reader, writer))
            for end in (writer, far_writer):
                end.close()
                with suppress(OSError):
                    await end.wait_closed()
        finally:
            _reset(far_writer)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one direction until its end, which is passed on too."""
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(MAX_ON_THE_WAY)
        deliverer = asyncio.create_task(self._deliver(pieces, writer))
        clock = asyncio.get_running_loop().time
        try:
            while True:
                try:
                    data = await reader.read(READ_BYTES)
                except ConnectionError:
                    data = b""
                await pieces.put((clock() + self.delay, data))
                if not data:
                    await deliverer
                    return
        finally:
            deliverer.cancel()

    async def _deliver(self, pieces: "asyncio.Queue[tuple[float, bytes]]", writer: asyncio.StreamWriter) -> None:
        clock = asyncio.get_running_loop().time
        data = b"-"
        try:
            while data:
                due, data = await pieces.get()
                if due > clock():
                    await asyncio.sleep(due - clock())
                await self._flowing.wait()
                if data:
                    writer.write(data)
                    await writer.drain()
            writer.write_eof()
        except OSError:
            # This end is gone: what still comes for it has nowhere to go.
            while data:
                _, data = await pieces.get()


class ThreadedLinkProxy:
    """A LinkProxy on an event loop of its own, for code that doesn't await; used as a context manager."""

    def __init__(self, target_host: str, target_port: int, delay: float = 0.0) -> None:
        self._proxy = LinkProxy(target_host, target_port, delay)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="link-proxy", daemon=True)

    def __enter__(self) -> "ThreadedLinkProxy":
        self._thread.start()
        self._do(self._proxy.start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._do(self._proxy.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def port(self) -> int:
        """Where the proxy listens."""
        return self._proxy.port

    def cut(self) -> None:
        """As LinkProxy.cut; done when it returns."""
        self._do(self._proxy.cut())

    def restore(self) -> None:
        """As LinkProxy.restore; done when it returns."""
        self._do(self._proxy.restore())

    def hang(self) -> None:
        """As LinkProxy.hang; done when it returns."""
        self._do(self._proxy.hang())

    def _do(self, step: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(step, self._loop).result()


def _reusable_socket(port: int) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.bind(("127.0.0.1", port))
    return made


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close at once with a reset, whatever is still on its way (RFC 9293, section 3.10.5)."""
    raw = writer.get_extra_info("socket")
    if raw is not None and raw.fileno() >= 0:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
