"""The portable graph on ONNX Runtime: plain operators and a cache that grows by concatenation. The slow reference."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge.onnx_session import open_session
from edge.token_check import check_ids
from shared.bundle import Manifest


class PortableModel:
    """A `DraftModel` on optimum's export. Every pass hands the whole cache in and takes a longer one out."""

    def __init__(self, folder: Path, manifest: Manifest, threads: int = 1) -> None:
        self._session = open_session(folder / manifest.graph, threads)
        self._max_context = manifest.max_context
        self._hidden_size = manifest.hidden_size
        self._vocab_size = manifest.vocab_size
        self._length = 0
        empty = np.zeros((1, manifest.n_kv_heads, 0, manifest.head_dim), np.float32)
        names = [f"{i}.{part}" for i in range(manifest.n_caches) for part in ("key", "value")]
        self._caches: dict[str, NDArray[np.float32]] = dict.fromkeys(names, empty)
        self._inputs = {value.name for value in self._session.get_inputs()}

    @property
    def length(self) -> int:
        """Tokens that count in the caches."""
        return self._length

    @property
    def max_context(self) -> int:
        return self._max_context

    @property
    def hidden_size(self) -> int:
        return self._hidden_size

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    def forward(self, ids: Sequence[int]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Feed `ids` after what is cached: logits of the last one [vocab], residuals at the cut [len(ids), d].

        Raises BadInput when they don't fit into `max_context`, or aren't ids of this vocabulary; nothing is lost then.
        """
        check_ids(ids, self._length, self._max_context, self._vocab_size)
        total = self._length + len(ids)
        feeds = {
            "input_ids": np.asarray([ids], np.int64),
            "attention_mask": np.ones((1, total), np.int64),
            "position_ids": np.arange(self._length, total)[None],
            **{f"past_key_values.{name}": cache[:, :, : self._length] for name, cache in self._caches.items()},
        }
        wanted = ["logits", "hidden", *(f"present.{name}" for name in self._caches)]
        logits, hidden, *caches = self._session.run(wanted, {k: v for k, v in feeds.items() if k in self._inputs})
        self._caches = dict(zip(self._caches, caches, strict=True))
        self._length = total
        return logits[0, -1], hidden[0]

    def truncate(self, n: int) -> None:
        """Forget all but the first `n` tokens, in every cache at once and in constant time."""
        if not 0 <= n <= self._length:
            raise ValueError(f"can't truncate to {n} tokens: {self._length} are cached")
        self._length = n

    def close(self) -> None:
        """Give the caches and the session back."""
        del self._caches, self._session
