"""The link against real WebSocket servers on loopback, with short times."""

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from random import Random

import pytest
import trustme
from websockets.datastructures import Headers
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection

from edge.link import Link
from edge.link_config import LinkConfig
from edge.link_events import Declined, Fatal, FrameReceived, LinkDown, LinkEvent, LinkUp
from scripts.link_proxy import ThreadedLinkProxy
from shared.bundle import BundleIdentity
from shared.codec import encode
from shared.errors import BadInput, Code, LinkLost, PeerError, Refused
from shared.frames import CONNECTION, Cancel, Draft, Drain, Finish, FinishReason, Frame, Open, Opened, Refuse
from shared.params import Limits, Placement, SamplingParams
from shared.protocol import CloudProtocol
from tests.clouds import Handler, Script, raw_server, running_cloud
from tests.fakes import IDENTITY

PATIENCE = 10.0


def config(port: int, **changes: object) -> LinkConfig:
    times: dict[str, object] = {
        "connect_timeout_s": 2.0,
        "hello_timeout_s": 2.0,
        "beat_timeout_s": 2.0,
        "backoff_base_s": 0.01,
        "backoff_cap_s": 0.05,
    }
    return LinkConfig(**{"url": f"ws://127.0.0.1:{port}", "identity": IDENTITY, **times, **changes})  # type: ignore[arg-type]


@contextmanager
def started(made: LinkConfig) -> Iterator[Link]:
    link = Link(made, Random(1))
    link.start()
    try:
        yield link
    finally:
        link.close()


def next_event(link: Link) -> LinkEvent:
    event = link.poll(PATIENCE)
    assert event is not None, "nothing came of it"
    return event


def wait_for(link: Link, kind: type[LinkEvent]) -> LinkEvent:
    """The next event of this kind; those before it are dropped."""
    for _ in range(1000):
        event = next_event(link)
        if isinstance(event, kind):
            return event
    raise AssertionError(f"no {kind.__name__}")


def an_open(session: int = 1, tokens: int = 3) -> Open:
    return Open(session, tuple(range(tokens)), tokens, 8, SamplingParams(), Placement.AR, (0,), None)


def opens(protocol: CloudProtocol, frame: Frame) -> None:
    if isinstance(frame, Open):
        protocol.send(Opened(frame.session, len(frame.tokens), 7))


def after_welcome(act: Callable[[ServerConnection], None]) -> Handler:
    """A cloud that welcomes, and then does as it is told."""

    def handler(connection: ServerConnection) -> None:
        protocol = CloudProtocol(IDENTITY, Limits(), None)
        data = connection.recv()
        assert isinstance(data, bytes)
        protocol.receive(data)
        for message in protocol.outgoing():
            connection.send(message)
        act(connection)

    return handler


def hangs(release: threading.Event) -> Callable[[ServerConnection], None]:
    return lambda connection: release.wait(PATIENCE) and None


def denies(status: HTTPStatus, body: bytes = b"", **headers: str) -> Callable[[ServerConnection, Request], Response]:
    def denial(connection: ServerConnection, request: Request) -> Response:
        fields = Headers({name.replace("_", "-"): value for name, value in headers.items()})
        fields["Content-Length"] = str(len(body))
        return Response(status, status.phrase, fields, body)

    return denial


def test_frames_travel_both_ways_and_are_counted() -> None:
    """Hazard 12: nothing is compressed, so the payload is what is counted."""
    script = Script(opens)
    with running_cloud(script) as port, started(config(port, token="secret")) as link:
        up = next_event(link)
        assert isinstance(up, LinkUp) and link.connected
        assert up.welcome.limits == script.limits
        assert 0 < up.rtt_s < PATIENCE
        before = link.bytes_up
        link.send(an_open())
        assert next_event(link) == FrameReceived(Opened(1, 3, 7))
        assert link.bytes_up - before >= len(encode(an_open()))
        assert link.bytes_down > len(encode(Opened(1, 3, 7)))
        assert script.headers[0]["Authorization"] == "Bearer secret"
        assert "Sec-WebSocket-Extensions" not in script.headers[0]
    assert link.poll(0.0) is None


