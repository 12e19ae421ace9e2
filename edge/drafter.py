"""Drafting with the bundle's model: keeps its KV cache on the wanted tokens and picks the next one."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edge.draft_model import DraftModel
from shared.params import SamplingParams
from shared.sampling import choose


class Drafter:
    """One answer's use of a draft model. Rolling back is a number: the model forgets the rows beyond it."""

    def __init__(self, model: DraftModel, params: SamplingParams, prompt_len: int, keep_hidden: bool) -> None:
        self._model = model
        self._params = params
        self._prompt_len = prompt_len
        self._tokens: list[int] = []
        self._logits: NDArray[np.float32] | None = None
        self._hidden: NDArray[np.float32] | None = None
        if keep_hidden:
            self._hidden = np.empty((model.max_context, model.hidden_size), dtype=np.float32)
        model.truncate(0)

    @property
    def hidden_size(self) -> int:
        return self._model.hidden_size

    def sync(self, trunk: Sequence[int], tail: Sequence[int]) -> None:
        """Make the model hold exactly `trunk` + `tail`: roll back to what agrees, feed what is missing.

        Feeding everything that is missing covers the cloud's own token after a fully accepted draft (hazard 2).
        """
        wanted = [*trunk, *tail]
        agreed = _common_length(self._tokens, wanted)
        # Logits belong to the last row, so a rollback has to feed that row again.
        if agreed == len(wanted) and len(self._tokens) > agreed:
            agreed -= 1
        if agreed < len(self._tokens):
            self._model.truncate(agreed)
            del self._tokens[agreed:]
        missing = wanted[agreed:]
        if missing:
            self._logits, hidden = self._model.forward(missing)
            if self._hidden is not None:
                self._hidden[agreed : len(wanted)] = hidden
            self._tokens.extend(missing)
        assert self._model.length == len(self._tokens), "the cache and its tokens have come apart (hazard 1)"

    def next_token(self) -> int:
        """The draft for the place after what the model holds: the same rule and noise as the cloud's."""
        assert self._logits is not None, "nothing has been fed"
        position = len(self._tokens)
        return choose(self._logits, self._params, position, self._tokens, self._prompt_len)

    def rows(self, first: int, end: int) -> NDArray[np.float32]:
        """Residuals at the cut for the tokens at positions first .. end - 1: float32 [end - first, d]."""
        assert self._hidden is not None and end <= len(self._tokens), "these rows have not been computed"
        return self._hidden[first:end]


def _common_length(left: Sequence[int], right: Sequence[int]) -> int:
    """How many leading items agree. Compares slices first, since nearly all calls agree to the end of one side."""
    shorter = min(len(left), len(right))
    if left[:shorter] == right[:shorter]:
        return shorter
    for index in range(shorter):
        if left[index] != right[index]:
            return index
    return shorter
