"""Fitted exit entries: what they reach, what is stored, and what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cloud.__main__ import main
from cloud.publish import exit_file
from cloud.publish.build import build_bundle
from cloud.publish.exit_block import exit_shift
from cloud.publish.exit_entry import EntryRecipe, ExitEntry, load_entry, save_entry
from cloud.publish.exit_file import shipped_exit
from cloud.publish.exit_fit import agreement, fit_entries, residuals
from cloud.publish.fit import HELD_OUT
from cloud.source import resolve_source
from shared.bundle import load_manifest
from shared.errors import BadInput
from tests.tiny_checkpoints import write_gguf
from tests.tiny_models import tiny_model

CUT = 2
RECIPE = EntryRecipe("a" * 64, CUT, 10, "some.jsonl; seed 0", 5, 0.5)
# In column order, as the solver leaves it.
ENTRY = ExitEntry(np.asfortranarray(np.arange(16, dtype=np.float32).reshape(4, 4)), np.ones(4, np.float32))


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model("llama", torch.float32)


def texts(count: int, seed: int) -> list[list[int]]:
    return np.random.default_rng(seed).integers(0, 90, (count, 40)).tolist()


def unseen(done: int, total: int) -> None:
    """Progress that nobody watches."""


def test_a_fitted_entry_comes_nearer_to_the_last_blocks_input_than_a_shift(model: Any) -> None:
    seen, fresh = texts(30, 1), texts(5, 2)
    fitted = fit_entries(model, seen, [CUT], unseen)[CUT]
    shift = ExitEntry(None, exit_shift(model, seen, CUT))

    def distance(entry: ExitEntry) -> float:
        total = 0.0
        for ids in fresh:
            states = residuals(model, ids)
            moved = states[CUT] + torch.from_numpy(entry.shift)
            if entry.matrix is not None:
                moved = moved + states[CUT] @ torch.from_numpy(entry.matrix)
            total += float((moved - states[-2])[1:].square().mean())
        return total

    assert distance(fitted) < 0.9 * distance(shift)
    pairs = [(ids[:10], ids[10:]) for ids in fresh]
    reached = [agreement(model, pairs, {CUT: entry}, unseen)[CUT] for entry in (shift, fitted)]
    assert reached[0] <= reached[1] < 1


def test_an_entry_that_misses_nothing_agrees_everywhere(model: Any) -> None:
    """Fed from the layer before the last block, no way is left to go."""
    layers = model.config.num_hidden_layers
    nothing = ExitEntry(None, np.zeros(model.config.hidden_size, np.float32))
    assert agreement(model, [([1, 2, 3], [4, 5, 6])], {layers - 1: nothing}, unseen) == {layers - 1: 1.0}


def test_what_is_stored_comes_back(tmp_path: Path) -> None:
    save_entry(tmp_path / "e", ENTRY, RECIPE)
    entry, recipe = load_entry(tmp_path / "e", "a" * 64, CUT, 4)
    assert entry.matrix is not None and (entry.matrix == ENTRY.matrix).all() and (entry.shift == ENTRY.shift).all()
    assert recipe == RECIPE


@pytest.mark.parametrize(
    ("weights", "cut", "width", "message"),
    [
        ("b" * 64, CUT, 4, "was fitted for another model"),
        ("a" * 64, 3, 4, "was fitted for a cut at 2, not 3"),
        ("a" * 64, CUT, 5, r"the model is 5 wide"),
    ],
)
def test_an_entry_of_something_else_is_refused(
    weights: str, cut: int, width: int, message: str, tmp_path: Path
) -> None:
    save_entry(tmp_path / "e", ENTRY, RECIPE)
    with pytest.raises(BadInput, match=message):
        load_entry(tmp_path / "e", weights, cut, width)


def test_a_file_that_is_none_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "e").write_bytes(b"no entry")
    for path in (tmp_path / "e", tmp_path / "missing"):
        with pytest.raises(BadInput, match="is no fitted exit entry"):
            load_entry(path, "a" * 64, CUT, 4)


def test_fit_writes_what_build_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EDGEWISE_HOME", str(tmp_path / "home"))
    write_gguf(tmp_path / "m.gguf", "llama", "Q4_1")
    lines = [json.dumps({"user": f"what is {n}", "assistant": f"it is {n}, and so on"}) for n in range(HELD_OUT + 6)]
    (tmp_path / "text.jsonl").write_text("\n".join(lines))
    model, data, out = str(tmp_path / "m.gguf"), str(tmp_path / "text.jsonl"), tmp_path / "exits"
    command = ["fit", "--model", model, "--cut", "1", "2", "--data", data, "--out", str(out), "--threads", "1"]
    assert main([*command, "--conversations", "6"]) == 0
    assert sorted(path.name for path in out.iterdir()) == ["cut1.safetensors", "cut2.safetensors"]
    source = resolve_source(model, tmp_path)
    manifest = build_bundle(source, 2, tmp_path / "b", max_context=64, exit_file=out / "cut2.safetensors")
    assert "fitted affine map" in manifest.exit_block and manifest.head_context
    assert load_manifest(tmp_path / "b") == manifest
    with pytest.raises(BadInput, match="was fitted for a cut at 2, not 1"):
        build_bundle(source, 1, tmp_path / "c", max_context=64, exit_file=out / "cut2.safetensors")
    monkeypatch.setattr(exit_file, "SHIPPED", tmp_path)
    assert shipped_exit(source.weights_sha256, 2) == out / "cut2.safetensors"
    assert shipped_exit("0" * 64, 2) is None and shipped_exit(source.weights_sha256, 3) is None
    assert main([*command, "--conversations", "7"]) == 2
    assert "use --conversations 6 or more text" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("line", "message"),
    [("{", "line 2: no JSON"), ("[]", "line 2: no prompt"), ('{"user": "hi"}', "line 2: no answer")],
)
def test_a_bad_line_of_text_is_named(
    line: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGEWISE_HOME", str(tmp_path / "home"))
    write_gguf(tmp_path / "m.gguf", "llama", "Q4_1")
    (tmp_path / "text.jsonl").write_text('{"user": "hi", "assistant": "hello"}\n' + line)
    options = ["--data", str(tmp_path / "text.jsonl"), "--out", str(tmp_path / "exits")]
    assert main(["fit", "--model", str(tmp_path / "m.gguf"), "--cut", "2", *options]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