def test_a_large_frame_passes_within_the_limits() -> None:
    """Hazard 11: the limits are those of the Welcome, not the 1 MiB that the library starts with."""
    script = Script(opens, Limits(max_frame_bytes=8 << 20))
    with running_cloud(script, max_size=8 << 20) as port, started(config(port)) as link:
        next_event(link)
        link.send(an_open(tokens=300_000))
        assert next_event(link) == FrameReceived(Opened(1, 300_000, 7))


def test_a_frame_above_the_clouds_limit_is_refused_here() -> None:
    """Hazard 11: a typed error with both numbers instead of a closed connection."""
    with running_cloud(Script(opens)) as port, started(config(port)) as link:
        next_event(link)
        link.send(an_open(tokens=40_000))
        event = next_event(link)
        assert isinstance(event, Fatal) and isinstance(event.error, Refused)
        assert event.error.code is Code.TOO_LARGE
        assert "takes 65536" in str(event.error)


def test_a_message_above_our_own_limit_is_the_peers_fault() -> None:
    """Hazard 11."""
    handler = after_welcome(lambda connection: connection.send(b"x" * 5000))
    with running_cloud(handler) as port, started(config(port, max_message_bytes=4096)) as link:
        wait_for(link, LinkUp)
        event = next_event(link)
        assert isinstance(event, Fatal) and isinstance(event.error, PeerError)
        assert event.error.code is Code.TOO_LARGE


def test_beats_measure_the_round_trip_while_an_answer_is_open() -> None:
    """Hazard 9: heartbeats are data frames of the protocol, which every proxy counts as traffic."""
    with running_cloud(Script(opens)) as port:
        with started(config(port, beat_interval_s=0.01, idle_beat_interval_s=60.0)) as link:
            next_event(link)
            assert link.poll(0.05) is None
            quiet = link.bytes_up
            link.send(an_open())
            next_event(link)
            wanted = quiet + len(encode(an_open())) + 5 * len(b"\x94\x0b\x00\x01\xc2")
            deadline = time.monotonic() + PATIENCE
            while link.bytes_up < wanted and time.monotonic() < deadline:
                link.poll(0.01)
            assert link.bytes_up >= wanted
            assert link.rtt_s is not None and link.rtt_s > 0


def test_an_idle_link_beats_too() -> None:
    """Hazard 9: an idle link stays below the time-outs of proxies."""
    with running_cloud(Script()) as port, started(config(port, idle_beat_interval_s=0.01)) as link:
        next_event(link)
        begun = link.bytes_down
        deadline = time.monotonic() + PATIENCE
        while link.bytes_down < begun + 15 and time.monotonic() < deadline:
            link.poll(0.01)
        assert link.bytes_down >= begun + 15


def test_a_refused_port_is_a_lost_link_and_is_tried_again() -> None:
    """Hazard 20: only this kind of failure means offline; and hazard 9: the link comes back by itself."""
    script = Script(opens)
    with running_cloud(script) as target, ThreadedLinkProxy("127.0.0.1", target) as proxy:
        proxy.cut()
        with started(config(proxy.port)) as link:
            down = next_event(link)
            assert isinstance(down, LinkDown)
            assert str(down.error).startswith(f"nothing listens at 127.0.0.1:{proxy.port} (connection refused)")
            assert 0.005 <= down.retry_in_s <= 0.05
            proxy.restore()
            wait_for(link, LinkUp)
            link.send(an_open())
            wait_for(link, FrameReceived)


def test_a_cut_is_told_and_the_link_returns() -> None:
    with running_cloud(Script(opens)) as target, ThreadedLinkProxy("127.0.0.1", target) as proxy:
        with started(config(proxy.port)) as link:
            next_event(link)
            proxy.cut()
            down = next_event(link)
            assert isinstance(down, LinkDown) and "broke off" in str(down.error)
            assert not link.connected
            proxy.restore()
            wait_for(link, LinkUp)
            assert link.connected


