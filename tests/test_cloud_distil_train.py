"""Training an exit head on a tiny model: it learns, it resumes to the same bits, and what doesn't fit is refused."""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cloud.__main__ import main
from cloud.distil.batches import Batches, epochs, frequent_tokens
from cloud.distil.distil import HELD_OUT
from cloud.distil.features import About, FeatureFolder, Span, States, Text
from cloud.distil.head import ExitHead
from cloud.distil.train import Schedule, Trainer, acceptance
from cloud.distil.vocabulary import DraftVocabulary
from cloud.publish.build import build_bundle
from cloud.publish.conversations import read_conversations
from cloud.publish.exit_entry import ExitEntry
from cloud.publish.exit_fit import residuals
from cloud.publish.exit_head import load_head
from cloud.source import resolve_source
from shared.bundle import load_manifest, sha256_file
from shared.errors import BadInput
from tests.tiny_checkpoints import write_gguf
from tests.tiny_models import tiny_model

CUT, HELD = 1, 6
NOTHING = ExitEntry(None, np.zeros(64, np.float32))


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model("llama", torch.float32)


@dataclass(frozen=True, slots=True)
class Learned:
    """Features at the cut, and where their texts lie."""

    batches: Batches
    spans: list[Span]


@pytest.fixture(scope="module")
def features(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Learned:
    random = np.random.default_rng(0)
    texts = [Text(tuple(random.integers(0, 12, 30).tolist()), 5) for _ in range(300)]
    folder = FeatureFolder(tmp_path_factory.mktemp("features"), About("a" * 64, model.config.hidden_size, (CUT,)))

    def states(ids: Any) -> States:
        found = residuals(model, ids)
        return States({CUT: found[CUT].numpy()}, found[-1].numpy())

    spans = folder.compute(texts, states, lambda done, total: None)
    return Learned(Batches(folder, CUT, torch.device("cpu")), spans)


def everything(model: Any) -> DraftVocabulary:
    """A vocabulary without a token that is left out."""
    whole = model.lm_head.weight.detach()
    return DraftVocabulary(torch.arange(len(whole)), whole)


def trainer(model: Any, features: Learned, plan: Schedule) -> Trainer:
    torch.manual_seed(0)
    width = model.config.hidden_size
    head = ExitHead(model, 1, ExitEntry(None, np.zeros(width, np.float32)))
    return Trainer(head, everything(model), features.batches, features.spans[HELD:], plan)


def reached(model: Any, features: Learned, head: ExitHead) -> float:
    return acceptance(head, everything(model), features.batches, features.spans[:HELD])


def test_training_raises_acceptance_on_text_held_out(model: Any, features: Learned) -> None:
    made = trainer(model, features, Schedule(tokens=30_000, learning_rate=3e-3))
    before = reached(model, features, made.head)
    while not made.done:
        made.step(time.perf_counter)
    assert reached(model, features, made.head) > before + 0.15
    assert 30_000 <= made.progress.tokens < 30_060 and made.progress.seconds > 0


def test_a_resumed_training_ends_with_the_same_bits(model: Any, features: Learned, tmp_path: Path) -> None:
    plan = Schedule(tokens=4000)
    straight = trainer(model, features, plan)
    stopped = trainer(model, features, plan)
    while not straight.done:
        straight.step(time.perf_counter)
        if straight.progress.step == 20:
            straight.save(tmp_path / "c")
    stopped.resume(tmp_path / "c")
    assert stopped.progress.step == 20
    while not stopped.done:
        stopped.step(time.perf_counter)
    for one, other in zip(straight.head.parameters(), stopped.head.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_checkpoint_of_something_else_is_refused(model: Any, features: Learned, tmp_path: Path) -> None:
    made = trainer(model, features, Schedule(tokens=4000))
    made.save(tmp_path / "c")
    with pytest.raises(BadInput, match="another schedule"):
        trainer(model, features, Schedule(tokens=4000, seed=1)).resume(tmp_path / "c")
    with pytest.raises(BadInput, match="other texts"):
        trainer(model, Learned(features.batches, features.spans[1:]), Schedule(tokens=4000)).resume(tmp_path / "c")
    (tmp_path / "c").write_bytes(b"nothing")
    with pytest.raises(BadInput, match="no checkpoint of this head"):
        made.resume(tmp_path / "c")


def test_each_epoch_has_every_text_once_in_an_order_of_its_own() -> None:
    spans = [Span(10 * i, i % 7 + 1, 0, str(i)) for i in range(11)]
    groups = epochs(spans, 2, seed=3)
    first, second = ([next(groups) for _ in range(6)] for _ in range(2))
    for epoch in (first, second):
        assert sorted(s.first for group in epoch for s in group) == [s.first for s in spans]
    assert first != second
    again = epochs(spans, 2, seed=3)
    assert [next(again) for _ in range(6)] == first


def test_frequent_tokens_are_counted_in_answers_alone() -> None:
    ids = np.array([9, 9, 9, 4, 2, 4, 7, 2, 2, 2], np.int32)
    assert frequent_tokens(ids, [Span(0, 6, 3, "a"), Span(6, 4, 2, "b")]).tolist() == [2, 4]


def test_the_vocabulary_of_a_place_holds_the_frequent_and_what_came_before() -> None:
    whole = torch.arange(20.0).reshape(10, 2)
    vocabulary = DraftVocabulary(torch.tensor([4, 1]), whole)
    ids = torch.tensor([7, 4, 9, 7, 2])
    assert vocabulary.rows_with(ids).tolist() == whole[[4, 1, 2, 7, 9]].tolist()
    allowed = [row.nonzero().flatten().tolist() for row in vocabulary.allowed(ids, 1)]
    assert allowed == [[1, 4, 7], [1, 4, 7, 9], [1, 4, 7, 9], [1, 2, 4, 7, 9]]


def test_a_batch_marks_the_rows_that_answers_come_after(features: Learned) -> None:
    spans = [features.spans[0], Span(features.spans[1].first, 12, 5, "")]
    batch = features.batches.read(spans)
    assert len(batch.ids) == 42 and batch.at_cut.shape == batch.final.shape == (2, 30, 64)
    assert batch.wanted.nonzero().tolist() == [[0, i] for i in range(4, 29)] + [[1, i] for i in range(4, 11)]
    assert (batch.at_cut[1, 12:] == 0).all()


def test_distil_writes_what_build_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EDGEWISE_HOME", str(tmp_path / "home"))
    write_gguf(tmp_path / "m.gguf", "llama", "Q4_1")
    lines = [json.dumps({"user": f"what is {n}", "assistant": f"it is {n}, and so on"}) for n in range(HELD_OUT + 6)]
    (tmp_path / "text.jsonl").write_text("\n".join(lines))
    model, data, out = str(tmp_path / "m.gguf"), str(tmp_path / "text.jsonl"), tmp_path / "head.safetensors"
    command = ["distil", "--model", model, "--cut", "1", "--blocks", "2", "--data", data, "--threads", "1"]
    options = ["--tokens", "300", "--vocabulary", "40", "--dtype", "fp32", "--json"]
    assert main([*command, *options, "--out", str(out)]) == 0
    assert 0 <= json.loads(capsys.readouterr().out)["acceptance"] <= 1
    source = resolve_source(model, tmp_path)
    manifest = build_bundle(source, 1, tmp_path / "b", max_context=64, exit_file=out)
    assert load_manifest(tmp_path / "b") == manifest
    assert manifest.n_exit_blocks == 2 and manifest.n_caches == 3 and manifest.head_context
    assert "2 trained blocks" in manifest.exit_block
    (point,) = (json.loads(line) for line in (tmp_path / "head.work" / "curve.jsonl").read_text().splitlines())
    assert point["tokens"] >= 300 and 0 <= point["acceptance"] <= 1
    # The whole schedule is done, so another call only writes the head again, to the same bytes each time.
    first = out.read_bytes()
    for _ in range(4):
        assert main([*command, *options, "--out", str(out)]) == 0
        assert out.read_bytes() == first
    # Training can go on from a head.
    further = tmp_path / "further.safetensors"
    options[1] = "600"
    assert main([*command, *options, "--start", str(out), "--out", str(further)]) == 0
    width = source.config["hidden_size"]
    begun = load_head(further, source.weights_sha256, 1, width, 0, "").recipe
    assert begun.start == sha256_file(out) and begun.tokens >= 600
    with pytest.raises(BadInput, match="was trained for a cut at 1, not 2"):
        build_bundle(source, 2, tmp_path / "c", max_context=64, exit_file=out)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--cut", "4"], "a cut at 4 is not possible"),
        (["--cut", "2", "--blocks", "3"], "3 blocks at a cut of 2 are not possible; use 1 to 2"),
        (["--cut", "2", "--tokens", "0"], "must be 1 or more"),
        (["--cut", "2"], "more than 50 are needed"),
        (["--cut", "2", "--longest", "1"], "--longest is 1"),
        (["--cut", "2", "--start", "nowhere"], "nowhere can't be read"),
        (["--cut", "2", "--start", __file__], "is no trained exit head"),
    ],
)
def test_what_cant_be_trained_is_refused(
    flags: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("EDGEWISE_HOME", str(tmp_path / "home"))
    write_gguf(tmp_path / "m.gguf", "llama", "Q4_1")
    (tmp_path / "text.jsonl").write_text('{"user": "hi", "assistant": "hello"}\n')
    options = ["--data", str(tmp_path / "text.jsonl"), "--out", str(tmp_path / "head")]
    assert main(["distil", "--model", str(tmp_path / "m.gguf"), *flags, *options]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_text_with_other_ends_of_lines_is_one_record(tmp_path: Path) -> None:
    path = tmp_path / "text.jsonl"
    records = [{"user": "a\u2028b", "assistant": "c\x85d\x0be"}, {"user": "f", "assistant": "g"}]
    path.write_text("\n".join(json.dumps(record, ensure_ascii=False) for record in records), encoding="utf-8")
    assert [(c.prompt, c.answer) for c in read_conversations([path])] == [("a\u2028b", "c\x85d\x0be"), ("f", "g")]
