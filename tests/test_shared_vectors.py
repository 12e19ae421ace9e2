"""The example frames and numbers in tests/vectors, which clients in other languages test against as well."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared.bundle import BundleIdentity
from shared.codec import decode, encode
from shared.errors import BadInput, Code, PeerError
from shared.frames import (
    CONNECTION,
    VERSION,
    Commit,
    Draft,
    Finish,
    FinishReason,
    Frame,
    HiddenRows,
    Open,
    Opened,
    Timings,
)
from shared.hidden_codec import decode_rows, encode_rows
from shared.noise import GAMMA, gumbel, mix64, position_key
from shared.params import Limits, Placement, SamplingParams
from shared.protocol import CLOSE_CODES, PROTOCOL_ERROR, CloudProtocol, EdgeProtocol, State
from shared.sampling import choose, process
from shared.trie import DraftTrie, prefix_hash

VECTORS = Path(__file__).parent / "vectors"
SPECIFICATION = (Path(__file__).parent.parent / "PROTOCOL.md").read_text(encoding="utf-8")
KINDS: dict[str, type[Frame]] = {kind.__name__: kind for kind in Frame.__args__}


def load(name: str) -> Any:
    return json.loads((VECTORS / f"{name}.json").read_text(encoding="utf-8"))


def label(case: Any) -> str | None:
    return case.get("name") if isinstance(case, dict) else None


def number(value: Any) -> Any:
    """64-bit numbers stand as text in hex, since JSON readers lose their last digits."""
    return int(value, 16) if isinstance(value, str) and value.startswith("0x") else value


def record(kind: type, value: dict[str, Any]) -> Any:
    return kind(**{name: _as_field(name, item) for name, item in value.items()})


def _as_field(name: str, value: Any) -> Any:
    records = {
        "identity": BundleIdentity,
        "limits": Limits,
        "params": SamplingParams,
        "timings": Timings,
        "hidden": HiddenRows,
        "deep": HiddenRows,
    }
    words = {"placement": Placement, "reason": FinishReason, "code": Code}
    match value:
        case dict():
            return record(records[name], value)
        case list():
            return tuple(value)
        case str() if name in words:
            return words[name](value)
        case str() if name == "data":
            return bytes.fromhex(value)
        case _:
            return number(value)


@pytest.mark.parametrize("case", load("frames"), ids=label)
def test_frames_are_these_bytes(case: dict[str, Any]) -> None:
    kind = KINDS[case["frame"]]
    frame = record(kind, case["fields"])
    data = bytes.fromhex(case["hex"])
    assert list(case["fields"]) == [field.name for field in fields(kind)], "in the order of the wire"
    assert encode(frame).hex() == case["hex"]
    assert decode(data, len(data)) == frame


def test_the_frames_cover_the_catalogue() -> None:
    cases = load("frames")
    assert {case["frame"] for case in cases} == set(KINDS)
    assert {case["fields"]["code"] for case in cases if case["frame"] == "Refuse"} == set(Code)
    assert {case["fields"]["reason"] for case in cases if case["frame"] == "Finish"} == set(FinishReason)
    for kind, optional in (("Hello", "token"), ("Open", "hidden"), ("Draft", "parents"), ("Commit", "deep")):
        present = {case["fields"][optional] is not None for case in cases if case["frame"] == kind}
        assert present == {True, False}, (kind, optional)


@pytest.mark.parametrize("case", load("refused"), ids=label)
def test_these_bytes_are_refused(case: dict[str, Any]) -> None:
    with pytest.raises(PeerError) as caught:
        decode(bytes.fromhex(case["hex"]), case["max_bytes"])
    assert caught.value.code == case["code"]


@pytest.mark.parametrize("case", load("prefix_hash"), ids=lambda case: str(case["tokens"][:4]))
def test_prefix_hashes(case: dict[str, Any]) -> None:
    assert prefix_hash(case["tokens"]) == number(case["hash"])
    assert DraftTrie(case["tokens"], 1).hash == number(case["hash"])


@pytest.mark.parametrize("case", load("noise"))
def test_noise(case: dict[str, Any]) -> None:
    seed, key = number(case["seed"]), number(case["key"])
    assert position_key(seed, case["position"]) == key
    assert mix64(key + (case["token"] + 1) * GAMMA) == number(case["bits"])
    # Logarithms of different libraries may differ in the last place.
    assert gumbel(seed, case["position"], np.asarray([case["token"]]))[0] == pytest.approx(case["gumbel"], rel=1e-12)


@pytest.mark.parametrize("case", load("sampling"))
def test_sampling(case: dict[str, Any]) -> None:
    logits, params = np.asarray(case["logits"]), record(SamplingParams, case["params"])
    scores = process(logits, params, case["history"], case["prompt_len"])
    assert np.flatnonzero(np.isfinite(scores)).tolist() == case["kept"]
    assert choose(logits, params, case["position"], case["history"], case["prompt_len"]) == case["token"]


@pytest.mark.parametrize("case", load("hidden")["rows"])
def test_hidden_states(case: dict[str, Any]) -> None:
    rows = np.asarray(case["rows"], dtype=np.float32).reshape(-1, case["width"])
    decoded = np.asarray(case["decoded"], dtype=np.float32).reshape(-1, case["width"])
    assert encode_rows(rows, case["codec"]).hex() == case["hex"]
    assert np.array_equal(decode_rows(bytes.fromhex(case["hex"]), case["codec"], case["width"]), decoded)


@pytest.mark.parametrize("case", load("hidden")["refused"], ids=label)
def test_hidden_states_that_are_refused(case: dict[str, Any]) -> None:
    with pytest.raises(PeerError) as caught:
        decode_rows(bytes.fromhex(case["hex"]), case["codec"], case["width"])
    assert caught.value.code is Code.BAD_HIDDEN


@pytest.mark.parametrize("case", load("hidden")["unsendable"], ids=label)
def test_hidden_states_that_a_device_does_not_send(case: dict[str, Any]) -> None:
    """Hazard 15."""
    with pytest.raises(BadInput):
        encode_rows(np.asarray(case["rows"], dtype=np.float32), case["codec"])


def test_the_conversation_passes_both_protocols_and_both_tries() -> None:
    """An answer with a cut and a resume: every frame is expected where it comes, every place is that of the text."""
    frames = [(line, decode(bytes.fromhex(line["hex"]), 1 << 20)) for line in load("conversation")]
    device: DraftTrie | None = None
    for connection in (1, 2):
        part = [(line, frame) for line, frame in frames if line["connection"] == connection]
        hello, welcome = part[0][1], part[1][1]
        cloud_side = CloudProtocol(hello.identity, welcome.limits, None)  # type: ignore[union-attr]
        device_side = EdgeProtocol(hello.identity, None)  # type: ignore[union-attr]
        cloud: DraftTrie | None = None
        for line, frame in part:
            assert line["frame"] == type(frame).__name__
            if line["from"] == "device":
                cloud_side.receive(bytes.fromhex(line["hex"]))
                assert frame in cloud_side.frames() or line["frame"] == "Hello"
                if isinstance(frame, Open):
                    device_side.send(frame)
                    device = device or DraftTrie(frame.tokens, 99)
                    assert tuple(device.tokens) == frame.tokens
                    cloud = DraftTrie(frame.tokens, 99)
                elif isinstance(frame, Draft):
                    assert cloud is not None
                    known = cloud.grow(frame.at, frame.hash, frame.tokens)
                    assert (known is None) == ("pruned" in line["note"])
            else:
                device_side.receive(bytes.fromhex(line["hex"]))
                assert frame in device_side.frames()
                if isinstance(frame, Opened | Commit | Finish):
                    assert cloud is not None and (frame.at, frame.hash) == (cloud.position, cloud.hash)
                if isinstance(frame, Commit):
                    assert cloud is not None and device is not None
                    assert len(cloud.first_path(99)) == frame.drafted
                    assert cloud.commit(frame.tokens) == frame.accepted
                    assert device.merge_commit(frame.at, frame.hash, frame.tokens) == list(frame.tokens)
        assert cloud_side.state is device_side.state is State.READY
    assert device is not None
    assert tuple(device.tokens) == (5, 6, 7, 10, 11, 12, 13, 20, 21, 2)


# The specification says what the code says.


@pytest.mark.parametrize("kind", Frame.__args__, ids=lambda kind: kind.__name__)
def test_the_specification_lists_the_fields_in_their_order(kind: type[Frame]) -> None:
    section = SPECIFICATION.split(f"### {kind.__name__} ({kind.TAG}")[1].split("\n### ")[0].split("\n## ")[0]
    listed = [row.split("|")[1].strip().strip("`") for row in section.splitlines() if row.startswith("| `")]
    assert listed == [field.name for field in fields(kind)]


@pytest.mark.parametrize("code", Code)
def test_the_specification_lists_every_code_with_its_close_code(code: Code) -> None:
    table = SPECIFICATION.split("\n## 11.")[1].split("\n## ")[0]
    (row,) = [row for row in table.splitlines() if row.startswith(f"| `{code}` |")]
    assert str(CLOSE_CODES.get(code, PROTOCOL_ERROR)) in row.split("|")[2]


def test_the_specification_lists_the_limits_with_their_defaults() -> None:
    for name, value in ((name, getattr(Limits(), name)) for name in Limits.__dataclass_fields__):
        (row,) = [row for row in SPECIFICATION.splitlines() if row.startswith(f"| `{name}` |")]
        shown = ", ".join(value) if isinstance(value, tuple) else str(value)
        assert shown in row.split("|")[2], name


def test_the_worked_examples_of_the_specification() -> None:
    assert f"0x{prefix_hash([5, 6, 7]):016x}" in SPECIFICATION
    assert f"0x{position_key(42, 3):016x}" in SPECIFICATION
    assert f"{gumbel(42, 3, np.asarray([300]))[0]:.6f}" in SPECIFICATION
    assert encode(Opened(1, 3, prefix_hash([5, 6, 7]))).hex(" ") in SPECIFICATION
    assert (CONNECTION, VERSION) == (0, 1)
