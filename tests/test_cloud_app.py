"""The cloud over real sockets: every request ends in an answer, and nobody's mistake reaches another session."""

import asyncio
import threading
from collections.abc import Iterator

import httpx
import pytest
import websockets
from websockets.asyncio.client import ClientConnection, connect

from cloud.batch import Batch, Verdict
from shared.bundle import BundleIdentity
from shared.codec import decode, encode
from shared.errors import Code
from shared.frames import (
    VERSION,
    Beat,
    Cancel,
    CloudFrame,
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
    Welcome,
)
from shared.params import Placement, SamplingParams
from shared.trie import prefix_hash
from tests.fakes import EOS, IDENTITY, ToyModel, ToyVerifier
from tests.servers import LIMITS, Running, running_server

pytestmark = pytest.mark.anyio

PROMPT = (5, 6, 7)
TOKEN = "a-long-enough-token"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running_server(ToyVerifier(ToyModel(1))) as running:
        yield running


def open_frame(session: int = 1, placement: Placement = Placement.AR, max_tokens: int = 20) -> Open:
    return Open(session, PROMPT, 3, max_tokens, SamplingParams(), placement, (EOS,), None)


async def say(socket: ClientConnection, *frames: Frame) -> None:
    for frame in frames:
        await socket.send(encode(frame))


async def hear(socket: ClientConnection) -> CloudFrame:
    async with asyncio.timeout(10):
        data = await socket.recv()
    assert isinstance(data, bytes)
    return decode(data, 1 << 20)  # type: ignore[return-value]


async def greeted(running: Running, token: str | None = None) -> ClientConnection:
    socket = await connect(f"{running.url}/v1/session", proxy=None, compression=None)
    await say(socket, Hello(0, VERSION, IDENTITY, token))
    assert isinstance(await hear(socket), Welcome)
    return socket


async def answer(socket: ClientConnection, session: int = 1) -> tuple[list[int], Finish | Refuse]:
    """The tokens of a session until its last frame."""
    tokens: list[int] = []
    while True:
        frame = await hear(socket)
        match frame:
            case Commit() if frame.session == session:
                tokens += frame.tokens
            case Finish() | Refuse() if frame.session == session:
                return tokens, frame


def alone(count: int = 20) -> list[int]:
    return ToyModel(1).continue_(PROMPT, SamplingParams(), count, frozenset({EOS}))


async def test_ar_streams_the_models_own_text(server: Running) -> None:
    async with await greeted(server) as socket:
        await say(socket, open_frame())
        opened = await hear(socket)
        assert opened == Opened(1, 3, prefix_hash(PROMPT))
        tokens, finish = await answer(socket)
    assert tokens == alone()
    assert isinstance(finish, Finish) and finish.hash == prefix_hash([*PROMPT, *tokens])


async def test_drafts_are_verified_and_a_repeated_draft_does_no_harm(server: Running) -> None:
    text = alone()
    async with await greeted(server) as socket:
        await say(socket, open_frame(placement=Placement.EDGE))
        tokens: list[int] = []
        accepted = 0
        last: Finish | Refuse | None = None
        while last is None:
            frame = await hear(socket)
            match frame:
                case Commit():
                    tokens += frame.tokens
                    accepted += frame.accepted
                    place = [*PROMPT, *tokens]
                    draft = Draft(1, len(place), prefix_hash(place), tuple(text[len(tokens) : len(tokens) + 2]))
                    await say(socket, draft, draft)
                case Finish() | Refuse():
                    last = frame
    assert tokens == text and isinstance(last, Finish)
    assert accepted > 0


async def test_sessions_on_one_connection_do_not_mix(server: Running) -> None:
    async with await greeted(server) as socket:
        await say(socket, open_frame(1), open_frame(2))
        streams: dict[int, list[int]] = {1: [], 2: []}
        ended = 0
        while ended < 2:
            frame = await hear(socket)
            if isinstance(frame, Commit):
                streams[frame.session] += frame.tokens
            ended += isinstance(frame, Finish | Refuse)
    assert streams == {1: alone(), 2: alone()}


async def test_a_cancel_ends_in_a_finish(server: Running) -> None:
    async with await greeted(server) as socket:
        await say(socket, open_frame(placement=Placement.EDGE), Cancel(1))
        _, finish = await answer(socket)
    assert isinstance(finish, Finish) and finish.reason is FinishReason.CANCELLED


