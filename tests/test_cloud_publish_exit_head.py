"""Trained heads as files: what is stored comes back, and what doesn't fit is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cloud.distil.head import ExitHead
from cloud.publish.exit_head import is_head, load_head
from shared.errors import BadInput
from tests.tiny_models import tiny_model
from tests.trained_heads import write_head

CUT = 2


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model("llama", torch.float32)


@pytest.mark.parametrize("max_bits", [0, 8])
def test_a_stored_head_gives_the_same_states_however_it_is_read(max_bits: int, model: Any, tmp_path: Path) -> None:
    write_head(tmp_path / "h", model, "a" * 64, CUT, 2)
    stored = load_head(tmp_path / "h", "a" * 64, CUT, 64, max_bits, "d")
    assert stored.recipe.n_blocks == len(stored.blocks) == 2 and len(stored.frequent) == 50
    again = load_head(tmp_path / "h", "a" * 64, CUT, 64, 4, "d")
    x = torch.randn(1, 9, 64, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        assert torch.equal(ExitHead.of(model, stored)(x), ExitHead.of(model, again)(x))


def test_storing_rounds_little(model: Any, tmp_path: Path) -> None:
    """The same numbers but for 4 bits: near, and not those of another head."""
    write_head(tmp_path / "h", model, "a" * 64, CUT, 1)
    write_head(tmp_path / "other", model, "a" * 64, CUT, 1, seed=1)
    one, other = (load_head(tmp_path / name, "a" * 64, CUT, 64, 0, "d") for name in ("h", "other"))
    up = model.model.layers[-1].mlp.up_proj.weight.numpy()
    near, far = (np.abs(head.blocks[0].up.weights - up).mean() / np.abs(up).mean() for head in (one, other))
    assert 0.05 < near < 0.2 and 0.05 < far < 0.2, "a tenth was multiplied in, and 4 bits round a little more"
    assert not np.array_equal(one.blocks[0].up.weights, other.blocks[0].up.weights)
    assert np.array_equal(ExitHead.of(model, one).layers()["0.mlp.up_proj.weight"], one.blocks[0].up.weights)


def test_a_row_sees_only_itself_and_those_before_it(model: Any, tmp_path: Path) -> None:
    write_head(tmp_path / "h", model, "a" * 64, CUT, 2)
    head = ExitHead.of(model, load_head(tmp_path / "h", "a" * 64, CUT, 64, 0, "d"))
    x = torch.randn(1, 9, 64, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        torch.testing.assert_close(head(x)[:, :5], head(x[:, :5]), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("weights", "cut", "width", "message"),
    [
        ("b" * 64, CUT, 64, "was trained for another model"),
        ("a" * 64, 3, 64, "was trained for a cut at 2, not 3"),
        ("a" * 64, CUT, 32, "the model is 32 wide"),
    ],
)
def test_a_head_of_something_else_is_refused(
    weights: str, cut: int, width: int, message: str, model: Any, tmp_path: Path
) -> None:
    write_head(tmp_path / "h", model, "a" * 64, CUT, 1)
    with pytest.raises(BadInput, match=message):
        load_head(tmp_path / "h", weights, cut, width, 0, "d")


def test_a_file_that_is_none_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "h").write_bytes(b"no head")
    for path in (tmp_path / "h", tmp_path / "missing"):
        assert not is_head(path)
        with pytest.raises(BadInput, match="is no trained exit head"):
            load_head(path, "a" * 64, CUT, 64, 0, "d")
