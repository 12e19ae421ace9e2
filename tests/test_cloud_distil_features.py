"""Features on disk: what was computed comes back, and work that was stopped goes on."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from cloud.distil.features import About, FeatureFolder, States, Text
from shared.errors import BadInput

ABOUT = About("a" * 64, 4, (1, 2))
TEXTS = [Text((5, 6, 7), 1), Text((8, 9), 1), Text((1, 2, 3, 4), 3)]


def states(ids: Sequence[int]) -> States:
    rows = np.outer(np.array(ids, np.float32), np.ones(4, np.float32))
    return States({1: rows, 2: rows * 2}, rows * 3)


def refuse(ids: Sequence[int]) -> States:
    raise AssertionError(f"{ids} were computed already")


def unseen(done: int, total: int) -> None:
    """Progress that nobody watches."""


def check(folder: FeatureFolder) -> None:
    spans = folder.compute(TEXTS, refuse, unseen)
    assert [(span.first, span.rows, span.answer_from) for span in spans] == [(0, 3, 1), (3, 2, 1), (5, 4, 3)]
    ids = np.array([5, 6, 7, 8, 9, 1, 2, 3, 4])
    assert (folder.ids() == ids).all()
    for rows, factor in ((folder.at_cut(1), 1), (folder.at_cut(2), 2), (folder.final(), 3)):
        assert rows.shape == (9, 4) and (rows == ids[:, None] * factor).all()


def test_what_was_computed_comes_back(tmp_path: Path) -> None:
    FeatureFolder(tmp_path, ABOUT).compute(TEXTS, states, unseen)
    check(FeatureFolder(tmp_path, ABOUT))


@pytest.mark.parametrize("name", ["cut1.f16", "final.f16", "ids.i32"])
def test_a_text_that_was_half_written_is_computed_again(name: str, tmp_path: Path) -> None:
    FeatureFolder(tmp_path, ABOUT).compute(TEXTS[:2], states, unseen)
    with (tmp_path / name).open("ab") as file:
        file.write(b"\xff" * 10)
    with (tmp_path / "texts.jsonl").open("a") as lines:
        lines.write('{"first": 5, "ro')
    computed: list[Sequence[int]] = []

    def counted(ids: Sequence[int]) -> States:
        computed.append(ids)
        return states(ids)

    FeatureFolder(tmp_path, ABOUT).compute(TEXTS, counted, unseen)
    assert computed == [TEXTS[2].ids]
    check(FeatureFolder(tmp_path, ABOUT))


def test_texts_are_found_in_any_order_and_others_are_added(tmp_path: Path) -> None:
    folder = FeatureFolder(tmp_path, ABOUT)
    folder.compute(TEXTS[:2], states, unseen)
    last, first = folder.compute([TEXTS[2], TEXTS[0]], states, unseen)
    assert (last.first, last.rows, first.first, folder.rows) == (5, 4, 0, 9)
    # The same ids with another beginning of the answer are another text.
    (other,) = folder.compute([Text(TEXTS[0].ids, 2)], states, unseen)
    assert (other.first, other.answer_from) == (9, 2)


def test_a_folder_of_another_version_is_refused(tmp_path: Path) -> None:
    FeatureFolder(tmp_path, ABOUT)
    (tmp_path / "texts.jsonl").write_text('{"first": 0, "rows": 3, "answer_from": 1}\n')
    with pytest.raises(BadInput, match="another version"):
        FeatureFolder(tmp_path, ABOUT)


@pytest.mark.parametrize("other", [About("b" * 64, 4, (1, 2)), About("a" * 64, 4, (1,)), About("a" * 64, 8, (1, 2))])
def test_a_folder_of_something_else_is_refused(other: About, tmp_path: Path) -> None:
    FeatureFolder(tmp_path, ABOUT)
    with pytest.raises(BadInput, match="another model or of other cuts"):
        FeatureFolder(tmp_path, other)
