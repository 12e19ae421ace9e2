"""The list of drafted tokens is checked before it is used."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.draft_vocabulary import DraftVocabulary, load_draft_ids
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


def spread(vocabulary: DraftVocabulary) -> dict[int, float]:
    """Logits by token: the list's are 1, and those of the text's own are the token's number plus a half."""
    logits = vocabulary.spread(np.ones(3, np.float32), vocabulary.context_ids.astype(np.float32) + 0.5)
    return {int(token): float(logits[token]) for token in np.flatnonzero(np.isfinite(logits))}


@given(st.lists(st.tuples(st.integers(0, 200), st.lists(st.integers(0, 299), max_size=90)), max_size=8))
def test_what_can_be_drafted_is_the_list_and_what_the_text_has(steps: list[tuple[int, list[int]]]) -> None:
    vocabulary = DraftVocabulary(np.array([0, 7, 299]), 300)
    text: list[int] = []
    for kept, more in steps:
        text = text[:kept]
        vocabulary.forget(len(text))
        vocabulary.see(more, len(text))
        text += more
        assert spread(vocabulary) == {token: token + 0.5 for token in text} | {0: 1.0, 7: 1.0, 299: 1.0}


def test_the_texts_own_tokens_keep_their_array_until_it_is_full() -> None:
    vocabulary = DraftVocabulary(np.array([0]), 300)
    first = vocabulary.context_ids
    vocabulary.see(range(100, 100 + len(first)), 0)
    assert vocabulary.context_ids is first and first.tolist() == list(range(100, 100 + len(first)))
    vocabulary.see([5], len(first))
    assert vocabulary.context_ids is not first and vocabulary.context_ids[len(first)] == 5
