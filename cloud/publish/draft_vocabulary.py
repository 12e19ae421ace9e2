"""Which tokens a device may draft: the head over the whole vocabulary is the costliest layer of a shallow cut.

The cloud always decides over all tokens, so a token left out costs a miss and never changes the text. Source: FR-Spec
(arXiv 2502.14856). A byte-level BPE tokenizer numbers its tokens in the order of their merges, the most frequent first,
so without text to count in the lowest ids are the frequent ones.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.errors import BadInput

# Below either of these the head costs too little to lose a draft for it.
_LEAST_VOCABULARY = 16384
_LEAST_SHARE = 0.25


def default_size(config: Mapping[str, Any], cut: int) -> int:
    """Half of a large vocabulary where the head holds more than a quarter of a drafted token's weights, else all."""
    vocab, width = int(config["vocab_size"]), int(config["hidden_size"])
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or width // heads
    attention = 2 * width * head_dim * (heads + (config.get("num_key_value_heads") or heads))
    block = attention + 3 * width * config["intermediate_size"]
    share = vocab * width / (vocab * width + (cut + 1) * block)
    return vocab // 2 if vocab >= _LEAST_VOCABULARY and share > _LEAST_SHARE else vocab


def draft_ids(vocab_size: int, size: int, always: Sequence[int]) -> NDArray[np.int32]:
    """The `size` tokens that may be drafted, in ascending order: int32 `[size]`. Those of `always` are among them.

    Raises BadInput for a size that is not possible.
    """
    least = len(set(always)) + 1
    if not least <= size <= vocab_size:
        raise BadInput(f"a draft vocabulary of {size} tokens is not possible; use {least} to {vocab_size}")
    kept = set(always)
    frequent = (token for token in range(vocab_size) if token not in kept)
    kept.update(token for token, _ in zip(frequent, range(size - len(kept)), strict=False))
    return np.array(sorted(kept), np.int32)
