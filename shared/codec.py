"""Frames to bytes and back: one msgpack array a frame, every field checked for type and range.

A decoder never trusts its peer: sizes are bounded before anything is built, and whatever is wrong becomes one
PeerError that names the frame and the field.
"""

from collections.abc import Callable
from dataclasses import astuple, fields
from enum import StrEnum
from math import isfinite
from typing import Any, TypeVar, cast

import msgpack

from shared.bundle import BundleIdentity
from shared.errors import BadInput, Code, PeerError
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
    HiddenRows,
    Open,
    Opened,
    Refuse,
    Steer,
    Timings,
    Welcome,
)
from shared.params import Limits, Placement, SamplingParams

MAX_POSITION = 2**31 - 1
MAX_SESSION = 2**32 - 1
MAX_TEXT = 4096
MAX_ITEMS = 1 << 20

Check = Callable[[Any], Any]
E = TypeVar("E", bound=StrEnum)


def encode(frame: Frame) -> bytes:
    """The bytes of one frame."""
    checks = _FIELDS[frame.TAG][1]
    return cast(bytes, msgpack.packb([frame.TAG, *(_plain(getattr(frame, name)) for name in checks)]))


def decode(data: bytes, max_bytes: int) -> Frame:
    """The frame in `data`.

    Raises PeerError: `too_large` above `max_bytes`, `version` for a Hello or Welcome of another version, else
    `bad_frame` with the frame and field that are wrong.
    """
    if len(data) > max_bytes:
        raise PeerError(Code.TOO_LARGE, f"a frame of {len(data)} bytes; the limit is {max_bytes}")
    try:
        array = msgpack.unpackb(data, use_list=True, raw=False, max_array_len=MAX_ITEMS, max_map_len=0, max_ext_len=0)
    except Exception as error:
        # msgpack raises its own and many built-in exceptions; all mean that these bytes are no frame.
        raise PeerError(Code.BAD_FRAME, f"not a msgpack value: {type(error).__name__}") from error
    if not isinstance(array, list) or not array or type(array[0]) is not int:
        raise PeerError(Code.BAD_FRAME, "a frame is a msgpack array that starts with its tag, a whole number")
    known = _FIELDS.get(array[0])
    if known is None:
        raise PeerError(Code.BAD_FRAME, f"unknown frame tag {array[0]}; known: 1 to {max(_FIELDS)}")
    kind, checks = known
    _check_version(kind, array)
    if len(array) - 1 != len(checks):
        raise PeerError(Code.BAD_FRAME, f"{kind.__name__} has {len(checks)} fields after its tag, not {len(array) - 1}")
    values = []
    for (name, check), value in zip(checks.items(), array[1:], strict=True):
        try:
            values.append(check(value))
        except (ValueError, BadInput) as error:
            raise PeerError(Code.BAD_FRAME, f"{kind.__name__}.{name}: {error}") from error
    try:
        return kind(*values)
    except ValueError as error:
        raise PeerError(Code.BAD_FRAME, f"{kind.__name__}: {error}") from error


def _check_version(kind: type[Frame], array: list[Any]) -> None:
    """Name another version as such: its Hello and Welcome begin like ours, whatever fields follow."""
    if kind in (Hello, Welcome) and len(array) > 2 and type(array[2]) is int and array[2] != VERSION:
        raise PeerError(Code.VERSION, f"this side speaks version {VERSION} of the protocol, the other {array[2]}")


def _plain(value: Any) -> Any:
    """A field as msgpack can write it: records become arrays of their fields."""
    match value:
        case StrEnum():
            return value.value
        case BundleIdentity():
            return value.to_wire()
        case HiddenRows() | Timings() | Limits() | SamplingParams():
            return list(astuple(value))
        case _:
            return value