def test_what_was_meant_for_an_old_connection_reaches_no_new_one() -> None:
    """The cloud would end a connection over a Draft for a session that was never opened on it."""
    script = Script(opens)
    with running_cloud(script) as target, ThreadedLinkProxy("127.0.0.1", target) as proxy:
        with started(config(proxy.port)) as link:
            next_event(link)
            link.send(an_open(1))
            next_event(link)
            welcomed = link.bytes_down
            proxy.cut()
            proxy.restore()
            deadline = time.monotonic() + PATIENCE
            while link.bytes_down == welcomed and time.monotonic() < deadline:
                time.sleep(0.001)
            assert link.connected, "this thread has not taken the LinkDown yet"
            link.send(Draft(1, 3, 7, (4,)))
            wait_for(link, LinkUp)
            link.send(an_open(2))
            assert wait_for(link, FrameReceived) == FrameReceived(Opened(2, 3, 7))
    assert not any(isinstance(frame, Draft) for frame in script.received)


def test_a_hung_peer_is_found_by_its_silence() -> None:
    """Hazard 10: a peer that is there and says nothing."""
    with running_cloud(Script(opens)) as target, ThreadedLinkProxy("127.0.0.1", target) as proxy:
        with started(config(proxy.port, beat_interval_s=0.02, beat_timeout_s=0.1)) as link:
            next_event(link)
            link.send(an_open())
            next_event(link)
            proxy.hang()
            down = next_event(link)
            assert isinstance(down, LinkDown)
            assert "no sign of life from" in str(down.error) and "for 0.1 s" in str(down.error)


def test_a_peer_that_never_welcomes_hangs() -> None:
    release = threading.Event()
    with running_cloud(hangs(release)) as port, started(config(port, hello_timeout_s=0.05)) as link:
        down = next_event(link)
        assert isinstance(down, LinkDown)
        assert f"connected to 127.0.0.1:{port}, but no Welcome within 0.05 s: the peer hangs" == str(down.error)
        release.set()


def test_a_port_that_accepts_and_says_nothing_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with started(config(port, connect_timeout_s=0.05)) as link:
            down = next_event(link)
    assert isinstance(down, LinkDown) and "did not answer within 0.05 s" in str(down.error)


def test_a_name_that_does_not_resolve_is_a_lost_link() -> None:
    with started(config(0, url="ws://no-such-host.invalid:80")) as link:
        down = next_event(link)
    assert isinstance(down, LinkDown)
    assert "no-such-host.invalid:80 does not resolve" in str(down.error)


@pytest.mark.parametrize(
    ("status", "error", "code", "words"),
    [
        (HTTPStatus.UNAUTHORIZED, Refused, Code.UNAUTHORIZED, "wants a token"),
        (HTTPStatus.FORBIDDEN, Refused, Code.UNAUTHORIZED, "wants a token"),
        (HTTPStatus.NOT_FOUND, BadInput, None, "there is no Edgewise cloud at"),
        (HTTPStatus.OK, BadInput, None, "there is no Edgewise cloud at"),
        (HTTPStatus.MOVED_PERMANENTLY, BadInput, None, "sends on to ws://elsewhere/; give the cloud's own address"),
    ],
)
def test_an_answer_that_needs_a_person_is_fatal(status: HTTPStatus, error: type, code: Code | None, words: str) -> None:
    """Hazard 20: an application's refusal never reads as offline."""
    denial = denies(status, Location="ws://elsewhere/")
    with running_cloud(Script(), denial=denial) as port, started(config(port)) as link:
        event = next_event(link)
        assert isinstance(event, Fatal) and type(event.error) is error
        assert words in str(event.error)
        assert code is None or (isinstance(event.error, Refused) and event.error.code is code)
        assert link.poll(PATIENCE) is event, "a Fatal stays"
        link.send(an_open())


