"""The device's link to the cloud: a thread that owns the socket and time, and reconnects by itself."""

import asyncio
import logging
import threading
from datetime import UTC, datetime
from random import Random

from websockets.asyncio.client import ClientConnection, connect

from edge.backoff import Backoff
from edge.event_box import EventBox
from edge.link_config import LinkConfig
from edge.link_connection import LinkConnection, Traffic
from edge.link_errors import connect_failure
from edge.link_events import Declined, Fatal, FrameReceived, LinkDown, LinkEvent, LinkUp
from shared.errors import EdgewiseError, LinkLost, Refused
from shared.frames import Cancel, Draft, Open, Steer

log = logging.getLogger(__name__)


class Link:
    """Carries frames for the generating thread, which calls `poll` and `send`.

    A connection exists for that thread from the moment it takes its LinkUp until it takes the LinkDown. A frame goes
    only to the connection that the thread knows; where that one is gone, the frame is dropped, so nothing meant for
    an old connection reaches a new one.
    """

    def __init__(self, config: LinkConfig, random: Random | None = None) -> None:
        """Raises BadInput for certificates that can't be read."""
        self._config = config
        self._random = random or Random()
        self._tls = config.tls()
        self._traffic = Traffic()
        self._box = EventBox()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        # The number of the connection that the caller knows to be up, and that of the newest one.
        self._known: int | None = None
        self._newest = 0
        self._connection: LinkConnection | None = None

    @property
    def connected(self) -> bool:
        """Whether the link is up, as far as `poll` has told."""
        return self._known is not None

    @property
    def rtt_s(self) -> float | None:
        """The smoothed round trip in seconds, once one has been measured."""
        return self._traffic.rtt_s

    @property
    def bytes_up(self) -> int:
        """Payload bytes of all messages sent."""
        return self._traffic.bytes_up

    @property
    def bytes_down(self) -> int:
        """Payload bytes of all messages received."""
        return self._traffic.bytes_down

    def start(self) -> None:
        """Begin to connect; what comes of it is told by `poll`."""
        assert self._thread is None, "a link starts once"
        self._loop = asyncio.new_event_loop()
        self._task = self._loop.create_task(self._keep_connected())
        self._thread = threading.Thread(target=self._run, name="edgewise-link", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the connection and the thread; harmless when repeated."""
        if self._thread is None or self._loop is None or self._task is None:
            return
        self._call(self._task.cancel)
        self._thread.join()

    def poll(self, timeout: float | None) -> LinkEvent | None:
        """The next event, or None when none comes within `timeout` seconds (None: wait for one).

        After a Fatal each call returns it again; after `close` what is left, then None.
        """
        taken = self._box.take(timeout)
        if taken is None:
            return None
        event, number = taken
        if isinstance(event, LinkUp):
            self._known = number
        elif not isinstance(event, FrameReceived):
            self._known = None
        return event

    def send(self, frame: Open | Draft | Steer | Cancel) -> None:
        """Queue a frame; returns at once. Dropped when the connection is gone: `poll` tells."""
        if self._known is not None:
            self._call(self._send, frame, self._known)

    def _send(self, frame: Open | Draft | Steer | Cancel, number: int) -> None:
        if self._connection is not None and number == self._newest:
            self._connection.send(frame)

    def _call(self, function: object, *arguments: object) -> None:
        assert self._loop is not None and callable(function)
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            # The loop has closed, after a Fatal or `close`: there is no connection any more.
            log.debug("the link has ended")

    def _run(self) -> None:
        assert self._loop is not None and self._task is not None
        try:
            self._loop.run_until_complete(self._task)
        except asyncio.CancelledError:
            log.debug("the link was closed")
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()
            self._box.close()

    async def _keep_connected(self) -> None:
        config = self._config
        backoff = Backoff(config.backoff_base_s, config.backoff_cap_s, self._random)
        while True:
            self._newest += 1
            try:
                error = await self._one_connection(backoff)
            except Exception as bug:
                log.exception("the link failed")
                error = EdgewiseError(f"the link failed: {bug!r}")
            match error:
                case LinkLost():
                    wait = backoff.next()
                    self._box.put(LinkDown(error, wait), self._newest)
                case Refused(retry_after=float() as seconds):
                    wait = max(backoff.next(), backoff.after(seconds))
                    self._box.put(Declined(error, wait), self._newest)
                case _:
                    self._box.put(Fatal(error), self._newest)
                    return
            await asyncio.sleep(wait)

    async def _one_connection(self, backoff: Backoff) -> EdgewiseError:
        """Connect, and carry frames until the connection ends; why it did."""
        config, number = self._config, self._newest
        try:
            socket = await self._open_socket()
        except Exception as error:
            return connect_failure(error, config.where, config.connect_timeout_s, datetime.now(UTC))

        def deliver(event: LinkUp | FrameReceived) -> bool:
            return self._box.put(event, number)

        connection = LinkConnection(socket, config, self._traffic, deliver)
        self._connection = connection
        try:
            return await connection.run()
        finally:
            self._connection = None
            now = asyncio.get_running_loop().time()
            if connection.ready_at is not None and now - connection.ready_at >= config.stable_after_s:
                backoff.reset()

    async def _open_socket(self) -> ClientConnection:
        config = self._config
        headers = {} if config.token is None else {"Authorization": f"Bearer {config.token}"}
        return await _DirectConnect(
            config.session_url,
            ssl=self._tls,
            additional_headers=headers,
            # Tensors don't compress, and trying costs more time than the link (hazard 12).
            compression=None,
            max_size=config.max_message_bytes,
            open_timeout=config.connect_timeout_s,
            close_timeout=config.close_timeout_s,
            # The protocol's own beats do this; WebSocket pings are invisible to many proxies (hazard 9).
            ping_interval=None,
            proxy=None if config.loopback else True,
        )


class _DirectConnect(connect):
    """Follows no redirect: the session would run somewhere else than where the user said."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc
