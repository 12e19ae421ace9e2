"""The device's model on ONNX Runtime: one preallocated KV buffer for each block, and rollback as a number."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from edge.draft_model import DraftModel
from edge.draft_vocabulary import DraftVocabulary, load_draft_ids
from edge.onnx_portable import PortableModel
from edge.onnx_session import open_session
from edge.token_check import check_ids
from shared.bundle import Manifest

# Rows in one pass over a prompt: bounds the memory of a pass, and more rows gain no speed.
CHUNK = 64


def open_model(folder: Path, manifest: Manifest, threads: int = 1) -> DraftModel:
    """The bundle's model, ready to run. Raises BundleError for a graph that can't be loaded."""
    model = FastModel if manifest.exporter == "fast" else PortableModel
    return model(folder, manifest, threads)


class FastModel:
    """A `DraftModel` whose buffers are bound once; a pass over one token allocates nothing here.

    ONNX Runtime reads and writes each KV buffer in place, as past and as present, up to the length that it is told
    (com.microsoft.GroupQueryAttention, shared buffer). What lies beyond that length is never read, so forgetting is
    a smaller number (hazards 1 and 14).
    """

    def __init__(self, folder: Path, manifest: Manifest, threads: int = 1) -> None:
        self._session = open_session(folder / manifest.graph, threads)
        self._max_context = manifest.max_context
        self._hidden_size = manifest.hidden_size
        self._vocab_size = manifest.vocab_size
        self._length = 0
        shape = (1, manifest.n_kv_heads, manifest.max_context, manifest.head_dim)
        self._caches = {
            f"{part}_{i}": _bound(np.zeros(shape, np.float32))
            for i in range(manifest.n_caches)
            for part in ("key", "value")
        }
        self._total = np.zeros((), np.int32)
        self._last = np.zeros(1, np.int32)
        self._first_wanted = np.zeros(1, np.int64)
        self._numbers = {
            "total_length": _bound(self._total),
            "last_index": _bound(self._last),
            "logits_from": _bound(self._first_wanted),
        }
        listed = load_draft_ids(folder, manifest)
        self._vocabulary = None if listed is None else DraftVocabulary(listed, manifest.vocab_size)
        self._bind_context()
        self._logits = np.zeros((1, 1, manifest.draft_vocab_size), np.float32)
        self._logits_value = _bound(self._logits)
        self._one_id = np.zeros((1, 1), np.int64)
        self._one_hidden = np.zeros((1, 1, manifest.hidden_size), np.float32)
        self._one = self._bind(self._one_id, self._one_hidden)

    @property
    def length(self) -> int:
        """Tokens in the KV buffers."""
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

        Tokens that can't be drafted have a logit of -inf: the head isn't for them, and the text hasn't had them. Raises
        BadInput when the ids don't fit into `max_context`, or aren't ids of this vocabulary; nothing is lost then.
        """
        check_ids(ids, self._length, self._max_context, self._vocab_size)
        self._see(ids)
        if len(ids) == 1:
            self._one_id[0, 0] = ids[0]
            self._run(self._one, 1)
            return self._last_logits(), self._one_hidden[0].copy()
        hidden = np.empty((len(ids), self._hidden_size), np.float32)
        begin = self._length
        try:
            for at in range(0, len(ids), CHUNK):
                chunk = np.asarray([ids[at : at + CHUNK]], np.int64)
                self._run(self._bind(chunk, hidden[None, at : at + CHUNK]), chunk.shape[1])
        except BaseException:
            # Ctrl-C between two chunks must not leave a half prompt in the cache.
            self._length = begin
            self._forget(begin)
            raise
        return self._last_logits(), hidden

    def truncate(self, n: int) -> None:
        """Forget all but the first `n` tokens, in every cache at once and in constant time."""
        if not 0 <= n <= self._length:
            raise ValueError(f"can't truncate to {n} tokens: {self._length} are cached")
        self._length = n
        self._forget(n)

    def close(self) -> None:
        """Give the buffers and the session back."""
        del self._one, self._caches, self._session

    def _last_logits(self) -> NDArray[np.float32]:
        logits: NDArray[np.float32] = self._logits[0, 0]
        return (
            logits.copy() if self._vocabulary is None else self._vocabulary.spread(logits, self._context_logits[0, 0])
        )

    def _see(self, ids: Sequence[int]) -> None:
        if self._vocabulary is None:
            return
        known = self._vocabulary.context_ids
        self._vocabulary.see(ids, self._length)
        if self._vocabulary.context_ids is not known:
            self._bind_context()
            self._one = self._bind(self._one_id, self._one_hidden)

    def _forget(self, n: int) -> None:
        if self._vocabulary is not None:
            self._vocabulary.forget(n)

    def _bind_context(self) -> None:
        """Bind the conversation's own tokens, and room for their logits."""
        if self._vocabulary is not None:
            ids = self._vocabulary.context_ids
            self._numbers["context_ids"] = _bound(ids)
            self._context_logits = np.zeros((1, 1, len(ids)), np.float32)
            self._context_value = _bound(self._context_logits)

    def _bind(self, ids: NDArray[np.int64], hidden: NDArray[np.float32]) -> Any:
        """A binding for one pass over `ids` [1, T], which writes into `hidden` [1, T, d] and the shared buffers."""
        binding = self._session.io_binding()
        binding.bind_ortvalue_input("input_ids", _bound(ids))
        for name, value in self._numbers.items():
            binding.bind_ortvalue_input(name, value)
        # Outputs are bound in the graph's order.
        binding.bind_ortvalue_output("logits", self._logits_value)
        if self._vocabulary is not None:
            binding.bind_ortvalue_output("context_logits", self._context_value)
        binding.bind_ortvalue_output("hidden", _bound(hidden))
        for name, value in self._caches.items():
            binding.bind_ortvalue_input(f"past_{name}", value)
            binding.bind_ortvalue_output(f"present_{name}", value)
        return binding

    def _run(self, binding: Any, count: int) -> None:
        total = self._length + count
        self._total[...] = total
        self._last[0] = total - 1
        self._first_wanted[0] = count - 1
        self._session.run_with_iobinding(binding)
        self._length = total


def _bound(array: NDArray[Any]) -> Any:
    """The array's own memory as an OrtValue, which keeps it alive."""
    return onnxruntime.OrtValue.ortvalue_from_numpy(array)
