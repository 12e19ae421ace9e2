"""The two protocol cores, alone and as a pair that passes bytes."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.bundle import BundleIdentity
from shared.codec import MAX_TEXT, decode, encode
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
    FinishReason,
    Frame,
    Hello,
    Open,
    Opened,
    Refuse,
    Steer,
    Timings,
    Welcome,
)
from shared.params import Limits, Placement, SamplingParams
from shared.protocol import HANDSHAKE_BYTES, CloudProtocol, EdgeProtocol, Protocol, State

IDENTITY = BundleIdentity("a" * 64, "b" * 64, "c" * 64, 2, "d" * 64)
LIMITS = Limits(max_frame_bytes=2048, max_sessions=2)
ROOMY = Limits(max_frame_bytes=HANDSHAKE_BYTES * 4)


def opening(session: int) -> Open:
    return Open(session, (1, 2), 2, 10, SamplingParams(), Placement.EDGE, (0,), None)


def commit(session: int) -> Commit:
    return Commit(session, 2, 9, (3,), 0, 0, Timings(1, 2, 3))


def draft(session: int) -> Draft:
    return Draft(session, 2, 9, (3, 4))


HELLO = Hello(CONNECTION, VERSION, IDENTITY, None)
WELCOME = Welcome(CONNECTION, VERSION, IDENTITY, LIMITS)
ONE_OF_EACH: dict[type[Frame], Frame] = {
    Hello: HELLO,
    Welcome: WELCOME,
    Open: opening(1),
    Opened: Opened(1, 2, 9),
    Draft: draft(1),
    Commit: commit(1),
    Steer: Steer(1, Placement.AR),
    Cancel: Cancel(1),
    Finish: Finish(1, 2, 9, FinishReason.STOP),
    Refuse: Refuse(1, Code.BUSY, "full"),
    Beat: Beat(CONNECTION, 5, False),
    Drain: Drain(CONNECTION, 5.0),
}


def sent(protocol: Protocol) -> list[Frame]:
    return [decode(message, 1 << 24) for message in protocol.outgoing()]


def ready_cloud(limits: Limits = LIMITS) -> CloudProtocol:
    cloud = CloudProtocol(IDENTITY, limits, None)
    cloud.receive(encode(HELLO))
    assert sent(cloud) == [Welcome(CONNECTION, VERSION, IDENTITY, limits)]
    return cloud


def ready_edge(welcome: Welcome = WELCOME) -> EdgeProtocol:
    edge = EdgeProtocol(IDENTITY, None)
    edge.outgoing()
    edge.receive(encode(welcome))
    assert edge.frames() == [welcome]
    return edge


def assert_refused(cloud: CloudProtocol, code: Code, close: int) -> Refuse:
    """The connection has ended with one Refuse, and nothing more comes out of it whatever happens."""
    (refuse,) = sent(cloud)
    assert isinstance(refuse, Refuse)
    assert (refuse.session, refuse.code) == (CONNECTION, code)
    assert refuse.message
    assert cloud.closing is not None and cloud.closing.code == close
    assert cloud.state is State.CLOSING
    assert cloud.sessions == []
    assert_silent(cloud)
    return refuse


def assert_silent(protocol: Protocol) -> None:
    closing, error = protocol.closing, protocol.error
    protocol.frames()
    for frame in ONE_OF_EACH.values():
        protocol.receive(encode(frame))
    protocol.receive(b"\xc1")
    protocol.send_beat(1)
    protocol.fail(PeerError(Code.INTERNAL, "later"))
    if isinstance(protocol, CloudProtocol):
        protocol.send(commit(1))
        protocol.finish(Finish(1, 2, 9, FinishReason.STOP))
        protocol.drain(1.0)
        protocol.refuse_connection(Code.INTERNAL, "later")
    if isinstance(protocol, EdgeProtocol):
        protocol.send(draft(1))
    assert protocol.outgoing() == []
    assert protocol.frames() == []
    assert (protocol.closing, protocol.error) == (closing, error)


# The handshake.


def test_the_handshake() -> None:
    edge = EdgeProtocol(IDENTITY, "secret-token")
    cloud = CloudProtocol(IDENTITY, LIMITS, "secret-token")
    assert {edge.state, cloud.state} == {State.HANDSHAKE}
    (hello,) = edge.outgoing()
    assert decode(hello, 9999) == Hello(CONNECTION, VERSION, IDENTITY, "secret-token")
    cloud.receive(hello)
    (welcome,) = cloud.outgoing()
    edge.receive(welcome)
    assert edge.frames() == [WELCOME]
    assert edge.limits == LIMITS
    assert {edge.state, cloud.state} == {State.READY}
    assert edge.max_frame_bytes == cloud.max_frame_bytes == LIMITS.max_frame_bytes
    assert edge.closing is cloud.closing is None


@pytest.mark.parametrize("given_token", [None, "", "secret-tokem", "secret-token ", "é" * 12, "x" * MAX_TEXT])
def test_a_token_that_is_missing_or_wrong_is_refused(given_token: str | None) -> None:
    """Hazard 22: and the refusal tells nothing of the token."""
    cloud = CloudProtocol(IDENTITY, LIMITS, "secret-token")
    cloud.receive(encode(replace(HELLO, token=given_token)))
    refuse = assert_refused(cloud, Code.UNAUTHORIZED, 1008)
    assert "secret" not in refuse.message


def test_a_token_that_nobody_asked_for_is_no_problem() -> None:
    cloud = CloudProtocol(IDENTITY, LIMITS, None)
    cloud.receive(encode(replace(HELLO, token="whatever")))
    assert cloud.state is State.READY


def test_the_token_is_checked_before_the_bundle_is_compared() -> None:
    """A stranger is not told what the cloud runs."""
    cloud = CloudProtocol(IDENTITY, LIMITS, "secret-token")
    cloud.receive(encode(replace(HELLO, identity=replace(IDENTITY, cut=3))))
    assert assert_refused(cloud, Code.UNAUTHORIZED, 1008).differs == ()


@pytest.mark.parametrize(
    ("other", "differs"),
    [
        (replace(IDENTITY, weights="f" * 64), ("weights",)),
        (replace(IDENTITY, tokenizer="f" * 64), ("tokenizer",)),
        (replace(IDENTITY, template="f" * 64), ("template",)),
        (replace(IDENTITY, cut=3), ("cut",)),
        (replace(IDENTITY, head="f" * 64), ("head",)),
        (replace(IDENTITY, tokenizer="f" * 64, cut=3), ("tokenizer", "cut")),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, tuple) else "",
)
def test_a_bundle_that_differs_is_refused_by_the_names_of_what_differs(
    other: BundleIdentity, differs: tuple[str, ...]
) -> None:
    """Hazard 16: a mismatch must never become silently poor drafts. Either side sees it."""
    cloud = CloudProtocol(IDENTITY, LIMITS, None)
    cloud.receive(encode(replace(HELLO, identity=other)))
    refuse = assert_refused(cloud, Code.BUNDLE_MISMATCH, 1008)
    assert refuse.differs == differs
    assert all(name in refuse.message for name in differs)

    edge = EdgeProtocol(IDENTITY, None)
    edge.receive(encode(replace(WELCOME, identity=other)))
    assert edge.error is not None and edge.error.code is Code.BUNDLE_MISMATCH
    assert all(name in edge.error.message for name in differs)
    assert edge.frames() == []


def test_another_version_is_refused_by_name() -> None:
    cloud = CloudProtocol(IDENTITY, LIMITS, None)
    cloud.receive(encode(replace(HELLO, version=VERSION + 1)))
    refuse = assert_refused(cloud, Code.VERSION, 1002)
    assert str(VERSION) in refuse.message and str(VERSION + 1) in refuse.message

    edge = EdgeProtocol(IDENTITY, None)
    edge.receive(encode(replace(WELCOME, version=VERSION + 1)))
    assert edge.error is not None and edge.error.code is Code.VERSION
    assert edge.state is State.CLOSING


@pytest.mark.parametrize("kind", [kind for kind in ONE_OF_EACH if kind is not Hello], ids=lambda kind: kind.__name__)
def test_nothing_but_a_hello_may_come_first(kind: type[Frame]) -> None:
    """Hazard 22: not even a Beat, or a stranger could hold a connection open for ever."""
    cloud = CloudProtocol(IDENTITY, LIMITS, None)
    cloud.receive(encode(ONE_OF_EACH[kind]))
    assert cloud.frames() == []
    assert_refused(cloud, Code.OUT_OF_ORDER, 1002)


@pytest.mark.parametrize(
    "kind", [kind for kind in ONE_OF_EACH if kind not in (Welcome,)], ids=lambda kind: kind.__name__
)
def test_a_device_expects_a_welcome_first(kind: type[Frame]) -> None:
    edge = EdgeProtocol(IDENTITY, None)
    edge.outgoing()
    edge.receive(encode(ONE_OF_EACH[kind]))
    assert edge.frames() == []
    assert edge.error is not None and edge.error.code is Code.OUT_OF_ORDER
    assert_silent(edge)


def test_a_device_takes_a_refusal_in_place_of_the_welcome() -> None:
    edge = EdgeProtocol(IDENTITY, None)
    refuse = Refuse(CONNECTION, Code.UNAUTHORIZED, "no")
    edge.receive(encode(refuse))
    assert edge.frames() == [refuse]
    assert edge.error is None, "a refusal is no breach of the protocol"
    assert edge.closing is not None and edge.closing.code == 1008


def test_the_handshake_takes_small_frames_only() -> None:
    """Hazards 11 and 22: who has shown no token may not make the cloud parse megabytes."""
    cloud = CloudProtocol(IDENTITY, ROOMY, None)
    cloud.receive(bytes(HANDSHAKE_BYTES + 1))
    refuse = assert_refused(cloud, Code.TOO_LARGE, 1009)
    assert str(HANDSHAKE_BYTES) in refuse.message
    edge = EdgeProtocol(IDENTITY, None)
    edge.receive(bytes(HANDSHAKE_BYTES + 1))
    assert edge.closing is not None and edge.closing.code == 1009


def test_the_longest_hello_and_welcome_fit_into_the_handshake() -> None:
    longest = "\U0001f512" * MAX_TEXT
    assert len(encode(replace(HELLO, token=longest))) < HANDSHAKE_BYTES
    assert len(encode(WELCOME)) < HANDSHAKE_BYTES


# Sizes and bytes that are no frame.


def test_after_the_handshake_the_bound_is_that_of_the_welcome() -> None:
    """Hazard 11: a typed refusal that names the limit, at exactly one byte too many."""
    big = replace(opening(1), tokens=tuple([70_000] * 4000))
    for size, refused in ((len(encode(big)), False), (len(encode(big)) - 1, True)):
        cloud = ready_cloud(replace(LIMITS, max_frame_bytes=size))
        cloud.receive(encode(big))
        if refused:
            assert str(size) in assert_refused(cloud, Code.TOO_LARGE, 1009).message
        else:
            assert cloud.frames() == [big]


def test_the_device_is_bound_as_well() -> None:
    edge = ready_edge()
    edge.receive(bytes(LIMITS.max_frame_bytes + 1))
    assert edge.error is not None and edge.error.code is Code.TOO_LARGE
    assert edge.closing is not None and edge.closing.code == 1009


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x92\x08\xc0", b"\x91" * 1500], ids=["empty", "c1", "nil", "deep"])
def test_bytes_that_are_no_frame_end_the_connection(data: bytes) -> None:
    cloud = ready_cloud()
    cloud.receive(encode(opening(1)))
    cloud.frames()
    cloud.receive(data)
    assert_refused(cloud, Code.BAD_FRAME, 1002)
    assert cloud.error is not None and cloud.error.code is Code.BAD_FRAME
    edge = ready_edge()
    edge.receive(data)
    assert edge.error is not None and edge.error.code is Code.BAD_FRAME
    assert_silent(edge)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.binary(max_size=40) | st.sampled_from([encode(frame) for frame in ONE_OF_EACH.values()])))
def test_no_bytes_make_a_protocol_raise(messages: list[bytes]) -> None:
    edge, cloud = EdgeProtocol(IDENTITY, None), CloudProtocol(IDENTITY, LIMITS, None)
    for message in messages:
        for protocol in (edge, cloud):
            protocol.receive(message)
            assert (protocol.state is State.CLOSING) == (protocol.closing is not None)
    assert all(isinstance(frame, Welcome | Refuse | Beat) for frame in sent(cloud))


def test_a_long_reason_fits_into_a_close_frame() -> None:
    """RFC 6455, section 5.5: 125 bytes, of which 2 are the code. A character is not cut in two."""
    cloud = ready_cloud()
    cloud.refuse_connection(Code.INTERNAL, "é" * 200)
    assert cloud.closing is not None
    assert 100 < len(cloud.closing.reason.encode()) <= 123
    assert cloud.closing.reason.startswith("internal: é")


@pytest.mark.parametrize(
    ("code", "close"),
    [
        (Code.BAD_FRAME, 1002),
        (Code.OUT_OF_ORDER, 1002),
        (Code.VERSION, 1002),
        (Code.UNKNOWN_SESSION, 1002),
        (Code.TOO_LARGE, 1009),
        (Code.UNAUTHORIZED, 1008),
        (Code.BUNDLE_MISMATCH, 1008),
        (Code.IDLE, 1001),
        (Code.INTERNAL, 1011),
        (Code.DRAINING, 1012),
        (Code.BUSY, 1013),
    ],
)
def test_close_codes(code: Code, close: int) -> None:
    cloud, edge = ready_cloud(), ready_edge()
    cloud.refuse_connection(code, "why", retry_after=2.0)
    (message,) = cloud.outgoing()
    assert cloud.closing is not None and (cloud.closing.code, cloud.closing.reason) == (close, f"{code}: why")
    edge.receive(message)
    assert edge.frames() == [Refuse(CONNECTION, code, "why", 2.0)]
    assert edge.closing is not None and edge.closing.code == close


# Order and sessions, in the cloud.


def test_a_second_hello_is_refused() -> None:
    cloud = ready_cloud()
    cloud.receive(encode(HELLO))
    assert_refused(cloud, Code.OUT_OF_ORDER, 1002)


@pytest.mark.parametrize("kind", [Welcome, Opened, Commit, Finish, Refuse, Drain], ids=lambda kind: kind.__name__)
def test_frames_of_the_cloud_do_not_go_up(kind: type[Frame]) -> None:
    cloud = ready_cloud()
    cloud.receive(encode(opening(1)))
    cloud.frames()
    cloud.receive(encode(ONE_OF_EACH[kind]))
    assert cloud.frames() == []
    assert_refused(cloud, Code.OUT_OF_ORDER, 1002)


@pytest.mark.parametrize("kind", [Hello, Welcome, Open, Draft, Steer, Cancel], ids=lambda kind: kind.__name__)
def test_frames_of_the_device_do_not_go_down(kind: type[Frame]) -> None:
    edge = ready_edge()
    edge.send(opening(1))
    edge.receive(encode(ONE_OF_EACH[kind]))
    assert edge.frames() == []
    assert edge.error is not None and edge.error.code is Code.OUT_OF_ORDER


def test_frames_of_an_open_session_pass() -> None:
    cloud = ready_cloud()
    frames: list[Frame] = [opening(1), draft(1), Steer(1, Placement.AR), Cancel(1)]
    for frame in frames:
        cloud.receive(encode(frame))
    assert cloud.frames() == frames
    assert cloud.frames() == []
    assert cloud.sessions == [1]


def test_session_numbers_only_rise() -> None:
    cloud = ready_cloud()
    cloud.receive(encode(opening(3)))
    cloud.receive(encode(opening(7)))
    assert cloud.sessions == [3, 7]
    cloud.receive(encode(opening(5)))
    assert_refused(cloud, Code.OUT_OF_ORDER, 1002)


def test_a_number_is_not_used_again_after_its_session_has_ended() -> None:
    cloud = ready_cloud()
    cloud.receive(encode(opening(1)))
    cloud.finish(Finish(1, 2, 9, FinishReason.STOP))
    cloud.outgoing()
    cloud.receive(encode(opening(1)))
    assert_refused(cloud, Code.OUT_OF_ORDER, 1002)


@pytest.mark.parametrize("frame", [draft(9), Steer(9, Placement.AR), Cancel(9)], ids=lambda f: type(f).__name__)
def test_a_session_that_never_was_is_refused(frame: Frame) -> None:
    cloud = ready_cloud()
    cloud.receive(encode(opening(1)))
    cloud.frames()
    cloud.receive(encode(frame))
    assert cloud.frames() == []
    assert_refused(cloud, Code.UNKNOWN_SESSION, 1002)


@pytest.mark.parametrize("last", [Finish(1, 2, 9, FinishReason.LENGTH), Refuse(1, Code.IDLE, "silent")])
def test_late_frames_of_an_ended_session_do_no_harm(last: Finish | Refuse) -> None:
    cloud = ready_cloud()
    cloud.receive(encode(opening(1)))
    cloud.receive(encode(opening(2)))
    cloud.frames()
    cloud.finish(last)
    assert sent(cloud) == [last]
    for frame in (draft(1), Steer(1, Placement.AR), Cancel(1)):
        cloud.receive(encode(frame))
    assert cloud.frames() == []
    assert cloud.outgoing() == []
    assert cloud.state is State.READY
    assert cloud.sessions == [2]


def test_nothing_is_sent_for_a_session_after_its_last_frame() -> None:
    cloud = ready_cloud()
    cloud.receive(encode(opening(1)))
    cloud.finish(Finish(1, 2, 9, FinishReason.STOP))
    cloud.send(commit(1))
    cloud.finish(Refuse(1, Code.INTERNAL, "late"))
    assert sent(cloud) == [Finish(1, 2, 9, FinishReason.STOP)]


def test_sessions_of_a_connection_are_bounded() -> None:
    """The one too many is refused with retry_after; the others and the connection go on."""
    cloud = ready_cloud()
    for session in (1, 2, 3):
        cloud.receive(encode(opening(session)))
    assert cloud.frames() == [opening(1), opening(2)]
    (refuse,) = sent(cloud)
    assert isinstance(refuse, Refuse) and (refuse.session, refuse.code) == (3, Code.BUSY)
    assert refuse.retry_after is not None
    cloud.receive(encode(draft(3)))
    assert cloud.frames() == [], "frames that crossed the refusal do no harm"
    cloud.finish(Finish(1, 2, 9, FinishReason.STOP))
    cloud.receive(encode(opening(4)))
    assert cloud.frames() == [opening(4)]
    assert cloud.state is State.READY


def test_an_answer_for_a_session_that_the_device_never_opened_is_refused() -> None:
    edge = ready_edge()
    edge.send(opening(1))
    edge.receive(encode(commit(2)))
    assert edge.error is not None and edge.error.code is Code.UNKNOWN_SESSION


def test_a_device_may_not_send_before_the_welcome() -> None:
    edge = EdgeProtocol(IDENTITY, None)
    with pytest.raises(AssertionError):
        edge.send(opening(1))
    with pytest.raises(AssertionError):
        edge.send_beat(1)


def test_a_refused_session_leaves_the_connection_open() -> None:
    edge = ready_edge()
    edge.send(opening(1))
    refuse = Refuse(1, Code.TOO_LONG, "too long")
    edge.receive(encode(refuse))
    assert edge.frames() == [refuse]
    assert edge.state is State.READY


# Heartbeats and draining.


@pytest.mark.parametrize("make", [ready_cloud, ready_edge], ids=["cloud", "device"])
def test_a_beat_is_echoed_and_an_echo_is_not(make: Callable[[], Protocol]) -> None:
    """Hazard 9: traffic that every proxy counts."""
    protocol = make()
    protocol.outgoing()
    protocol.receive(encode(Beat(CONNECTION, 2**64 - 1, echo=False)))
    assert sent(protocol) == [Beat(CONNECTION, 2**64 - 1, echo=True)]
    assert protocol.frames() == []
    protocol.receive(encode(Beat(CONNECTION, 7, echo=True)))
    assert protocol.outgoing() == []
    assert protocol.frames() == [Beat(CONNECTION, 7, echo=True)]


def test_draining_refuses_new_sessions_and_leaves_the_open_ones() -> None:
    cloud = ready_cloud()
    cloud.receive(encode(opening(1)))
    cloud.frames()
    cloud.drain(4.0)
    assert sent(cloud) == [Drain(CONNECTION, 4.0)]
    cloud.receive(encode(opening(2)))
    (refuse,) = sent(cloud)
    assert isinstance(refuse, Refuse) and (refuse.session, refuse.code) == (2, Code.DRAINING)
    assert cloud.frames() == []
    cloud.receive(encode(draft(1)))
    assert cloud.frames() == [draft(1)]
    cloud.send(commit(1))
    assert sent(cloud) == [commit(1)]


def test_draining_before_the_hello_says_nothing_yet() -> None:
    cloud = CloudProtocol(IDENTITY, LIMITS, None)
    cloud.drain(4.0)
    assert cloud.outgoing() == []
    cloud.receive(encode(HELLO))
    cloud.receive(encode(opening(1)))
    welcome, refuse = sent(cloud)
    assert isinstance(welcome, Welcome)
    assert isinstance(refuse, Refuse) and refuse.code is Code.DRAINING


def test_a_device_hears_of_a_drain() -> None:
    edge = ready_edge()
    edge.receive(encode(Drain(CONNECTION, 4.0)))
    assert edge.frames() == [Drain(CONNECTION, 4.0)]
    assert edge.state is State.READY


# The pair.


def exchange(edge: EdgeProtocol, cloud: CloudProtocol) -> None:
    """Pass bytes both ways until nobody has anything to say."""
    quiet = False
    while not quiet:
        up, down = edge.outgoing(), cloud.outgoing()
        for message in up:
            cloud.receive(message)
        for message in down:
            edge.receive(message)
        quiet = not up and not down


def test_a_conversation_in_bytes() -> None:
    edge, cloud = EdgeProtocol(IDENTITY, "secret-token"), CloudProtocol(IDENTITY, LIMITS, "secret-token")
    exchange(edge, cloud)
    assert edge.frames() == [WELCOME]
    edge.send(opening(1))
    edge.send_beat(41)
    edge.send(draft(1))
    exchange(edge, cloud)
    assert cloud.frames() == [opening(1), draft(1)]
    assert edge.frames() == [Beat(CONNECTION, 41, echo=True)]
    cloud.send(Opened(1, 2, 9))
    cloud.send(commit(1))
    cloud.finish(Finish(1, 3, 9, FinishReason.LENGTH))
    exchange(edge, cloud)
    assert edge.frames() == [Opened(1, 2, 9), commit(1), Finish(1, 3, 9, FinishReason.LENGTH)]
    edge.send(Cancel(1))
    exchange(edge, cloud)
    assert cloud.frames() == []
    assert edge.state is cloud.state is State.READY


def test_a_resume_on_a_new_connection_needs_nothing_of_the_old_one() -> None:
    """Hazard 7: the longer list of ids is all there is to restore."""
    first = EdgeProtocol(IDENTITY, None)
    exchange(first, CloudProtocol(IDENTITY, LIMITS, None))
    first.send(opening(1))
    edge, cloud = EdgeProtocol(IDENTITY, None), CloudProtocol(IDENTITY, LIMITS, None)
    exchange(edge, cloud)
    resumed = replace(opening(2), tokens=(1, 2, 3, 4))
    edge.send(resumed)
    exchange(edge, cloud)
    assert cloud.frames() == [resumed]


def test_a_breach_by_the_device_ends_both_sides_with_the_same_code() -> None:
    edge, cloud = EdgeProtocol(IDENTITY, None), CloudProtocol(IDENTITY, LIMITS, None)
    exchange(edge, cloud)
    edge.frames()
    edge.send(draft(5))
    exchange(edge, cloud)
    (refuse,) = edge.frames()
    assert isinstance(refuse, Refuse) and refuse.code is Code.UNKNOWN_SESSION
    assert edge.closing is not None and cloud.closing is not None
    assert edge.closing == cloud.closing
    assert_silent(edge)
    assert_silent(cloud)
