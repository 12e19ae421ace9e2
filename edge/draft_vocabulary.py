"""The tokens that the bundle's head has logits for, where those are not all of the vocabulary."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shared.bundle import DRAFT_IDS_NAME, Manifest
from shared.errors import BundleError


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
