"""From features on disk to padded batches, in an order that a seed settles."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cloud.distil.features import FeatureFolder, Span

# How far in rows texts of other lengths may come into a batch.
_JITTER = 40


@dataclass(frozen=True, slots=True)
class Batch:
    """Some texts side by side, padded at the end: residuals and final states float32 [batch, T, d].

    `wanted` [batch, T] marks the rows after which a token of the answer comes. `ids` [rows] are the texts' tokens.
    """

    ids: Tensor
    at_cut: Tensor
    final: Tensor
    wanted: Tensor


class Batches:
    """Reads batches of one folder's features at one cut."""

    def __init__(self, features: FeatureFolder, cut: int, device: torch.device) -> None:
        self._ids, self._at_cut, self._final = features.ids(), features.at_cut(cut), features.final()
        self._width = features.about.hidden_size
        self._device = device

    def read(self, spans: Sequence[Span]) -> Batch:
        """These texts as one batch."""
        longest = max(span.rows for span in spans)
        at_cut, final = (torch.zeros(len(spans), longest, self._width) for _ in range(2))
        wanted = torch.zeros(len(spans), longest, dtype=torch.bool)
        for i, span in enumerate(spans):
            rows = slice(span.first, span.first + span.rows)
            at_cut[i, : span.rows] = torch.from_numpy(self._at_cut[rows].astype(np.float32))
            final[i, : span.rows] = torch.from_numpy(self._final[rows].astype(np.float32))
            wanted[i, max(0, span.answer_from - 1) : span.rows - 1] = True
        ids = torch.from_numpy(np.concatenate([self._ids[span.first : span.first + span.rows] for span in spans]))
        ids, at_cut, final, wanted = (part.to(self._device) for part in (ids.long(), at_cut, final, wanted))
        return Batch(ids, at_cut, final, wanted)


def epochs(spans: Sequence[Span], size: int, seed: int) -> Iterator[list[Span]]:
    """Batches of `size` texts without end: each epoch has every text once, near others of its length."""
    epoch = 0
    while True:
        random = Random(f"{seed}:{epoch}")
        near = sorted(spans, key=lambda span: span.rows + random.random() * _JITTER)
        groups = [near[at : at + size] for at in range(0, len(near), size)]
        random.shuffle(groups)
        yield from groups
        epoch += 1


def frequent_tokens(ids: NDArray[np.int32], spans: Sequence[Span]) -> NDArray[np.int32]:
    """The tokens in the answers, the most frequent first and of equal ones the lowest: int32. Source: FR-Spec."""
    counts = np.bincount(np.concatenate([ids[s.first + s.answer_from : s.first + s.rows] for s in spans]))
    order = np.argsort(-counts, kind="stable")
    return order[: np.count_nonzero(counts)].astype(np.int32)