def _integer(low: int, high: int) -> Check:
    def check(value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise ValueError(f"must be a whole number from {low} to {high}, not {_short(value)}")
        return value

    return check


def _connection(value: Any) -> int:
    if type(value) is not int or value != CONNECTION:
        raise ValueError(f"must be {CONNECTION}, since this frame is about the connection, not {_short(value)}")
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not isfinite(value):
        raise ValueError(f"must be a finite number, not {_short(value)}")
    return float(value)


def _seconds(value: Any) -> float:
    seconds = _number(value)
    if seconds < 0:
        raise ValueError(f"must be 0 or more seconds, not {_short(value)}")
    return seconds


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError(f"must be true or false, not {_short(value)}")
    return value


def _text(value: Any) -> str:
    if type(value) is not str or len(value) > MAX_TEXT:
        raise ValueError(f"must be a string of at most {MAX_TEXT} characters, not {_short(value)}")
    return value


def _optional(check: Check) -> Check:
    return lambda value: None if value is None else check(value)


def _tuple_of(check: Check) -> Check:
    def check_all(value: Any) -> tuple[Any, ...]:
        if type(value) is not list or len(value) > MAX_ITEMS:
            raise ValueError(f"must be an array of at most {MAX_ITEMS} items, not {_short(value)}")
        return tuple(check(item) for item in value)

    return check_all


def _one_of(kind: type[E]) -> Check:
    def check(value: Any) -> E:
        try:
            return kind(value)
        except ValueError:
            raise ValueError(f"must be one of {', '.join(kind)}, not {_short(value)}") from None

    return check


def _record(kind: type, *checks: Check) -> Check:
    def check(value: Any) -> Any:
        if type(value) is not list or len(value) != len(checks):
            raise ValueError(f"must be an array of {len(checks)} fields, not {_short(value)}")
        return kind(*(one(item) for one, item in zip(checks, value, strict=True)))

    return check


def _blob(value: Any) -> bytes:
    if type(value) is not bytes:
        raise ValueError(f"must be binary, not {_short(value)}")
    return value


def _identity(value: Any) -> BundleIdentity:
    if type(value) is not list:
        raise ValueError(f"must be an array, not {_short(value)}")
    return BundleIdentity.from_wire(value)


def _short(value: Any) -> str:
    # Only scalars are shown: the repr of a nested array can be deeper than the interpreter's stack.
    if not isinstance(value, str | int | float | None):
        return f"{type(value).__name__} of {len(value)}" if isinstance(value, bytes | list) else type(value).__name__
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{type(value).__name__} {shown[:40]}…"


_POSITION = _integer(0, MAX_POSITION)
_COUNT = _integer(0, MAX_POSITION)
_U64 = _integer(0, 2**64 - 1)
_TOKENS = _tuple_of(_integer(0, MAX_POSITION))
_SESSION = _integer(1, MAX_SESSION)
_ANY_SESSION = _integer(CONNECTION, MAX_SESSION)
_HIDDEN = _optional(_record(HiddenRows, _text, _POSITION, _blob))
_PARAMS = _record(SamplingParams, _U64, _number, _COUNT, _number, _number, _number, _number, _number)
_LIMITS = _record(Limits, _COUNT, _COUNT, _COUNT, _COUNT, _COUNT, _COUNT, _tuple_of(_text))
_TIMINGS = _record(Timings, _U64, _U64, _COUNT)


def _fields(kind: type[Frame], *checks: Check) -> tuple[type[Frame], dict[str, Check]]:
    return kind, dict(zip((field.name for field in fields(kind)), checks, strict=True))


_CATALOGUE = (
    _fields(Hello, _connection, _COUNT, _identity, _optional(_text)),
    _fields(Welcome, _connection, _COUNT, _identity, _LIMITS),
    _fields(
        Open,
        _SESSION,
        _TOKENS,
        _POSITION,
        _COUNT,
        _PARAMS,
        _one_of(Placement),
        _TOKENS,
        _optional(_text),
    ),
    _fields(Opened, _SESSION, _POSITION, _U64),
    _fields(Draft, _SESSION, _POSITION, _U64, _TOKENS, _optional(_tuple_of(_integer(-1, MAX_POSITION))), _HIDDEN),
    _fields(Commit, _SESSION, _POSITION, _U64, _TOKENS, _COUNT, _COUNT, _TIMINGS, _HIDDEN),
    _fields(Steer, _SESSION, _one_of(Placement)),
    _fields(Cancel, _SESSION),
    _fields(Finish, _SESSION, _POSITION, _U64, _one_of(FinishReason)),
    _fields(Refuse, _ANY_SESSION, _one_of(Code), _text, _optional(_seconds), _tuple_of(_text)),
    _fields(Beat, _connection, _U64, _boolean),
    _fields(Drain, _connection, _seconds),
)
_FIELDS = {kind.TAG: (kind, checks) for kind, checks in _CATALOGUE}
