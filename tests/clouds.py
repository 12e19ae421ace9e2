"""Small WebSocket servers on loopback that say what a test wants, in threads of the test."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

from shared.frames import Frame
from shared.params import Limits
from shared.protocol import CloudProtocol
from tests.fakes import IDENTITY

LIMITS = Limits(max_frame_bytes=1 << 16)
Handler = Callable[[ServerConnection], None]
Denial = Callable[[ServerConnection, Request], Response | None]


@contextmanager
def running_cloud(
    handler: Handler, *, denial: Denial | None = None, tls: ssl.SSLContext | None = None, max_size: int = 1 << 20
) -> Iterator[int]:
    """Serve `handler` until the block ends; the port it listens on."""
    server = serve(
        handler,
        "127.0.0.1",
        0,
        process_request=denial,
        ssl=tls,
        compression=None,
        max_size=max_size,
        ping_interval=None,
        close_timeout=1,
    )
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.socket.getsockname()[1]
    finally:
        server.shutdown()
        thread.join(10)
        assert not thread.is_alive(), "the server did not stop"


@contextmanager
def raw_server(answer: bytes | None) -> Iterator[int]:
    """A server that is no WebSocket: sends `answer` to whoever asks and closes, or (None) closes at once."""
    listener = socket.create_server(("127.0.0.1", 0))

    def work() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(4096)
                if answer is not None:
                    connection.sendall(answer)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        # A blocked accept returns when the listener is shut down, not when it is closed.
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)


class Script:
    """Speaks the cloud's protocol: welcomes every device, and hands each frame to `act` with a way to answer."""

    def __init__(self, act: Callable[[CloudProtocol, Frame], None] | None = None, limits: Limits = LIMITS) -> None:
        self.act = act
        self.limits = limits
        self.connections = 0
        self.headers: list[Headers] = []
        self.received: list[Frame] = []

    def __call__(self, connection: ServerConnection) -> None:
        self.connections += 1
        assert connection.request is not None
        self.headers.append(connection.request.headers)
        protocol = CloudProtocol(IDENTITY, self.limits, None)
        try:
            while protocol.closing is None:
                data = connection.recv()
                assert isinstance(data, bytes)
                protocol.receive(data)
                for frame in protocol.frames():
                    self.received.append(frame)
                    if self.act is not None:
                        self.act(protocol, frame)
                for message in protocol.outgoing():
                    connection.send(message)
            connection.close(protocol.closing.code, protocol.closing.reason)
        except ConnectionClosed:
            # The device went away, or the test ended the connection.
            return
