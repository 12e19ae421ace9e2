"""Frames to bytes and back, and bytes that are no frame: only PeerError ever comes out of the decoder."""

import math
from typing import Any

import msgpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shared.bundle import BundleIdentity
from shared.codec import MAX_ITEMS, MAX_POSITION, MAX_TEXT, decode, encode
from shared.errors import Code, PeerError
from shared.frames import (
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

MAX_BYTES = 1 << 20
FAST = settings(max_examples=80, deadline=None)

sessions = st.integers(1, 2**32 - 1)
counts = st.integers(0, MAX_POSITION)
u64 = st.integers(0, 2**64 - 1)
ids = st.lists(counts, max_size=8).map(tuple)
texts = st.text(max_size=20)
maybe_text = st.none() | texts
sha = st.text("0123456789abcdef", min_size=64, max_size=64)
identities = st.builds(BundleIdentity, sha, sha, sha, st.integers(1, 200), sha)
placements = st.sampled_from(Placement)
seconds = st.floats(0, 1e9)
hidden = st.builds(HiddenRows, texts, st.just(0), st.binary(max_size=40))
timings = st.builds(Timings, u64, u64, counts)
limits = st.builds(
    Limits,
    *(st.integers(1, MAX_POSITION) for _ in range(6)),
    hidden_codecs=st.lists(texts, max_size=3).map(tuple),
)
params = st.builds(
    SamplingParams,
    seed=u64,
    temperature=st.just(0.0) | st.floats(0.001, 100),
    top_k=counts,
    top_p=st.floats(0, 1, exclude_min=True),
    min_p=st.floats(0, 1, exclude_max=True),
    repetition_penalty=st.floats(0.01, 100),
    presence_penalty=st.floats(-2, 2),
    frequency_penalty=st.floats(-2, 2),
)


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    tokens = draw(ids)
    parents = draw(st.none() | st.tuples(*(st.integers(-1, index - 1) for index in range(len(tokens)))))
    return Draft(draw(sessions), draw(counts), draw(u64), tokens, parents, draw(st.none() | hidden))


@st.composite
def commits(draw: st.DrawFn) -> Commit:
    tokens = draw(ids)
    accepted = draw(st.integers(0, len(tokens)))
    drafted = draw(st.integers(accepted, MAX_POSITION))
    return Commit(
        draw(sessions), draw(counts), draw(u64), tokens, accepted, drafted, draw(timings), draw(st.none() | hidden)
    )


FRAMES: dict[type[Frame], st.SearchStrategy[Frame]] = {
    Hello: st.builds(Hello, st.just(0), st.just(VERSION), identities, maybe_text),
    Welcome: st.builds(Welcome, st.just(0), st.just(VERSION), identities, limits),
    Open: st.builds(Open, sessions, ids, counts, counts, params, placements, ids, maybe_text),
    Opened: st.builds(Opened, sessions, counts, u64),
    Draft: drafts(),
    Commit: commits(),
    Steer: st.builds(Steer, sessions, placements),
    Cancel: st.builds(Cancel, sessions),
    Finish: st.builds(Finish, sessions, counts, u64, st.sampled_from(FinishReason)),
    Refuse: st.builds(
        Refuse,
        st.integers(0, 2**32 - 1),
        st.sampled_from(Code),
        texts,
        st.none() | seconds,
        st.lists(texts, max_size=3).map(tuple),
    ),
    Beat: st.builds(Beat, st.just(0), u64, st.booleans()),
    Drain: st.builds(Drain, st.just(0), seconds),
}
any_frame = st.one_of(*FRAMES.values())

# One of each, all optional fields present, to be bent out of shape below.
IDENTITY = BundleIdentity("a" * 64, "b" * 64, "c" * 64, 2, "d" * 64)
DRAFT = [5, 7, 3, 99, [1, 2, 3], [-1, 0, 0], ["fp32", 2, b"\0" * 16]]
COMMIT = [6, 7, 3, 99, [1, 2], 1, 4, [10, 20, 5], None]
OPEN = [3, 7, [1, 2], 2, 50, [1, 0.8, 0, 1.0, 0.0, 1.0, 0.0, 0.0], "edge", [0], None]
HELLO = [1, 0, VERSION, IDENTITY.to_wire(), None]
WELCOME = [2, 0, VERSION, IDENTITY.to_wire(), [65536, 512, 100, 32, 4, 300, ["fp32"]]]
REFUSE = [10, 7, "busy", "full", 1.5, []]


def refusal(data: bytes, max_bytes: int = MAX_BYTES) -> PeerError:
    with pytest.raises(PeerError) as caught:
        decode(data, max_bytes)
    return caught.value


def pack(value: Any) -> bytes:
    packed = msgpack.packb(value)
    assert isinstance(packed, bytes)
    return packed


def bent(frame: list[Any], *path: int, to: Any) -> bytes:
    """The bytes of `frame` with the field at `path` replaced."""
    copy = msgpack.unpackb(pack(frame))
    place = copy
    for index in path[:-1]:
        place = place[index]
    place[path[-1]] = to
    return pack(copy)


@pytest.mark.parametrize("kind", FRAMES, ids=lambda kind: kind.__name__)
def test_every_frame_comes_back_as_it_was(kind: type[Frame]) -> None:
    @settings(max_examples=15, deadline=None)
    @given(FRAMES[kind])
    def round_trip(frame: Frame) -> None:
        data = encode(frame)
        again = decode(data, len(data))
        assert again == frame
        assert type(again) is kind
        assert encode(again) == data

    round_trip()


def test_the_catalogue_is_whole_and_its_tags_are_distinct() -> None:
    assert set(FRAMES) == set(Frame.__args__)
    assert sorted(kind.TAG for kind in FRAMES) == list(range(1, len(FRAMES) + 1))


@pytest.mark.parametrize("frame", [DRAFT, COMMIT, OPEN, HELLO, WELCOME, REFUSE])
def test_the_frames_bent_below_are_valid(frame: list[Any]) -> None:
    assert decode(pack(frame), MAX_BYTES)


@FAST
@given(st.binary(max_size=200))
@example(b"")
@example(b"\xc1")
def test_random_bytes_are_refused(data: bytes) -> None:
    try:
        decode(data, MAX_BYTES)
    except PeerError as error:
        assert error.code in (Code.BAD_FRAME, Code.VERSION)


@FAST
@given(any_frame, st.data())
def test_mutated_frames_are_frames_or_refused(frame: Frame, data: st.DataObject) -> None:
    raw = bytearray(encode(frame))
    for _ in range(data.draw(st.integers(1, 4))):
        index = data.draw(st.integers(0, len(raw) - 1))
        match data.draw(st.sampled_from(["flip", "cut", "insert"])):
            case "flip":
                raw[index] = data.draw(st.integers(0, 255))
            case "cut":
                del raw[index + 1 :]
            case "insert":
                raw[index:index] = data.draw(st.binary(min_size=1, max_size=5))
    try:
        again = decode(bytes(raw), MAX_BYTES)
    except PeerError:
        return
    assert decode(encode(again), MAX_BYTES) == again


nested = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=5) | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=8,
)