def test_a_full_cloud_declines_and_is_asked_again() -> None:
    """Hazard 20: 429 is no reason to go offline; its own words and its Retry-After are kept."""
    answers = iter([denies(HTTPStatus.TOO_MANY_REQUESTS, b'{"error": {"message": "8 devices"}}', Retry_After="0")])

    def denial(connection: ServerConnection, request: Request) -> Response | None:
        answer = next(answers, None)
        return None if answer is None else answer(connection, request)

    with running_cloud(Script(), denial=denial) as port, started(config(port)) as link:
        event = next_event(link)
        assert isinstance(event, Declined)
        assert event.error.code is Code.BUSY and "8 devices" in str(event.error)
        assert isinstance(next_event(link), LinkUp)


def test_a_loading_cloud_is_a_lost_link() -> None:
    denial = denies(HTTPStatus.SERVICE_UNAVAILABLE, b'{"error": {"message": "the model is loading"}}')
    with running_cloud(Script(), denial=denial) as port, started(config(port)) as link:
        down = next_event(link)
    assert isinstance(down, LinkDown) and "not ready yet (503: the model is loading)" in str(down.error)


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [(b"SSH-2.0-OpenSSH_9.6\r\n", Fatal, "does not speak HTTP"), (None, LinkDown, "before it answered")],
)
def test_a_port_that_is_no_websocket(answer: bytes | None, kind: type, words: str) -> None:
    with raw_server(answer) as port, started(config(port)) as link:
        event = next_event(link)
    assert isinstance(event, kind)
    assert isinstance(event, Fatal | LinkDown) and words in str(event.error)


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (1008, Fatal, "unauthorized"),
        (1009, Fatal, "takes no message of this size"),
        (1011, Declined, "closed with 1011"),
        (1012, LinkDown, "restarts"),
        (1013, Declined, "closed with 1013"),
        (1000, LinkDown, "closed the connection (1000"),
    ],
)
def test_close_codes_have_their_own_meaning(code: int, kind: type, words: str) -> None:
    handler = after_welcome(lambda connection: connection.close(code))
    with running_cloud(handler) as port, started(config(port)) as link:
        wait_for(link, LinkUp)
        event = next_event(link)
    assert isinstance(event, kind)
    assert isinstance(event, Fatal | LinkDown | Declined) and words in str(event.error)


def test_another_bundle_is_refused_by_name() -> None:
    """Hazard 16: what differs is named in the handshake."""
    other = BundleIdentity("e" * 64, IDENTITY.tokenizer, IDENTITY.template, IDENTITY.cut, IDENTITY.head)
    with running_cloud(Script()) as port, started(config(port, identity=other)) as link:
        event = next_event(link)
    assert isinstance(event, Fatal) and isinstance(event.error, Refused)
    assert event.error.code is Code.BUNDLE_MISMATCH and "differs in weights" in str(event.error)


@pytest.mark.parametrize("message", [b"\xc1", "text", encode(Opened(5, 1, 1)), encode(Cancel(1))])
def test_a_peer_that_breaks_the_protocol_ends_the_link(message: bytes | str) -> None:
    handler = after_welcome(lambda connection: connection.send(message))
    with running_cloud(handler) as port, started(config(port)) as link:
        wait_for(link, LinkUp)
        event = next_event(link)
    assert isinstance(event, Fatal) and isinstance(event.error, PeerError)


def test_a_session_that_is_refused_leaves_the_link_up() -> None:
    def refuses(protocol: CloudProtocol, frame: Frame) -> None:
        if isinstance(frame, Open):
            protocol.finish(Refuse(frame.session, Code.TOO_LONG, "too long"))

    with running_cloud(Script(refuses)) as port, started(config(port)) as link:
        next_event(link)
        link.send(an_open())
        assert next_event(link) == FrameReceived(Refuse(1, Code.TOO_LONG, "too long"))
        assert link.connected and link.poll(0.05) is None


def test_a_drain_moves_the_link_to_a_new_connection() -> None:
    script = Script()

    def drains(protocol: CloudProtocol, frame: Frame) -> None:
        if isinstance(frame, Open) and script.connections == 1:
            protocol.drain(1.0)
        else:
            opens(protocol, frame)

    script.act = drains
    with running_cloud(script) as port, started(config(port)) as link:
        next_event(link)
        link.send(an_open())
        assert next_event(link) == FrameReceived(Drain(CONNECTION, 1.0))
        down = next_event(link)
        assert isinstance(down, LinkDown) and "going away" in str(down.error)
        wait_for(link, LinkUp)
        link.send(an_open(2))
        assert next_event(link) == FrameReceived(Opened(2, 3, 7))


