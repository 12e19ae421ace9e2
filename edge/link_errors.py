"""What a failed connection means: the one place where foreign exceptions become Edgewise's own.

LinkLost means that the network or the peer's process failed, which is the only reason for going offline (hazard 20).
Refused with `retry_after` means: ask again later. Everything else needs a person, and is not tried again.
"""

import errno
import json
import re
import socket
import ssl
from datetime import datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus

from websockets.exceptions import (
    ConnectionClosed,
    InvalidHandshake,
    InvalidMessage,
    InvalidProxy,
    InvalidStatus,
    ProxyError,
)
from websockets.frames import Close
from websockets.http11 import Response

from shared.errors import BadInput, Code, EdgewiseError, LinkLost, PeerError, Refused
from shared.frames import Refuse

# How long to wait before asking again where the other side names no time, and the longest wait it may name, in seconds.
DEFAULT_RETRY = 1.0
LONGEST_RETRY = 3600.0

_UNREACHABLE = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN)
_RESET = (errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE)
_CODE_OF_CLOSE = {1008: Code.UNAUTHORIZED, 1011: Code.INTERNAL, 1013: Code.BUSY}
# Refusals of the whole connection after which the same device may ask again, and those that a new connection mends.
_LATER = (Code.BUSY, Code.INTERNAL)
_RECONNECT = (Code.DRAINING, Code.IDLE, Code.UNKNOWN_SESSION)


def connect_failure(error: Exception, where: str, timeout_s: float, now: datetime) -> EdgewiseError:
    """What it means that no WebSocket could be opened to `where`; `now` is for a Retry-After that is a date."""
    match error:
        case InvalidStatus():
            return _status_failure(error.response, where, now)
        case ssl.SSLCertVerificationError():
            return _certificate_failure(error, where)
        case ssl.SSLEOFError() | ssl.SSLZeroReturnError():
            return LinkLost(f"{where} closed the connection during the TLS handshake")
        case ssl.SSLError():
            return BadInput(f"no TLS with {where} ({error.reason}); if the cloud speaks plain WebSocket, use ws://")
        case socket.gaierror():
            return LinkLost(f"the name in {where} does not resolve ({error.strerror}); check it, or the network")
        case TimeoutError():
            return LinkLost(
                f"{where} did not answer within {timeout_s:g} s; check the address, a firewall, the network"
            )
        case OSError():
            return _socket_failure(error, where)
        case InvalidProxy():
            return BadInput(f"the HTTP proxy of this environment can't be used: {error}")
        case ProxyError():
            return LinkLost(f"the HTTP proxy of this environment can't reach {where}: {error}")
        case InvalidMessage() if isinstance(error.__cause__, EOFError):
            return LinkLost(f"{where} closed the connection before it answered; if it speaks TLS, use wss://")
        case InvalidMessage():
            return BadInput(f"{where} does not speak HTTP; check the port, and use wss:// if it speaks TLS")
        case InvalidHandshake():
            return BadInput(f"{where} does not speak WebSocket as asked ({error}); check address and proxy")
        case ConnectionClosed():
            return closed_failure(error, where)
    raise error


def closed_failure(error: ConnectionClosed, where: str) -> EdgewiseError:
    """What the end of an open WebSocket means."""
    if error.rcvd is None:
        if error.sent is not None and error.sent.code in (1002, 1007, 1009):
            code = Code.TOO_LARGE if error.sent.code == 1009 else Code.BAD_FRAME
            return PeerError(code, f"{where} sent what can't be taken: {error.sent.reason or error.sent.code}")
        return LinkLost(f"the connection to {where} broke off")
    return _close_frame(error.rcvd, where)


def refusal(frame: Refuse) -> EdgewiseError:
    """What a Refuse of the whole connection means."""
    if frame.code in _RECONNECT:
        return LinkLost(f"the cloud ended the connection: {frame.message}")
    retry_after = frame.retry_after
    if frame.code in _LATER:
        retry_after = min(DEFAULT_RETRY if retry_after is None else retry_after, LONGEST_RETRY)
    else:
        retry_after = None
    return Refused(frame.code, frame.message, retry_after)


