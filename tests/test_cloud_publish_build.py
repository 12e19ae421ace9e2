"""Building a bundle: whole or not at all, and checked before it begins."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from cloud.publish import build
from cloud.publish.build import build_bundle
from cloud.publish.weight_files import WeightFiles
from cloud.source import ModelSource, resolve_source
from edge.onnx_model import open_model
from shared.bundle import DRAFT_IDS_NAME, load_manifest, verify_files
from shared.errors import BadInput
from tests.tiny_checkpoints import LAYERS, write_folder, write_gguf


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> ModelSource:
    folder = tmp_path_factory.mktemp("source")
    write_gguf(folder / "m.gguf", "llama", "Q4_1")
    return resolve_source(str(folder / "m.gguf"), folder)


def test_bundle_is_whole(source: ModelSource, tmp_path: Path) -> None:
    stages: list[tuple[str, int, int]] = []
    manifest = build_bundle(source, 2, tmp_path / "b", max_context=64, progress=lambda *call: stages.append(call))
    assert load_manifest(tmp_path / "b") == manifest
    verify_files(tmp_path / "b", manifest)
    assert set(manifest.files) == {"model.onnx", "model.0.weights", "tokenizer.json", "chat_template.jinja"}
    assert (manifest.cut, manifest.n_layers, manifest.licence, manifest.head_context) == (2, LAYERS, "mit", None)
    assert manifest.identity.weights == source.weights_sha256
    assert manifest.identity.tokenizer == manifest.files["tokenizer.json"].sha256
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    ends = {stage: (done, total) for stage, done, total in stages}
    assert all(done == total for done, total in ends.values()) and len(ends) >= 3


def test_same_source_gives_the_same_identity(source: ModelSource, tmp_path: Path) -> None:
    first = build_bundle(source, 2, tmp_path / "a", max_context=64)
    second = build_bundle(source, 2, tmp_path / "b", max_context=32, weights="fp32")
    other = build_bundle(source, 1, tmp_path / "c", max_context=64)
    assert first.identity == second.identity
    assert first.identity.differences(other.identity) == ("cut", "head")


@pytest.mark.parametrize(("weights", "activations"), [("q4", "int8"), ("q4", "fp32"), ("fp32", "fp32")])
def test_with_a_small_draft_vocabulary_its_tokens_and_the_texts_have_the_same_logits_and_others_none(
    weights: str, activations: str, source: ModelSource, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"max_context": 128, "weights": weights, "activations": activations}
    whole = build_bundle(source, 2, tmp_path / "whole", **options)
    small = build_bundle(source, 2, tmp_path / "small", draft_vocabulary=50, **options)
    assert whole.draft_vocab_size == whole.vocab_size and small.draft_vocab_size == 50
    assert whole.identity.differences(small.identity) == ("head",)
    drafted = np.fromfile(tmp_path / "small" / DRAFT_IDS_NAME, "<i4")
    assert set(small.stop_ids) <= set(drafted.tolist()) and len(drafted) == 50
    others = [token for token in range(whole.vocab_size - 1, 0, -1) if token not in drafted]
    one, other = (open_model(tmp_path / name, made) for name, made in (("whole", whole), ("small", small)))
    held: list[int] = []
    # More of the text's own tokens than there is room for at first; then fewer.
    for kept, more in ((0, [1, 2, 3]), (3, others[:64]), (67, [others[65]]), (2, others[70:90]), (0, [7])):
        held = [*held[:kept], *more]
        one.truncate(kept)
        other.truncate(kept)
        wanted, got = one.forward(more)[0], other.forward(more)[0]
        allowed = sorted({*drafted.tolist(), *held})
        # Rounded to int8, the list's rows have 4 bits, and those that are looked up what the source has.
        exact = drafted if activations == "int8" else allowed
        np.testing.assert_allclose(got[exact], wanted[exact], atol=1e-5)
        np.testing.assert_allclose(got[allowed], wanted[allowed], atol=0.5)
        assert np.isneginf(np.delete(got, allowed)).all() and got.shape == wanted.shape


def test_cut_below_the_last_layer_runs(source: ModelSource, tmp_path: Path) -> None:
    for cut in (1, LAYERS - 1):
        manifest = build_bundle(source, cut, tmp_path / str(cut), max_context=64)
        model = open_model(tmp_path / str(cut), manifest)
        assert np.isfinite(model.forward([1, 2, 3])[0]).all()


def test_folder_with_untied_head_is_rounded_to_4_bits(tmp_path: Path) -> None:
    write_folder(tmp_path / "m", "mistral")
    source = resolve_source(str(tmp_path / "m"), tmp_path)
    manifest = build_bundle(source, 2, tmp_path / "b", max_context=64)
    assert (manifest.weight_format, manifest.architecture) == ("q4", "mistral")
    assert np.isfinite(open_model(tmp_path / "b", manifest).forward([1, 2, 3])[0]).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cut": 0}, "a cut at 0 is not possible: the model has 4 layers, so use 1 to 3"),
        ({"cut": 4}, "a cut at 4 is not possible"),
        ({"exporter": "best"}, "exporter 'best' is not known; use fast or portable"),
        ({"weights": "q2"}, "weights 'q2' is not known"),
        ({"activations": "int4"}, "activations 'int4' is not known"),
        ({"exporter": "portable"}, "fp32 weights only"),
        ({"max_context": 257}, "a context of 257 tokens is not possible; use 16 to 256"),
        ({"max_context": 2}, "a context of 2 tokens"),
        ({"draft_vocabulary": 1}, "a draft vocabulary of 1 tokens is not possible; use"),
        ({"draft_vocabulary": 10**6}, "a draft vocabulary of 1000000 tokens is not possible"),
        (
            {"draft_vocabulary": 50, "exporter": "portable", "weights": "fp32"},
            "drafts from the whole vocabulary; leave --draft-vocabulary out",
        ),
    ],
)
def test_what_can_not_be_built_is_refused_at_once(
    changes: dict[str, Any], message: str, source: ModelSource, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=message):
        build_bundle(**{"source": source, "cut": 2, "out": tmp_path / "b", "max_context": 64, **changes})
    assert not list(tmp_path.iterdir())


def test_folder_that_is_no_bundle_is_left_alone(source: ModelSource, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(BadInput, match="exists and is no bundle"):
        build_bundle(source, 2, tmp_path, max_context=64)
    assert (tmp_path / "thesis.txt").read_text() == "mine"


def test_failed_build_leaves_the_old_bundle(
    source: ModelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = build_bundle(source, 2, tmp_path / "b", max_context=64)

    def interrupted(*arguments: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(build, "write_fast_graph", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build_bundle(source, 1, tmp_path / "b", max_context=64)
    assert load_manifest(tmp_path / "b") == old
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_new_bundle_replaces_the_old_one(source: ModelSource, tmp_path: Path) -> None:
    build_bundle(source, 2, tmp_path / "b", max_context=64, weights="fp32")
    manifest = build_bundle(source, 1, tmp_path / "b", max_context=64)
    verify_files(tmp_path / "b", load_manifest(tmp_path / "b"))
    assert load_manifest(tmp_path / "b") == manifest
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_weights_are_spread_over_files(tmp_path: Path) -> None:
    """Phones and browsers take files of up to 1 GB."""
    files = WeightFiles(tmp_path, "m", limit=20_000)
    tensors = []
    for i in range(4):
        tensor = onnx.TensorProto(name=f"w{i}", data_type=1, dims=[2000])
        files.store(tensor, np.full(2000, i, np.float32))
        tensors.append(tensor)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.0.weights", "m.1.weights"]
    assert all(path.stat().st_size <= 20_000 for path in tmp_path.iterdir())
    for i, tensor in enumerate(tensors):
        values = onnx.numpy_helper.to_array(tensor, base_dir=str(tmp_path))
        np.testing.assert_array_equal(values, np.full(2000, i, np.float32))