@FAST
@given(any_frame, st.data())
def test_fields_of_the_wrong_kind_are_refused(frame: Frame, data: st.DataObject) -> None:
    array = msgpack.unpackb(encode(frame))
    array[data.draw(st.integers(0, len(array) - 1))] = data.draw(nested)
    try:
        decode(pack(array), MAX_BYTES)
    except PeerError as error:
        assert len(error.message) < 1000, "a message is for people and goes back in a frame"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x92\x08",
        pack([8, 7]) + b"\x00",
        pack({"tag": 8}),
        pack("Cancel"),
        pack(8),
        pack([]),
        pack([[8], 7]),
        pack(["8", 7]),
        pack([8.0, 7]),
        pack([True, 0, 1, IDENTITY.to_wire(), None]),
        pack([0, 0]),
        pack([13, 0]),
        pack([-1, 0]),
        pack([2**63, 0]),
        pack([8]),
        pack([8, 7, 1]),
    ],
    ids=repr,
)
def test_what_is_no_frame(data: bytes) -> None:
    assert refusal(data).code is Code.BAD_FRAME


@pytest.mark.parametrize("depth", [2, 400, 600, 900, 1000, 1020, 1100, 100_000])
@pytest.mark.parametrize("head", [b"", b"\x92\x08", b"\x97\x05\x01\x00\x00", b"\x92"])
def test_deep_nesting_is_refused(depth: int, head: bytes) -> None:
    """Neither the parser nor the message that quotes the field may overflow the stack."""
    tail = b"\xc0" * (2 if head.startswith(b"\x97") else 0)
    assert refusal(head + b"\x91" * depth + b"\xc0" + tail).code is Code.BAD_FRAME
    assert refusal(head + b"\x81\xa1a" * depth + b"\xc0" + tail).code is Code.BAD_FRAME