def _close_frame(close: Close, where: str) -> EdgewiseError:
    """Close codes of RFC 6455, section 7.4.1, and of the IANA registry above 1011."""
    code, reason = close.code, close.reason or "no reason given"
    # Edgewise writes "code: sentence" into the reason, so the code is known even where the Refuse was lost.
    named, _, sentence = reason.partition(": ")
    if sentence and named in set(Code):
        return refusal(Refuse(0, Code(named), sentence))
    if code in _CODE_OF_CLOSE:
        return refusal(Refuse(0, _CODE_OF_CLOSE[code], f"{where} closed with {code}: {reason}"))
    if code == 1009:
        return Refused(Code.TOO_LARGE, f"{where}, or a proxy before it, takes no message of this size: {reason}")
    if code in (1002, 1003, 1007):
        return PeerError(Code.BAD_FRAME, f"{where} can't read what this device sends ({code}: {reason}); update both")
    if code == 1012:
        return LinkLost(f"{where} restarts")
    return LinkLost(f"{where} closed the connection ({code}: {reason})")


def _status_failure(response: Response, where: str, now: datetime) -> EdgewiseError:
    status = response.status_code
    said = _sentence(response)
    match status:
        case HTTPStatus.UNAUTHORIZED | HTTPStatus.FORBIDDEN:
            return Refused(Code.UNAUTHORIZED, f"{where} wants a token, or another one ({status}{said})")
        case HTTPStatus.TOO_MANY_REQUESTS:
            return Refused(Code.BUSY, f"{where} is full ({status}{said})", _retry_after(response, now))
        case HTTPStatus.SERVICE_UNAVAILABLE:
            return LinkLost(f"{where} is not ready yet ({status}{said})")
        case HTTPStatus.BAD_GATEWAY | HTTPStatus.GATEWAY_TIMEOUT:
            return LinkLost(f"the proxy at {where} does not reach the cloud ({status}{said})")
        case HTTPStatus.INTERNAL_SERVER_ERROR:
            return Refused(Code.INTERNAL, f"{where} failed ({status}{said})", _retry_after(response, now))
    if 300 <= status < 400:
        target = response.headers.get("Location", "elsewhere")
        return BadInput(f"{where} sends on to {target}; give the cloud's own address")
    return BadInput(f"there is no Edgewise cloud at {where} ({status}{said}); check host, port and path")


def _sentence(response: Response) -> str:
    """What an error body in OpenAI's shape says, if this is one."""
    try:
        return f": {json.loads(response.body or b'')['error']['message']}"
    except (ValueError, KeyError, TypeError):
        return f" {response.reason_phrase}"


def _retry_after(response: Response, now: datetime) -> float:
    """Seconds of a Retry-After header (RFC 9110, section 10.2.3): a number, or a date."""
    text = response.headers.get("Retry-After", "")
    try:
        seconds = float(text) if text.isdigit() else (parsedate_to_datetime(text) - now).total_seconds()
    except (ValueError, TypeError):
        return DEFAULT_RETRY
    return min(max(seconds, 0.0), LONGEST_RETRY)


def _certificate_failure(error: ssl.SSLCertVerificationError, where: str) -> BadInput:
    advice = "name its issuer with --ca, if you trust it"
    if "mismatch" in error.verify_message or "not valid for" in error.verify_message:
        advice = "use a name that the certificate holds"
    elif "expired" in error.verify_message or "not yet valid" in error.verify_message:
        advice = "renew it, or set this device's clock"
    return BadInput(f"the certificate of {where} can't be trusted: {error.verify_message}; {advice}")


def _socket_failure(error: OSError, where: str) -> LinkLost:
    if isinstance(error, ConnectionError) and not error.errno:
        # asyncio's own, for an end of the stream within the TLS handshake.
        return LinkLost(f"{where} closed the connection before it answered; if it speaks plain WebSocket, use ws://")
    # asyncio joins the failures of several addresses of one name into a single text without an errno.
    numbers = {error.errno} if error.errno else {int(n) for n in re.findall(r"\[Errno (\d+)\]", str(error))}
    if errno.ECONNREFUSED in numbers:
        return LinkLost(f"nothing listens at {where} (connection refused); is the cloud running there?")
    if numbers & set(_UNREACHABLE):
        return LinkLost(f"there is no way to {where} ({error}); is the network up?")
    if numbers & set(_RESET):
        return LinkLost(f"{where} reset the connection")
    return LinkLost(f"no connection to {where}: {error}")