async def test_beats_are_echoed(server: Running) -> None:
    """Hazard 9: the protocol has its own signs of life."""
    async with await greeted(server) as socket:
        await say(socket, Beat(0, 7, echo=False))
        assert await hear(socket) == Beat(0, 7, echo=True)


@pytest.mark.parametrize(
    ("message", "code", "close"),
    [
        (b"\xc1", Code.BAD_FRAME, 1002),
        (b"", Code.BAD_FRAME, 1002),
        (encode(Draft(9, 3, 1, (1,))), Code.UNKNOWN_SESSION, 1002),
        (encode(Hello(0, VERSION, IDENTITY, None)), Code.OUT_OF_ORDER, 1002),
        (encode(Welcome(0, VERSION, IDENTITY, LIMITS)), Code.OUT_OF_ORDER, 1002),
        ("text", Code.BAD_FRAME, 1002),
        (bytes(LIMITS.max_frame_bytes + 1), Code.TOO_LARGE, 1009),
    ],
    ids=["not msgpack", "empty", "never opened", "second hello", "wrong way", "text", "oversized"],
)
async def test_a_bad_frame_ends_its_connection_with_a_refusal_and_no_other(
    server: Running, message: bytes | str, code: Code, close: int
) -> None:
    """Hazard 11: sizes are bounded, and the answer is a typed error, not only a closed socket."""
    async with await greeted(server) as other, await greeted(server) as socket:
        await say(other, open_frame(placement=Placement.EDGE))
        await socket.send(message)
        refusal = await hear(socket)
        assert isinstance(refusal, Refuse) and refusal.code is code and refusal.session == 0
        with pytest.raises(websockets.ConnectionClosed):
            await hear(socket)
        assert socket.close_code == close
        assert isinstance(await hear(other), Opened)
        assert isinstance(await hear(other), Commit)


async def test_a_wrong_bundle_is_refused_by_name_of_what_differs(server: Running) -> None:
    """Hazard 16: a mismatch never degrades silently."""
    other = BundleIdentity(IDENTITY.weights, "e" * 64, IDENTITY.template, 3, IDENTITY.head)
    async with connect(f"{server.url}/v1/session", proxy=None) as socket:
        await say(socket, Hello(0, VERSION, other, None))
        refusal = await hear(socket)
    assert isinstance(refusal, Refuse) and refusal.code is Code.BUNDLE_MISMATCH
    assert refusal.differs == ("tokenizer", "cut")


async def test_a_bad_request_leaves_the_connection_open(server: Running) -> None:
    async with await greeted(server) as socket:
        await say(socket, open_frame(1, max_tokens=10**6))
        _, refusal = await answer(socket)
        assert isinstance(refusal, Refuse) and "max_tokens is 1000000" in refusal.message
        await say(socket, open_frame(2))
        assert (await answer(socket, 2))[0] == alone()


async def test_a_flood_of_frames_is_refused_not_queued(server: Running) -> None:
    async with await greeted(server) as socket:
        await say(socket, open_frame(placement=Placement.EDGE))
        assert isinstance(await hear(socket), Opened)
        assert isinstance(await hear(socket), Commit)
        stale = Draft(1, 3, 12345, (1,))
        await say(socket, *[stale] * (4 * LIMITS.max_draft_nodes + 1))
        _, refusal = await answer(socket)
    assert isinstance(refusal, Refuse) and refusal.code is Code.WINDOW_EXCEEDED


async def test_a_device_that_goes_frees_its_slot() -> None:
    """Hazard 8: a disconnect ends the work for it."""
    verifier = ToyVerifier(ToyModel(1))
    with running_server(verifier) as running:
        socket = await greeted(running)
        await say(socket, open_frame(placement=Placement.EDGE))
        assert isinstance(await hear(socket), Opened)
        assert isinstance(await hear(socket), Commit)
        socket.transport.abort()
        async with asyncio.timeout(10):
            while verifier.kv:
                await asyncio.sleep(0.005)