def test_closing_sends_what_was_queued_before_it() -> None:
    """Hazard 8: a Cancel just before the end reaches the cloud."""
    script = Script(opens)
    with running_cloud(script) as port:
        with started(config(port)) as link:
            next_event(link)
            link.send(an_open())
            next_event(link)
            link.send(Cancel(1))
        deadline = time.monotonic() + PATIENCE
        while Cancel(1) not in script.received and time.monotonic() < deadline:
            time.sleep(0.001)
    assert script.received[-1] == Cancel(1)


def test_a_finished_answer_ends_the_quick_beats() -> None:
    def finishes(protocol: CloudProtocol, frame: Frame) -> None:
        if isinstance(frame, Open):
            protocol.finish(Finish(frame.session, 3, 7, FinishReason.LENGTH))

    with running_cloud(Script(finishes)) as port:
        with started(config(port, beat_interval_s=0.01, idle_beat_interval_s=60.0)) as link:
            next_event(link)
            link.send(an_open())
            assert next_event(link) == FrameReceived(Finish(1, 3, 7, FinishReason.LENGTH))
            # At most the beat that was due when the answer ended still goes out.
            link.poll(0.05)
            sent = link.bytes_up
            assert link.poll(0.1) is None
            assert link.bytes_up == sent


def test_closing_is_prompt_whatever_the_link_does() -> None:
    with started(config(1, backoff_base_s=60.0, backoff_cap_s=60.0)) as link:
        assert isinstance(next_event(link), LinkDown)
        began = time.monotonic()
        link.close()
        link.close()
        assert time.monotonic() - began < 5.0
        assert link.poll(None) is None


def certificate(folder: Path, name: str) -> tuple[ssl.SSLContext, Path]:
    """A server's TLS context with a certificate for `name`, and the file of the authority to trust it by."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    file = folder / "ca.pem"
    authority.cert_pem.write_to_path(str(file))
    return context, file


def test_tls_with_a_certificate_to_trust(tmp_path: Path) -> None:
    context, ca = certificate(tmp_path, "127.0.0.1")
    with running_cloud(Script(opens), tls=context) as port:
        with started(config(port, url=f"wss://127.0.0.1:{port}", ca=ca)) as link:
            assert isinstance(next_event(link), LinkUp)
            link.send(an_open())
            assert isinstance(next_event(link), FrameReceived)


def test_each_tls_failure_has_its_own_words_and_none_is_offline(tmp_path: Path) -> None:
    """Hazard 20."""
    context, ca = certificate(tmp_path, "cloud.example")
    with running_cloud(Script(), tls=context) as port, raw_server(b"HTTP/1.1 400 Bad Request\r\n\r\n") as plain:
        secure = f"wss://127.0.0.1:{port}"
        for made, words in [
            (config(port, url=secure), "name its issuer with --ca"),
            (config(port, url=secure, ca=ca), "use a name that the certificate holds"),
            (config(port, url=f"wss://127.0.0.1:{plain}"), "use ws://"),
        ]:
            with started(made) as link:
                event = next_event(link)
            assert isinstance(event, Fatal) and isinstance(event.error, BadInput), event
            assert words in str(event.error)


def test_plain_websocket_to_a_tls_port_hints_at_wss(tmp_path: Path) -> None:
    context, _ = certificate(tmp_path, "127.0.0.1")
    with running_cloud(Script(), tls=context) as port, started(config(port)) as link:
        event = next_event(link)
    assert isinstance(event, Fatal | LinkDown) and "wss://" in str(event.error)


def test_a_lost_link_is_the_only_kind_of_link_down() -> None:
    with started(config(1)) as link:
        event = next_event(link)
    assert isinstance(event, LinkDown) and type(event.error) is LinkLost
