"""What an exit head learns from, computed once by the frozen model and read back from disk.

A folder holds one row a token in flat files: `ids.i32`, `cut<N>.f16` (the residual after N layers) and `final.f16` (the
state that the model's head reads); `texts.jsonl` says where each text lies and where its answer begins, and
`features.json` which model wrote it. A text counts only once its line stands in `texts.jsonl`, so work goes on where it
was stopped; it is found by its digest, so other data or another order uses what is there.
Source: EESD (arXiv 2404.18911), which distils an early exit from the model's own states.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.errors import BadInput

ABOUT_NAME = "features.json"
TEXTS_NAME = "texts.jsonl"
IDS_NAME = "ids.i32"
FINAL_NAME = "final.f16"


@dataclass(frozen=True, slots=True)
class Text:
    """One conversation: its ids, and at which of them the answer begins."""

    ids: tuple[int, ...]
    answer_from: int

    @property
    def digest(self) -> str:
        """What tells this text from others, in hexadecimal."""
        return sha256(np.array([self.answer_from, *self.ids], "<i4").tobytes()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class States:
    """What the model computed for one text: float32 `[T, d]`, the residual at each cut and the final state."""

    at_cut: dict[int, NDArray[Any]]
    final: NDArray[Any]


@dataclass(frozen=True, slots=True)
class About:
    """Which model and which cuts a folder belongs to."""

    weights_sha256: str
    hidden_size: int
    cuts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Span:
    """Rows `first` to `first + rows - 1` are the text of this digest; its answer begins `answer_from` rows later."""

    first: int
    rows: int
    answer_from: int
    digest: str


class FeatureFolder:
    """The features of many texts, in one folder."""

    def __init__(self, folder: Path, about: About) -> None:
        """Open `folder`, or begin it. Raises BadInput for one that belongs to another model or other cuts."""
        self.folder = folder
        self.about = about
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / ABOUT_NAME
        record = asdict(about) | {"cuts": list(about.cuts)}
        if not path.exists():
            path.write_text(json.dumps(record) + "\n", encoding="utf-8")
        elif json.loads(path.read_text(encoding="utf-8")) != record:
            raise BadInput(f"{folder} holds features of another model or of other cuts; name another folder")
        self._spans = {span.digest: span for span in _read_spans(folder / TEXTS_NAME)}

    @property
    def rows(self) -> int:
        """Tokens in all."""
        last = next(reversed(self._spans.values()), None)
        return 0 if last is None else last.first + last.rows

    def compute(
        self, texts: Sequence[Text], states: Callable[[Sequence[int]], States], advance: Callable[[int, int], None]
    ) -> list[Span]:
        """Where each of `texts` lies, in their order; what is missing is computed and added."""
        lines = "".join(_line(span) for span in self._spans.values())
        (self.folder / TEXTS_NAME).write_text(lines, encoding="utf-8")
        for name, row_bytes in self._files():
            with (self.folder / name).open("ab") as file:
                # Rows of a text whose line was never written.
                file.truncate(self.rows * row_bytes)
        spans = []
        for text in texts:
            spans.append(self._spans.get(text.digest) or self._add(text, states(text.ids)))
            advance(len(spans), len(texts))
        return spans

    def ids(self) -> NDArray[np.int32]:
        """All token ids: int32 `[rows]`, read as they are used."""
        return np.memmap(self.folder / IDS_NAME, np.int32, "r", shape=(self.rows,))

    def at_cut(self, cut: int) -> NDArray[np.float16]:
        """Residuals after `cut` layers: float16 `[rows, d]`, read as they are used."""
        return self._states(f"cut{cut}.f16")

    def final(self) -> NDArray[np.float16]:
        """The states that the model's head reads: float16 `[rows, d]`, read as they are used."""
        return self._states(FINAL_NAME)

    def _states(self, name: str) -> NDArray[np.float16]:
        return np.memmap(self.folder / name, np.float16, "r", shape=(self.rows, self.about.hidden_size))

    def _files(self) -> list[tuple[str, int]]:
        """Each file's name and bytes a row."""
        states = [FINAL_NAME, *(f"cut{cut}.f16" for cut in self.about.cuts)]
        return [(IDS_NAME, 4), *((name, 2 * self.about.hidden_size) for name in states)]

    def _add(self, text: Text, states: States) -> Span:
        parts: dict[str, NDArray[Any]] = {
            IDS_NAME: np.asarray(text.ids, np.int32),
            FINAL_NAME: states.final.astype(np.float16),
        }
        parts |= {f"cut{cut}.f16": states.at_cut[cut].astype(np.float16) for cut in self.about.cuts}
        for name, rows in parts.items():
            assert len(rows) == len(text.ids) and np.isfinite(rows).all(), f"{name}: states don't fit into float16"
            with (self.folder / name).open("ab") as file:
                file.write(np.ascontiguousarray(rows).data)
        span = Span(self.rows, len(text.ids), text.answer_from, text.digest)
        with (self.folder / TEXTS_NAME).open("a", encoding="utf-8") as lines:
            lines.write(_line(span))
        self._spans[span.digest] = span
        return span


def _line(span: Span) -> str:
    return json.dumps(asdict(span)) + "\n"


def _read_spans(path: Path) -> Iterator[Span]:
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if not line.endswith("\n"):
            return
        try:
            yield Span(**json.loads(line))
        except (ValueError, TypeError) as error:
            raise BadInput(f"{path} is of another version ({error}); remove its folder") from error
