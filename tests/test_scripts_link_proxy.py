"""The proxy that plays bad weather."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from scripts.link_proxy import ThreadedLinkProxy

PATIENCE = 10.0


@contextmanager
def echo_server() -> Iterator[int]:
    """Sends back what it gets, on each connection, until the block ends; a closed direction is closed back."""
    listener = socket.create_server(("127.0.0.1", 0))

    def echo(connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(4096):
                    connection.sendall(data)
            except ConnectionError:
                return

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=echo, args=(connection,)).start()

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        # A blocked accept returns when the listener is shut down, not when it is closed.
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(PATIENCE)


def client(proxy: ThreadedLinkProxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE)


def read(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = connection.recv(count - len(data))
        assert piece, "closed too early"
        data += piece
    return data


def test_bytes_pass_unchanged_both_ways_and_the_end_too() -> None:
    payload = bytes(range(256)) * 4000
    with echo_server() as port, ThreadedLinkProxy("127.0.0.1", port) as proxy, client(proxy) as connection:
        writer = threading.Thread(target=lambda: (connection.sendall(payload), connection.shutdown(socket.SHUT_WR)))
        writer.start()
        assert read(connection, len(payload)) == payload
        assert connection.recv(1) == b""
        writer.join(PATIENCE)


def test_a_cut_resets_and_refuses_until_it_is_restored() -> None:
    with echo_server() as port, ThreadedLinkProxy("127.0.0.1", port) as proxy:
        before = proxy.port
        with client(proxy) as connection:
            connection.sendall(b"hello")
            assert read(connection, 5) == b"hello"
            proxy.cut()
            with pytest.raises(ConnectionResetError):
                connection.recv(1)
        for _ in range(50):
            with pytest.raises(ConnectionRefusedError):
                client(proxy)
        proxy.cut()
        proxy.restore()
        proxy.restore()
        assert proxy.port == before
        with client(proxy) as connection:
            connection.sendall(b"again")
            assert read(connection, 5) == b"again"


def test_a_hanging_link_accepts_and_says_nothing() -> None:
    with echo_server() as port, ThreadedLinkProxy("127.0.0.1", port) as proxy, client(proxy) as old:
        old.sendall(b"x")
        assert read(old, 1) == b"x"
        proxy.hang()
        with client(proxy) as new:
            for connection in (old, new):
                connection.sendall(b"late")
                connection.settimeout(0.05)
                with pytest.raises(TimeoutError):
                    connection.recv(1)
                connection.settimeout(PATIENCE)
            proxy.restore()
            assert read(old, 4) == read(new, 4) == b"late"


def test_a_delay_holds_each_piece_back_and_keeps_the_order() -> None:
    with echo_server() as port, ThreadedLinkProxy("127.0.0.1", port, delay=0.05) as proxy, client(proxy) as connection:
        began = time.monotonic()
        connection.sendall(b"ab")
        connection.sendall(b"cd")
        assert read(connection, 4) == b"abcd"
        assert time.monotonic() - began >= 0.1


def test_an_absent_target_closes_the_connection() -> None:
    # Bound and not listening: the port stays absent, and nobody else's.
    with socket.socket() as absent:
        absent.bind(("127.0.0.1", 0))
        port = absent.getsockname()[1]
        with ThreadedLinkProxy("127.0.0.1", port) as proxy:
            # The reset may come as soon as the connection stands.
            with pytest.raises(ConnectionResetError), client(proxy) as connection:
                connection.recv(1)


def test_stopping_frees_port_and_thread() -> None:
    with echo_server() as port:
        with ThreadedLinkProxy("127.0.0.1", port) as proxy, client(proxy) as connection:
            connection.sendall(b"x")
            assert read(connection, 1) == b"x"
        with pytest.raises(ConnectionRefusedError):
            client(proxy)
    assert not any(thread.name == "link-proxy" for thread in threading.enumerate())
