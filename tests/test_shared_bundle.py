"""The manifest, the identity and the check of a bundle's files."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shared.bundle import BundleIdentity, FileEntry, Manifest, load_manifest, sha256_file, verify_files
from shared.errors import BundleError
from tests.manifests import sample_identity, sample_manifest


def test_identity_names_what_differs() -> None:
    """Hazard 16: a mismatch between the halves is found before a token travels, and by name."""
    base = sample_identity()
    assert base.differences(sample_identity()) == ()
    for name, value in (
        ("weights", "9" * 64),
        ("tokenizer", "9" * 64),
        ("template", "9" * 64),
        ("cut", 3),
        ("head", "9" * 64),
    ):
        other = replace(base, **{name: value})
        assert base.differences(other) == (name,)
        assert base.id != other.id
    assert base.differences(replace(base, cut=9, weights="9" * 64)) == ("weights", "cut")


def test_identity_travels() -> None:
    identity = sample_identity()
    assert BundleIdentity.from_wire(identity.to_wire()) == identity
    assert len(identity.id) == 32


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        ["a" * 64, "b" * 64, "c" * 64, 2],
        ["a" * 63, "b" * 64, "c" * 64, 2, "d" * 64],
        ["A" * 64, "b" * 64, "c" * 64, 2, "d" * 64],
        ["a" * 64, b"b" * 64, "c" * 64, 2, "d" * 64],
        ["a" * 64, "b" * 64, "c" * 64, "2", "d" * 64],
        ["a" * 64, "b" * 64, "c" * 64, True, "d" * 64],
        ["a" * 64, "b" * 64, "c" * 64, 0, "d" * 64],
    ],
)
def test_identity_of_another_form_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="bundle"):
        BundleIdentity.from_wire(value)


def test_manifest_survives_json() -> None:
    manifest = sample_manifest()
    assert Manifest.from_json(manifest.to_json()) == manifest
    assert manifest.n_caches == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 1}, "has format 1; this program reads format 4"),
        ({"cut": 3}, "`cut` must be"),
        ({"id": "0" * 32}, "`id` must be"),
        ({"hidden_size": 0}, "`hidden_size` must be a positive number"),
        ({"hidden_size": "64"}, "`hidden_size` must be a positive number"),
        ({"name": ""}, "`name` must be a text"),
        ({"exporter": "best"}, "`exporter` must be one of fast, portable"),
        ({"weight_format": "q2"}, "`weight_format` must be one of"),
        ({"stop_ids": ["x"]}, "`stop_ids` must be a list of token ids"),
        ({"bos_id": -1}, "`bos_id` must be a number or null"),
        ({"graph": "other.onnx"}, "`graph` must be one of `files`"),
        ({"draft_vocab_size": 301}, "`draft_vocab_size` must be at most vocab_size, which is 300"),
        ({"draft_vocab_size": 200}, "`files` must be a list with draft_ids.i32"),
        ({"draft_vocab_size": 0}, "`draft_vocab_size` must be a positive number"),
        ({"identity": {"weights": "a"}}, "`identity` must be an object with"),
        ({"files": {"../secret": {"bytes": 1, "sha256": "e" * 64}}}, "inside the bundle, which '../secret' is not"),
        ({"files": {"/etc/passwd": {"bytes": 1, "sha256": "e" * 64}}}, "inside the bundle"),
        ({"files": {"manifest.json": {"bytes": 1, "sha256": "e" * 64}}}, "inside the bundle"),
        ({"files": {"model.onnx": {"bytes": 1}}}, "`files.model.onnx` must be"),
    ],
)
def test_manifest_that_is_wrong_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    record = {**json.loads(sample_manifest().to_json()), **changes}
    with pytest.raises(BundleError, match=message):
        Manifest.from_json(json.dumps(record))


def test_manifest_without_a_field_is_refused_by_name() -> None:
    for name in json.loads(sample_manifest().to_json()):
        record = json.loads(sample_manifest().to_json())
        del record[name]
        with pytest.raises(BundleError, match=name):
            Manifest.from_json(json.dumps(record))


@pytest.mark.parametrize("text", ["", "{", "[]", "null"])
def test_text_that_is_no_manifest_is_refused(text: str) -> None:
    with pytest.raises(BundleError, match="manifest.json is not"):
        Manifest.from_json(text)


def bundle(folder: Path) -> Manifest:
    """A bundle of two small files."""
    (folder / "model.onnx").write_bytes(b"graph")
    (folder / "model.0.weights").write_bytes(bytes(100_000))
    files = {p.name: FileEntry(p.stat().st_size, sha256_file(p)) for p in folder.iterdir()}
    manifest = sample_manifest(files=files)
    (folder / "manifest.json").write_text(manifest.to_json())
    return manifest


def test_whole_bundle_is_accepted(tmp_path: Path) -> None:
    manifest = bundle(tmp_path)
    assert load_manifest(tmp_path) == manifest
    seen: list[tuple[str, int, int]] = []
    verify_files(tmp_path, manifest, lambda *call: seen.append(call))
    assert seen[-1] == ("verify", 100_005, 100_005)


def test_missing_manifest_is_named(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="holds no manifest.json"):
        load_manifest(tmp_path)


def test_missing_file_is_named(tmp_path: Path) -> None:
    manifest = bundle(tmp_path)
    (tmp_path / "model.onnx").unlink()
    with pytest.raises(BundleError, match="model.onnx is missing"):
        verify_files(tmp_path, manifest)


def test_truncated_file_is_named(tmp_path: Path) -> None:
    manifest = bundle(tmp_path)
    (tmp_path / "model.0.weights").write_bytes(bytes(99_999))
    with pytest.raises(BundleError, match="model.0.weights is truncated: 99999 of 100000 bytes"):
        verify_files(tmp_path, manifest)


@pytest.mark.parametrize("content", [bytes(99_999) + b"x", bytes(100_001)])
def test_changed_file_is_named(content: bytes, tmp_path: Path) -> None:
    manifest = bundle(tmp_path)
    (tmp_path / "model.0.weights").write_bytes(content)
    with pytest.raises(BundleError, match="model.0.weights has changed"):
        verify_files(tmp_path, manifest)
