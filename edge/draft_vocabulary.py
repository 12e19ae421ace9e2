"""The tokens that can be drafted: those that the bundle's head is for, and those that stand in the conversation.

A short list costs little to choose from and leaves out names, numbers and foreign words, which are rarely frequent and,
once they stand in a prompt, likely to come again. Source of the list: FR-Spec (arXiv 2502.14856).
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shared.bundle import DRAFT_IDS_NAME, Manifest
from shared.errors import BundleError

# The list of the conversation's own tokens grows in steps, since its length is bound into each pass.
_STEP = 64


class DraftVocabulary:
    """The bundle's list, and the other tokens that the text has had so far, each with where it first stood."""

    def __init__(self, listed: NDArray[np.int64], vocab_size: int) -> None:
        self._listed = listed
        self._is_listed = np.zeros(vocab_size, np.bool_)
        self._is_listed[listed] = True
        self._first_at: dict[int, int] = {}
        self._context_ids = np.zeros(_STEP, np.int64)
        self._logits: NDArray[np.float32] = np.full(vocab_size, -np.inf, np.float32)

    @property
    def context_ids(self) -> NDArray[np.int64]:
        """The text's own tokens [K], filled up at the end. A new array where there are more; else changed in place."""
        return self._context_ids

    def see(self, ids: Sequence[int], position: int) -> None:
        """The text goes on with `ids`, the first of them at `position`."""
        for at, token in enumerate(ids, start=position):
            if self._is_listed[token] or token in self._first_at:
                continue
            count = len(self._first_at)
            if count == len(self._context_ids):
                self._context_ids = np.concatenate([self._context_ids, np.zeros(_STEP, np.int64)])
            self._context_ids[count] = token
            self._first_at[token] = at

    def forget(self, n: int) -> None:
        """The text ends after `n` tokens."""
        while self._first_at:
            token, at = self._first_at.popitem()
            if at < n:
                self._first_at[token] = at
                return
            self._logits[token] = -np.inf

    def spread(self, listed: NDArray[np.float32], context: NDArray[np.float32]) -> NDArray[np.float32]:
        """Logits [vocab] from those of the list and of `context_ids` [K]; -inf for what can't be drafted."""
        count = len(self._first_at)
        self._logits[self._listed] = listed
        self._logits[self._context_ids[:count]] = context[:count]
        return self._logits.copy()


def load_draft_ids(folder: Path, manifest: Manifest) -> NDArray[np.int64] | None:
    """Ascending token ids int64 `[draft_vocab_size]`; None when the head covers the whole vocabulary.

    Raises BundleError for a file that is no such list.
    """
    if manifest.draft_vocab_size == manifest.vocab_size:
        return None
    try:
        raw = (folder / DRAFT_IDS_NAME).read_bytes()
    except OSError as error:
        raise BundleError(f"{DRAFT_IDS_NAME} can't be read: {error}; build or pull the bundle again") from error
    if len(raw) != 4 * manifest.draft_vocab_size:
        raise BundleError(f"{DRAFT_IDS_NAME} has {len(raw)} bytes; {manifest.draft_vocab_size} ids need 4 each")
    ids = np.frombuffer(raw, "<i4").astype(np.int64)
    if ids[0] < 0 or ids[-1] >= manifest.vocab_size or (np.diff(ids) <= 0).any():
        raise BundleError(f"{DRAFT_IDS_NAME} must rise from 0 to {manifest.vocab_size - 1} at most; build it again")
    return ids
