"""What drafting needs of a model on the device; `edge.onnx_model` has the real ones."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class DraftModel(Protocol):
    """The first N layers and an exit head with one KV cache, whose length is a number."""

    @property
    def length(self) -> int:
        """Tokens in the KV cache."""
        ...

    @property
    def max_context(self) -> int: ...

    @property
    def hidden_size(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...

    def forward(self, ids: Sequence[int]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Feed `ids` after what is cached: logits of the last one [vocab], residuals at the cut [len(ids), d].

        Tokens that can't be drafted have a logit of -inf. Raises BadInput when the ids don't fit into `max_context`;
        nothing is lost then.
        """
        ...

    def truncate(self, n: int) -> None:
        """Forget all but the first `n` tokens, in every cache at once and in constant time."""
        ...

    def close(self) -> None: ...