async def test_health_metrics_and_unknown_paths(server: Running) -> None:
    async with httpx.AsyncClient(base_url=server.url.replace("ws", "http", 1), trust_env=False) as client:
        health = await client.get("/health")
        assert health.status_code == 200 and health.json()["bundle"] == IDENTITY.id
        async with await greeted(server) as socket:
            await say(socket, open_frame())
            _, finish = await answer(socket)
            assert isinstance(finish, Finish)
        text = (await client.get("/metrics")).text
        assert f'edgewise:finished_total{{reason="{finish.reason}"}}' in text
        assert "edgewise:spec_decode_num_accepted_tokens_total" in text
        missing = await client.get("/v1/nothing")
        assert missing.status_code == 404 and "GET /v1/nothing" in missing.json()["error"]["message"]


async def test_while_the_model_loads_health_is_503_and_sessions_are_told_to_wait() -> None:
    loaded = threading.Event()
    with running_server(ToyVerifier(ToyModel(1)), loaded=loaded) as running:
        async with httpx.AsyncClient(base_url=running.url.replace("ws", "http", 1), trust_env=False) as client:
            assert (await client.get("/health")).json() == {"status": "loading"}
            with pytest.raises(websockets.InvalidStatus) as caught:
                await connect(f"{running.url}/v1/session", proxy=None)
            assert caught.value.response.status_code == 503
            assert caught.value.response.headers["Retry-After"] == "1"


async def test_tokens_are_checked_in_the_header_or_in_the_hello() -> None:
    """Hazard 22: nothing runs for a stranger."""
    with running_server(ToyVerifier(ToyModel(1)), token=TOKEN) as running:
        with pytest.raises(websockets.InvalidStatus) as caught:
            await connect(
                f"{running.url}/v1/session", proxy=None, additional_headers={"Authorization": "Bearer wrong-one"}
            )
        assert caught.value.response.status_code == 401
        async with connect(f"{running.url}/v1/session", proxy=None) as socket:
            await say(socket, Hello(0, VERSION, IDENTITY, None))
            refusal = await hear(socket)
            assert isinstance(refusal, Refuse) and refusal.code is Code.UNAUTHORIZED
        async with await greeted(running, TOKEN):
            pass
        async with connect(
            f"{running.url}/v1/session", proxy=None, additional_headers={"Authorization": f"Bearer {TOKEN}"}
        ) as socket:
            await say(socket, Hello(0, VERSION, IDENTITY, None))
            assert isinstance(await hear(socket), Welcome)


async def test_too_many_devices_are_told_when_to_come_back() -> None:
    with running_server(ToyVerifier(ToyModel(1)), max_connections=1) as running:
        async with await greeted(running):
            with pytest.raises(websockets.InvalidStatus) as caught:
                await connect(f"{running.url}/v1/session", proxy=None)
            assert caught.value.response.status_code == 429
            assert caught.value.response.headers["Retry-After"] == "1"


async def test_a_silent_connection_is_closed() -> None:
    with running_server(ToyVerifier(ToyModel(1)), hello_timeout_s=0.05) as running:
        async with connect(f"{running.url}/v1/session", proxy=None) as socket:
            refusal = await hear(socket)
            assert isinstance(refusal, Refuse) and refusal.code is Code.IDLE


class BrokenVerifier(ToyVerifier):
    """A model that dies on its first pass."""

    def run(self, batch: Batch) -> list[Verdict]:
        raise RuntimeError("out of memory")


async def test_when_the_model_dies_every_session_hears_of_it_and_health_fails() -> None:
    with running_server(BrokenVerifier(ToyModel(1))) as running:
        async with await greeted(running) as socket:
            await say(socket, open_frame())
            _, refusal = await answer(socket)
            assert isinstance(refusal, Refuse) and refusal.code is Code.INTERNAL
            await say(socket, open_frame(2))
            _, refusal = await answer(socket, 2)
            assert isinstance(refusal, Refuse) and refusal.code is Code.INTERNAL
        async with httpx.AsyncClient(base_url=running.url.replace("ws", "http", 1), trust_env=False) as client:
            health = await client.get("/health")
            assert health.status_code == 503 and "out of memory" in health.text


async def test_a_drain_tells_the_devices_to_go_elsewhere(server: Running) -> None:
    async with await greeted(server) as socket:
        server.hub.drain()
        frame = await hear(socket)
    assert isinstance(frame, Drain)
