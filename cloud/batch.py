"""What the scheduler asks of the verifier for one pass, and what comes back."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shared.params import SamplingParams


@dataclass(frozen=True, slots=True)
class Work:
    """One session's share of a pass: n rows at positions start .. start + n - 1.

    `start` is the KV length to keep; what the slot holds beyond it is dropped first. `hidden` [n, d] float32 are
    residuals at the cut for rows that join there (split mode); None means that the rows start from token ids. The
    target's token is wanted after each row from index `targets_from` on; n means none (a chunk of a prompt).
    `history` holds the tokens before `start`, only where `params.needs_history`.
    """

    slot: int
    start: int
    tokens: tuple[int, ...]
    targets_from: int
    params: SamplingParams
    prompt_len: int
    hidden: NDArray[np.float32] | None = None
    history: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of one forward pass, of several sessions."""

    works: tuple[Work, ...]

    @property
    def rows(self) -> int:
        return sum(len(work.tokens) for work in self.works)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The target's token after each wanted row of one slot, or the reason why this slot's rows can't be trusted."""

    slot: int
    targets: tuple[int, ...]
    error: str | None = None
