"""Attention over a ragged batch: rows of several sessions in one sequence, each attending to its own session.

Hugging Face's layers call `ragged_attention` through their AttentionInterface; the pass hands it its `Attention` as a
keyword argument. Sliding windows are refused when a model is chosen (`cloud.architecture`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface

from cloud.kv_cache import BLOCK, SlotCache

NAME = "edgewise"

# The CPU kernel multiplies a few rows, and those left over from a multiple of 4, by other routines, which add in
# another order; so rows are filled up to a multiple of this.
FILL = 8


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows `first` to `first + rows - 1` of a pass: the tokens at `start` and after of one session."""

    cache: SlotCache
    first: int
    rows: int
    start: int


class Attention(Protocol):
    """How the rows of one pass attend. Made once a pass, called by each layer."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Keep key and value [1, kv_heads, rows, d], then attend: query [1, heads, rows, d] → [1, rows, heads, d]."""
        ...


class SdpaAttention:
    """torch's scaled_dot_product_attention, session by session: the reference, on any device.

    Query heads that share a key head are laid beside each other as more rows, so keys and values are never repeated.
    Keys are read in whole blocks and what lies after a row is masked, so that on a CPU a row's result doesn't depend,
    to the bit, on how many rows come with it.
    """

    def __init__(self, segments: Sequence[Segment], group: int, dtype: torch.dtype, device: torch.device) -> None:
        """`group` is the number of query heads per key head."""
        self._group = group
        self._segments = [(segment, _mask(segment, group, dtype, device)) for segment in segments]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        heads, total, width = query.shape[1:]
        kv_heads = key.shape[1]
        out = query.new_empty(1, total, heads, width)
        for segment, mask in self._segments:
            rows = slice(segment.first, segment.first + segment.rows)
            held = segment.cache.layer(layer)  # [2, kv_heads, capacity, d]
            held[0, :, segment.start : segment.start + segment.rows] = key[0, :, rows]
            held[1, :, segment.start : segment.start + segment.rows] = value[0, :, rows]
            length = mask.shape[-1]
            count = self._group * segment.rows
            folded = query[:, :, rows].reshape(1, kv_heads, count, width)
            if count < mask.shape[2]:
                folded = F.pad(folded, (0, 0, 0, mask.shape[2] - count))
            mixed = F.scaled_dot_product_attention(
                folded, held[:1, :, :length], held[1:, :, :length], attn_mask=mask, scale=scale
            )
            out[:, rows] = mixed[:, :, :count].reshape(1, heads, segment.rows, width).transpose(1, 2)
        return out


def ragged_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: None, *, ragged: Attention, **kwargs: Any
) -> tuple[Tensor, None]:
    """What Hugging Face's attention layers call."""
    return ragged.attend(module.layer_idx, query, key, value, kwargs["scaling"]), None


AttentionInterface.register(NAME, ragged_attention)


def _mask(segment: Segment, group: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """0 where a query row may look and -inf after it: [1, 1, group * rows and fill, length in whole blocks]."""
    length = -(-(segment.start + segment.rows) // BLOCK) * BLOCK
    places = torch.arange(length, device=device)
    own = segment.start + torch.arange(segment.rows, device=device)
    mask = torch.zeros(segment.rows, length, dtype=dtype, device=device)
    mask.masked_fill_(places > own[:, None], -torch.inf)
    mask = mask.repeat(group, 1)
    return F.pad(mask, (0, 0, 0, -mask.shape[0] % FILL))[None, None]
