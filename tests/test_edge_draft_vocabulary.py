"""The list of drafted tokens is checked before it is used."""

from pathlib import Path

import numpy as np
import pytest

from edge.draft_vocabulary import load_draft_ids
from shared.bundle import DRAFT_IDS_NAME, FileEntry, Manifest
from shared.errors import BundleError
from tests.manifests import sample_manifest


def three_of_300() -> Manifest:
    files = {name: FileEntry(1, "e" * 64) for name in ("model.onnx", DRAFT_IDS_NAME)}
    return sample_manifest(draft_vocab_size=3, files=files)


def test_the_whole_vocabulary_needs_no_list(tmp_path: Path) -> None:
    assert load_draft_ids(tmp_path, sample_manifest()) is None


def test_the_ids_come_back(tmp_path: Path) -> None:
    np.array([0, 7, 299], "<i4").tofile(tmp_path / DRAFT_IDS_NAME)
    ids = load_draft_ids(tmp_path, three_of_300())
    assert ids is not None and ids.tolist() == [0, 7, 299] and ids.dtype == np.int64


@pytest.mark.parametrize("ids", [[0, 1], [0, 1, 2, 3], [], [2, 1, 3], [1, 1, 2], [-1, 1, 2], [1, 2, 300]])
def test_a_list_that_can_not_be_is_refused_by_name(ids: list[int], tmp_path: Path) -> None:
    np.array(ids, "<i4").tofile(tmp_path / DRAFT_IDS_NAME)
    with pytest.raises(BundleError, match=r"draft_ids\.i32"):
        load_draft_ids(tmp_path, three_of_300())


def test_a_missing_list_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"draft_ids\.i32 can't be read"):
        load_draft_ids(tmp_path, three_of_300())
