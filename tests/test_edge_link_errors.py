"""Foreign exceptions one by one: what is offline, what is asked again, what needs a person."""

import errno
import socket
import ssl
from datetime import UTC, datetime

import pytest
from websockets.datastructures import Headers
from websockets.exceptions import (
    ConnectionClosedError,
    InvalidMessage,
    InvalidProxy,
    InvalidStatus,
    InvalidUpgrade,
    ProxyError,
)
from websockets.frames import Close
from websockets.http11 import Response

from edge.link_errors import LONGEST_RETRY, closed_failure, connect_failure, refusal
from shared.errors import BadInput, Code, EdgewiseError, LinkLost, PeerError, Refused
from shared.frames import CONNECTION, Refuse

WHERE = "cloud.example:443"
NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


def failure(error: Exception) -> EdgewiseError:
    return connect_failure(error, WHERE, 5.0, NOW)


def status(code: int, **headers: str) -> InvalidStatus:
    fields = Headers({name.replace("_", "-"): value for name, value in headers.items()})
    return InvalidStatus(Response(code, "Reason", fields, b""))


def untrusted(message: str) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "verify failed")
    error.verify_message = message
    return error


def no_tls(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, "no TLS")
    error.reason = reason
    return error


def before_answer(cause: Exception) -> InvalidMessage:
    error = InvalidMessage("did not receive a valid HTTP response")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), "nothing listens at cloud.example:443"),
        (OSError("Multiple exceptions: [Errno 111] Connect call failed, [Errno 111] Connect"), "nothing listens"),
        (OSError("Multiple exceptions: [Errno 101] Network, [Errno 111] Connect"), "nothing listens"),
        (OSError(errno.ENETUNREACH, "Network is unreachable"), "is the network up?"),
        (OSError(errno.EHOSTUNREACH, "No route to host"), "is the network up?"),
        (ConnectionResetError(errno.ECONNRESET, "reset"), "reset the connection"),
        (ConnectionResetError(), "before it answered"),
        (OSError(errno.EMFILE, "Too many open files"), "Too many open files"),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "does not resolve"),
        (TimeoutError(), "did not answer within 5 s"),
        (ssl.SSLEOFError(8, "EOF"), "during the TLS handshake"),
        (before_answer(EOFError()), "before it answered"),
        (ProxyError("bad gateway"), "proxy of this environment can't reach"),
        (status(503), "not ready yet"),
        (status(502), "does not reach the cloud"),
        (status(504), "does not reach the cloud"),
    ],
)
def test_a_failing_network_or_process_is_a_lost_link(error: Exception, words: str) -> None:
    """Hazard 20."""
    met = failure(error)
    assert type(met) is LinkLost and words in str(met)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (untrusted("self-signed certificate"), "name its issuer with --ca"),
        (untrusted("Hostname mismatch, certificate is not valid for 'x'."), "use a name that the certificate holds"),
        (untrusted("certificate has expired"), "renew it"),
        (no_tls("WRONG_VERSION_NUMBER"), "use ws://"),
        (before_answer(ValueError("no HTTP")), "does not speak HTTP"),
        (InvalidUpgrade("Upgrade", "h2c"), "does not speak WebSocket"),
        (InvalidProxy("ftp://x", "scheme"), "proxy of this environment can't be used"),
        (status(404), "there is no Edgewise cloud"),
        (status(426), "there is no Edgewise cloud"),
        (status(302, Location="https://login.example/"), "sends on to https://login.example/"),
    ],
)
def test_what_needs_a_person_is_never_offline(error: Exception, words: str) -> None:
    """Hazard 20."""
    met = failure(error)
    assert isinstance(met, BadInput) and words in str(met)


@pytest.mark.parametrize("code", [401, 403])
def test_a_missing_token_is_refused_for_good(code: int) -> None:
    met = failure(status(code))
    assert isinstance(met, Refused)
    assert (met.code, met.retry_after) == (Code.UNAUTHORIZED, None)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7.0),
        ("Thu, 01 Jan 2026 12:00:30 GMT", 30.0),
        ("Thu, 01 Jan 2026 11:00:00 GMT", 0.0),
        ("soon", 1.0),
        ("-3", 1.0),
        ("99999999", LONGEST_RETRY),
        ("", 1.0),
    ],
)
def test_retry_after_is_a_number_or_a_date(header: str, seconds: float) -> None:
    met = failure(status(429, Retry_After=header))
    assert isinstance(met, Refused)
    assert (met.code, met.retry_after) == (Code.BUSY, seconds)


def test_a_server_error_is_asked_again_and_is_not_offline() -> None:
    met = failure(status(500))
    assert isinstance(met, Refused) and met.code is Code.INTERNAL and met.retry_after == 1.0


def test_an_unknown_exception_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        failure(ZeroDivisionError())


def closed(received: Close | None, sent: Close | None = None) -> EdgewiseError:
    both = None if received is None or sent is None else True
    return closed_failure(ConnectionClosedError(received, sent, both), WHERE)


@pytest.mark.parametrize("code", [1000, 1001, 1005, 1012, 4000])
def test_a_close_without_blame_is_a_lost_link(code: int) -> None:
    assert type(closed(Close(code, ""))) is LinkLost


def test_no_close_frame_is_a_lost_link() -> None:
    assert type(closed(None)) is LinkLost
    assert type(closed(None, Close(1001, ""))) is LinkLost


def test_the_code_in_the_reason_wins_over_the_number() -> None:
    met = closed(Close(1008, "bundle_mismatch: differs in weights"))
    assert isinstance(met, Refused) and met.code is Code.BUNDLE_MISMATCH and met.retry_after is None
    later = closed(Close(1013, "busy: 4 sessions"))
    assert isinstance(later, Refused) and (later.code, later.retry_after) == (Code.BUSY, 1.0)
    assert type(closed(Close(1012, "draining: bye"))) is LinkLost


def test_blame_is_told_apart() -> None:
    """Hazard 11: 1009 is a size, and says whose."""
    theirs = closed(Close(1009, ""))
    assert isinstance(theirs, Refused) and theirs.code is Code.TOO_LARGE and theirs.retry_after is None
    ours = closed(None, Close(1009, "over limit"))
    assert isinstance(ours, PeerError) and ours.code is Code.TOO_LARGE
    assert isinstance(closed(Close(1002, "")), PeerError)
    assert isinstance(closed(None, Close(1007, "")), PeerError)


@pytest.mark.parametrize(
    ("code", "kind", "retry_after"),
    [
        (Code.BUSY, Refused, 1.0),
        (Code.INTERNAL, Refused, 1.0),
        (Code.UNAUTHORIZED, Refused, None),
        (Code.VERSION, Refused, None),
        (Code.BAD_FRAME, Refused, None),
        (Code.DRAINING, LinkLost, None),
        (Code.IDLE, LinkLost, None),
    ],
)
def test_a_refused_connection_is_asked_again_only_where_it_helps(
    code: Code, kind: type, retry_after: float | None
) -> None:
    met = refusal(Refuse(CONNECTION, code, "why"))
    assert type(met) is kind and "why" in str(met)
    assert getattr(met, "retry_after", None) == retry_after


def test_the_clouds_own_waiting_time_is_kept_within_bounds() -> None:
    kept = refusal(Refuse(CONNECTION, Code.BUSY, "why", 2.5))
    bounded = refusal(Refuse(CONNECTION, Code.BUSY, "why", 1e12))
    assert isinstance(kept, Refused) and kept.retry_after == 2.5
    assert isinstance(bounded, Refused) and bounded.retry_after == LONGEST_RETRY