@pytest.mark.parametrize(
    "header",
    [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff"],
    ids=["array", "map", "binary", "string"],
)
def test_a_header_that_promises_too_much_is_refused(header: bytes) -> None:
    for data in (header, b"\x92\x08" + header, b"\x97\x05\x01\x00\x00" + header):
        assert refusal(data).code is Code.BAD_FRAME


def test_arrays_are_bounded() -> None:
    just_too_many = b"\xdd" + (MAX_ITEMS + 1).to_bytes(4, "big") + b"\x00" * (MAX_ITEMS + 1)
    assert refusal(b"\x97\x05\x01\x00\x00" + just_too_many + b"\xc0\xc0", 1 << 22).code is Code.BAD_FRAME


def test_texts_are_bounded() -> None:
    assert decode(bent(REFUSE, 3, to="é" * MAX_TEXT), MAX_BYTES)
    assert "Refuse.message" in refusal(bent(REFUSE, 3, to="é" * (MAX_TEXT + 1))).message


def test_a_frame_above_the_bound_is_not_even_parsed() -> None:
    """Hazard 11: a typed refusal that names the limit."""
    data = encode(Cancel(7))
    assert decode(data, len(data)) == Cancel(7)
    error = refusal(b"\xc1" * 101, 100)
    assert error.code is Code.TOO_LARGE
    assert "101" in error.message and "100" in error.message


@pytest.mark.parametrize(
    ("frame", "path", "value", "names"),
    [
        (OPEN, (5, 1), math.nan, "Open.params"),
        (OPEN, (5, 1), math.inf, "Open.params"),
        (OPEN, (5, 3), -math.inf, "Open.params"),
        (OPEN, (5, 1), True, "Open.params"),
        (OPEN, (5, 1), "0.8", "Open.params"),
        (OPEN, (5, 1), 1e-9, "temperature"),
        (OPEN, (5, 1), 101, "temperature"),
        (OPEN, (5, 3), 0, "top_p"),
        (OPEN, (5, 4), 1, "min_p"),
        (OPEN, (5, 5), 0, "repetition_penalty"),
        (OPEN, (5, 6), 2.5, "presence_penalty"),
        (OPEN, (5, 7), -2.5, "frequency_penalty"),
        (OPEN, (5, 0), -1, "Open.params"),
        (OPEN, (5, 0), 1.0, "Open.params"),
        (OPEN, (5,), [1, 0.8], "Open.params"),
        (OPEN, (1,), 0, "Open.session"),
        (OPEN, (1,), 2**32, "Open.session"),
        (OPEN, (1,), True, "Open.session"),
        (OPEN, (2,), None, "Open.tokens"),
        (OPEN, (2,), {"0": 1}, "not a msgpack value"),
        (OPEN, (2,), [1, True], "Open.tokens"),
        (OPEN, (2,), [1, -1], "Open.tokens"),
        (OPEN, (2,), [1, 2**31], "Open.tokens"),
        (OPEN, (2,), [1, 2.0], "Open.tokens"),
        (OPEN, (3,), -1, "Open.prompt_len"),
        (OPEN, (6,), "moon", "Open.placement"),
        (OPEN, (6,), ["edge"], "Open.placement"),
        (OPEN, (6,), None, "Open.placement"),
        (OPEN, (6,), {}, "Open.placement"),
        (OPEN, (8,), b"fp32", "Open.hidden"),
        (DRAFT, (3,), -1, "Draft.hash"),
        (DRAFT, (3,), 99.0, "Draft.hash"),
        (DRAFT, (5,), [-1, 0], "3 tokens but 2 parents"),
        (DRAFT, (5,), [-1, 1, 0], "parent 1"),
        (DRAFT, (5,), [-1, 0, 2], "parent 2"),
        (DRAFT, (5,), [-2, 0, 0], "Draft.parents"),
        (DRAFT, (6,), ["fp32", 4, b""], "leave a gap"),
        (DRAFT, (6,), ["fp32", 2, "0000"], "Draft.hidden"),
        (DRAFT, (6,), ["fp32", 2], "Draft.hidden"),
        (DRAFT, (6,), [None, 2, b""], "Draft.hidden"),
        (COMMIT, (5,), 3, "3 accepted"),
        (COMMIT, (6,), 0, "1 accepted"),
        (COMMIT, (7,), [1, 2], "Commit.timings"),
        (COMMIT, (7,), [1, 2, -3], "Commit.timings"),
        (REFUSE, (2,), "because", "Refuse.code"),
        (REFUSE, (4,), -0.5, "Refuse.retry_after"),
        (REFUSE, (4,), math.nan, "Refuse.retry_after"),
        (REFUSE, (5,), [1], "Refuse.differs"),
        (HELLO, (1,), 3, "Hello.session"),
        (HELLO, (1,), False, "Hello.session"),
        (HELLO, (2,), "1", "Hello.version"),
        (HELLO, (3,), ["a" * 64], "Hello.identity"),
        (HELLO, (3, 0), "A" * 64, "weights"),
        (HELLO, (3, 1), "b" * 63, "tokenizer"),
        (HELLO, (3, 2), 5, "template"),
        (HELLO, (3, 3), True, "cut"),
        (HELLO, (3, 3), 0, "cut"),
        (HELLO, (3, 4), None, "head"),
        (HELLO, (4,), 5, "Hello.token"),
        (WELCOME, (4, 0), 0, "max_frame_bytes"),
        (WELCOME, (4, 6), "fp32", "Welcome.limits"),
        ([11, 0, 5, True], (3,), 1, "Beat.echo"),
        ([12, 0, 5.0], (2,), math.inf, "Drain.grace"),
    ],
)
def test_a_wrong_field_is_named(frame: list[Any], path: tuple[int, ...], value: Any, names: str) -> None:
    error = refusal(bent(frame, *path, to=value))
    assert error.code is Code.BAD_FRAME
    assert names in error.message


@pytest.mark.parametrize("extension", [msgpack.ExtType(5, b"x"), msgpack.Timestamp(1, 2)], ids=["ext", "timestamp"])
def test_extension_types_are_refused(extension: Any) -> None:
    assert refusal(pack([8, extension])).code is Code.BAD_FRAME
    assert refusal(pack(extension)).code is Code.BAD_FRAME


def test_maps_are_refused_duplicate_keys_or_not() -> None:
    for data in (b"\x81\x08\x07", b"\x82\xa1a\x08\xa1a\x09", b"\x92\x08\x82\xa1a\x01\xa1a\x02"):
        assert refusal(data).code is Code.BAD_FRAME


def test_text_that_is_not_utf8_is_refused() -> None:
    data = pack(REFUSE).replace(b"full", b"\xff\xfe\xfa\xfb")
    assert refusal(data).code is Code.BAD_FRAME


@pytest.mark.parametrize("kind", [1, 2])
@pytest.mark.parametrize("rest", [[], [IDENTITY.to_wire(), None], [1, 2, 3, 4, 5, {}]], ids=len)
def test_another_version_is_named_whatever_follows(kind: int, rest: list[Any]) -> None:
    """Hello and Welcome begin alike in every version, so that an old program can say what is wrong."""
    error = refusal(pack([kind, 0, VERSION + 1, *rest]))
    assert error.code is Code.VERSION
    assert str(VERSION) in error.message and str(VERSION + 1) in error.message


def test_whole_numbers_do_for_numbers() -> None:
    frame = decode(bent(OPEN, 5, 1, to=1), MAX_BYTES)
    assert isinstance(frame, Open)
    assert frame.params.temperature == 1.0 and type(frame.params.temperature) is float


def test_long_forms_of_msgpack_are_read() -> None:
    """Another language's encoder may not choose the shortest form."""
    assert decode(b"\xdc\x00\x02" + b"\xd3" + (8).to_bytes(8, "big") + b"\xcf" + (7).to_bytes(8, "big"), 99) == Cancel(
        7
    )
