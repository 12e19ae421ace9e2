"""What the device is told is checked once, with words that help."""

from pathlib import Path

import pytest

from edge.config import DeviceConfig, find_bundle
from edge.pacing import FixedPacing
from edge.plan import Plan
from shared.errors import BadInput
from shared.params import Placement


def test_hidden_states_need_drafts() -> None:
    with pytest.raises(BadInput, match="needs --placement edge, not ar"):
        DeviceConfig(Path("."), plan=Plan(placement=Placement.AR, hidden="fp16"))


def test_an_answer_has_room_for_a_token() -> None:
    with pytest.raises(BadInput, match="--max-tokens is 0"):
        DeviceConfig(Path("."), max_tokens=0)


def test_the_only_bundle_is_found_and_two_must_be_told_apart(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no bundle in"):
        find_bundle(None, tmp_path)
    for name in ("one", "two"):
        folder = tmp_path / "bundles" / name
        folder.mkdir(parents=True)
        (folder / "manifest.json").touch()
        if name == "one":
            assert find_bundle(None, tmp_path) == folder
    with pytest.raises(BadInput, match="2 bundles in .*one, two"):
        find_bundle(None, tmp_path)
    assert find_bundle(tmp_path, tmp_path) == tmp_path


@pytest.mark.parametrize(("length", "window"), [(0, 4), (5, 4), (-1, -1)])
def test_a_draft_fits_into_its_window(length: int, window: int) -> None:
    with pytest.raises(BadInput, match="at most the window"):
        FixedPacing(length, window)


def test_pacing_keeps_to_the_clouds_bound() -> None:
    assert FixedPacing(8, 16).within(4) == FixedPacing(4, 4)
    assert FixedPacing(2, 3).within(100) == FixedPacing(2, 3)
