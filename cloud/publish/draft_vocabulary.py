"""Which tokens a device may draft: the head over the whole vocabulary is the costliest layer of a shallow cut.

The cloud always decides over all tokens, so a token left out costs a miss and never changes the text. Source: FR-Spec
(arXiv 2502.14856). A byte-level BPE tokenizer numbers its tokens in the order of their merges, the most frequent first,
so without text to count in the lowest ids are the frequent ones; a trained head knows the counts of its training text.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.errors import BadInput

# Below either of these the head costs too little to lose a draft for it.
_LEAST_VOCABULARY = 16384
_LEAST_SHARE = 0.25


def default_size(config: Mapping[str, Any], n_blocks: int) -> int:
    """Half of a large vocabulary where the head holds more than a quarter of a drafted token's weights, else all.

    `n_blocks` are run for a drafted token, the exit's among them.
    """
    vocab, width = int(config["vocab_size"]), int(config["hidden_size"])
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or width // heads
    attention = 2 * width * head_dim * (heads + (config.get("num_key_value_heads") or heads))
    block = attention + 3 * width * config["intermediate_size"]
    share = vocab * width / (vocab * width + n_blocks * block)
    return vocab // 2 if vocab >= _LEAST_VOCABULARY and share > _LEAST_SHARE else vocab


def draft_ids(vocab_size: int, size: int, always: Sequence[int], frequent: Sequence[int] = ()) -> NDArray[np.int32]:
    """The `size` tokens that may be drafted, in ascending order: int32 `[size]`.

    Those of `always` are among them, then those of `frequent` from its start, then the lowest ids.

    Raises BadInput for a size that is not possible.
    """
    least = len(set(always)) + 1
    if not least <= size <= vocab_size:
        raise BadInput(f"a draft vocabulary of {size} tokens is not possible; use {least} to {vocab_size}")
    # A dict keeps the order in which its keys came.
    ranked = dict.fromkeys([*always, *frequent, *range(vocab_size)])
    return np.array(sorted([*ranked][:size]), np.int32)
