"""The keys and values of the open sessions. Rolling back is setting a length, for all layers at once."""

from dataclasses import dataclass

import torch
from torch import Tensor

# Buffers end on a multiple of this, so that attention can read whole blocks (`cloud.attention`). torch's CPU kernel
# goes through 512 keys at a time, and adds up a shorter block in an order that depends on its length.
BLOCK = 512
FIRST_CAPACITY = BLOCK


@dataclass(frozen=True, slots=True)
class KvShape:
    """What one token's keys and values look like. Layers below `cut` are those that split mode does without."""

    layers: int
    cut: int
    kv_heads: int
    head_dim: int


class SlotCache:
    """One session's keys and values: `length` tokens in every layer it has.

    Buffers grow by doubling. They start as zeros and keep what was rolled back, so what lies beyond the length is
    finite and may be read under a mask.
    """

    def __init__(self, shape: KvShape, max_context: int, dtype: torch.dtype, device: torch.device) -> None:
        self._shape = shape
        self._most = -(-max_context // BLOCK) * BLOCK
        self.length = 0
        capacity = min(FIRST_CAPACITY, self._most)

        def empty(layers: int) -> Tensor:
            return torch.zeros(layers, 2, shape.kv_heads, capacity, shape.head_dim, dtype=dtype, device=device)

        # [layers, key or value, kv_heads, capacity, head_dim]
        self._lower: Tensor | None = empty(shape.cut)
        self._upper = empty(shape.layers - shape.cut)

    @property
    def joined(self) -> bool:
        """Whether this session's rows come in at the cut, so that nothing is kept for the layers below."""
        return self._lower is None

    @property
    def capacity(self) -> int:
        return self._upper.shape[3]

    def truncate(self, length: int) -> None:
        """Forget what comes after the first `length` tokens, in all layers (hazard 1)."""
        assert 0 <= length <= self.length, f"can't roll back to {length}: only {self.length} tokens are held"
        self.length = length

    def join_at_cut(self) -> None:
        """Free the layers below the cut: from here on this session's rows come with their states."""
        self._lower = None

    def reserve(self, tokens: int) -> None:
        """Make room for `tokens` in all. Between passes only: tensors given out before keep the old memory."""
        if tokens <= self.capacity:
            return
        assert tokens <= self._most, f"{tokens} tokens; the context holds {self._most}"
        capacity = self.capacity
        while capacity < tokens:
            capacity *= 2
        capacity = min(capacity, self._most)
        self._upper = self._grown(self._upper, capacity)
        if self._lower is not None:
            self._lower = self._grown(self._lower, capacity)

    def layer(self, index: int) -> Tensor:
        """Keys and values of layer `index`: [2, kv_heads, capacity, head_dim], a view to write to."""
        if index >= self._shape.cut:
            return self._upper[index - self._shape.cut]
        assert self._lower is not None, f"layer {index} is below the cut and this session has joined there"
        return self._lower[index]

    def _grown(self, old: Tensor, capacity: int) -> Tensor:
        layers, two, heads, _, width = old.shape
        new = old.new_zeros(layers, two, heads, capacity, width)
        new[:, :, :, : self.length] = old[:, :, :, : self.length]
        return new


class KvCache:
    """The slots of all open sessions. A slot comes into being when it is first asked for."""

    def __init__(self, shape: KvShape, max_context: int, dtype: torch.dtype, device: torch.device) -> None:
        self._new = (shape, max_context, dtype, device)
        self._slots: dict[int, SlotCache] = {}

    def __len__(self) -> int:
        return len(self._slots)

    def slot(self, slot: int) -> SlotCache:
        cache = self._slots.get(slot)
        if cache is None:
            cache = self._slots[slot] = SlotCache(*self._new)
        return cache

    def find(self, slot: int) -> SlotCache | None:
        return self._slots.get(slot)

    def free(self, slot: int) -> None:
        """Give a slot's memory back; a slot that isn't there is no error."""
        self._slots.pop(slot, None)
