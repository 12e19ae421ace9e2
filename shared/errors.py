"""Every error that Edgewise raises on purpose.

EdgewiseError
├── BadInput            what the user gave can't be used; the message says what would be right
│   └── BundleError     a bundle file is missing, changed, truncated or of the wrong kind
├── PeerError           the other side broke the protocol (carries a code from `Code`)
├── Refused             one side declines a well-formed request (code, sentence, perhaps retry_after)
└── LinkLost            the link failed: the only reason for going on offline

An `AssertionError` means that Edgewise itself has a bug.
"""

from enum import StrEnum


class Code(StrEnum):
    """Why a request or a connection was refused (PROTOCOL.md, "Refusal codes")."""

    BAD_FRAME = "bad_frame"
    TOO_LARGE = "too_large"
    OUT_OF_ORDER = "out_of_order"
    VERSION = "version"
    UNAUTHORIZED = "unauthorized"
    BUNDLE_MISMATCH = "bundle_mismatch"
    BUSY = "busy"
    TOO_LONG = "too_long"
    BAD_REQUEST = "bad_request"
    UNKNOWN_SESSION = "unknown_session"
    WINDOW_EXCEEDED = "window_exceeded"
    BAD_HIDDEN = "bad_hidden"
    DRAINING = "draining"
    IDLE = "idle"
    INTERNAL = "internal"


class EdgewiseError(Exception):
    """Base of all errors raised on purpose."""


class BadInput(EdgewiseError):
    """What the user gave can't be used."""


class BundleError(BadInput):
    """A bundle file is missing, changed, truncated or of the wrong kind; the message names the file."""


class PeerError(EdgewiseError):
    """The other side broke the protocol."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class Refused(EdgewiseError):
    """A well-formed request was declined.

    `retry_after` is in seconds, or None where trying again will not help.
    """

    def __init__(self, code: Code, message: str, retry_after: float | None = None) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.retry_after = retry_after


class LinkLost(EdgewiseError):
    """The link to the cloud failed: refused, unresolved, reset, timed out or cut."""
