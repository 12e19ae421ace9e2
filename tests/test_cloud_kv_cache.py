"""The cache alone: lengths, growth, and the layers below the cut."""

import pytest
import torch

from cloud.kv_cache import BLOCK, KvCache, KvShape, SlotCache

SHAPE = KvShape(layers=5, cut=2, kv_heads=3, head_dim=4)
CPU = torch.device("cpu")


def new(max_context: int = 2000) -> SlotCache:
    return SlotCache(SHAPE, max_context, torch.float32, CPU)


def fill(cache: SlotCache, tokens: int) -> None:
    cache.reserve(tokens)
    for layer in range(SHAPE.layers):
        cache.layer(layer)[:, :, :tokens] = torch.arange(tokens)[:, None] + 1000.0 * layer
    cache.length = tokens


def test_growth_keeps_every_layer() -> None:
    cache = new()
    fill(cache, 100)
    cache.reserve(3 * BLOCK)
    assert cache.capacity == 4 * BLOCK
    for layer in range(SHAPE.layers):
        kept = cache.layer(layer)[:, :, :100]
        assert torch.equal(kept, (torch.arange(100)[:, None] + 1000.0 * layer).expand(2, 3, 100, 4))


def test_what_lies_beyond_the_length_is_finite() -> None:
    """It is read under a mask, and 0 times NaN would be NaN."""
    cache = new()
    fill(cache, 100)
    cache.reserve(900)
    assert all(cache.layer(layer).isfinite().all() for layer in range(SHAPE.layers))


def test_growth_ends_at_the_context_in_whole_blocks() -> None:
    cache = new(max_context=2 * BLOCK + 10)
    cache.reserve(2 * BLOCK + 10)
    assert cache.capacity == 3 * BLOCK
    with pytest.raises(AssertionError, match="the context holds"):
        cache.reserve(3 * BLOCK + 1)


def test_a_short_context_takes_one_block() -> None:
    assert new(max_context=10).capacity == BLOCK


def test_truncation_is_one_length_for_all_layers() -> None:
    """Hazard 1: there is no second length that could be forgotten."""
    cache = new()
    fill(cache, 50)
    cache.truncate(20)
    assert cache.length == 20
    with pytest.raises(AssertionError, match="only 20 tokens are held"):
        cache.truncate(21)


def test_joining_frees_the_layers_below_the_cut_only() -> None:
    cache = new()
    fill(cache, 50)
    upper = cache.layer(2).clone()
    cache.join_at_cut()
    assert cache.joined
    assert torch.equal(cache.layer(2), upper)
    with pytest.raises(AssertionError, match="below the cut"):
        cache.layer(1)
    cache.reserve(600)
    assert torch.equal(cache.layer(2)[:, :, :50], upper[:, :, :50])


def test_slots_come_when_asked_for_and_go_when_freed() -> None:
    """Hazard 8: a freed slot leaves nothing behind."""
    cache = KvCache(SHAPE, 100, torch.float32, CPU)
    assert cache.find(7) is None
    first = cache.slot(7)
    assert cache.slot(7) is first and len(cache) == 1
    cache.free(7)
    cache.free(7)
    assert cache.find(7) is None and len(cache) == 0
