"""Ragged attention against attention written out."""

import math

import pytest
import torch
from torch import Tensor

from cloud.attention import SdpaAttention, Segment
from cloud.kv_cache import BLOCK, KvShape, SlotCache

CPU = torch.device("cpu")
HEAD = 16


def slot(kv_heads: int, held: int) -> SlotCache:
    """A cache that holds random keys and values for `held` tokens, and large ones beyond, as after a rollback."""
    cache = SlotCache(KvShape(3, 1, kv_heads, HEAD), 2 * BLOCK, torch.float32, CPU)
    cache.reserve(held + 20)
    for layer in range(3):
        cache.layer(layer).copy_(torch.full_like(cache.layer(layer), 50.0))
        cache.layer(layer)[:, :, :held] = torch.randn(2, kv_heads, held, HEAD)
    cache.length = held
    return cache


def written_out(query: Tensor, keys: Tensor, values: Tensor, start: int, group: int) -> Tensor:
    """query [heads, rows, d] over keys and values [kv_heads, start + rows, d], row by row: [rows, heads, d]."""
    rows = []
    for row in range(query.shape[1]):
        heads = []
        for head in range(query.shape[0]):
            seen = slice(0, start + row + 1)
            weights = (keys[head // group, seen] @ query[head, row] / math.sqrt(HEAD)).softmax(0)
            heads.append(weights @ values[head // group, seen])
        rows.append(torch.stack(heads))
    return torch.stack(rows)


@pytest.mark.parametrize(("kv_heads", "group"), [(3, 3), (4, 1), (1, 8)])
def test_each_session_attends_to_its_own_past(kv_heads: int, group: int) -> None:
    torch.manual_seed(0)
    layer = 2
    caches = [slot(kv_heads, held) for held in (40, 0, BLOCK - 3)]
    rows = [1, 6, 9]
    segments = [
        Segment(cache, first, count, cache.length) for cache, first, count in zip(caches, (0, 1, 7), rows, strict=True)
    ]
    query = torch.randn(1, kv_heads * group, sum(rows), HEAD)
    key, value = torch.randn(2, 1, kv_heads, sum(rows), HEAD)
    out = SdpaAttention(segments, group, torch.float32, CPU).attend(layer, query, key, value, HEAD**-0.5)
    assert out.shape == (1, sum(rows), kv_heads * group, HEAD)
    for segment in segments:
        own = slice(segment.first, segment.first + segment.rows)
        held = segment.cache.layer(layer)[:, :, : segment.start + segment.rows]
        # The new rows are kept where they belong.
        assert torch.equal(held[0, :, segment.start :], key[0, :, own])
        assert torch.equal(held[1, :, segment.start :], value[0, :, own])
        want = written_out(query[0, :, own], held[0], held[1], segment.start, group)
        torch.testing.assert_close(out[0, own], want, rtol=0, atol=2e-6)


def test_rows_of_a_layer_touch_that_layer_only() -> None:
    cache = slot(2, 10)
    before = [cache.layer(layer).clone() for layer in range(3)]
    segment = Segment(cache, 0, 2, 10)
    rows = torch.randn(1, 2, 2, HEAD)
    SdpaAttention([segment], 1, torch.float32, CPU).attend(1, rows, rows, rows, 1.0)
    assert torch.equal(cache.layer(0), before[0]) and torch.equal(cache.layer(2), before[2])
    assert not torch.equal(cache.layer(1), before[1])
