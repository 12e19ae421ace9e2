"""The ragged pass against transformers' own forward, and against itself in other batches."""

import copy
from typing import Any

import numpy as np
import pytest
import torch

from cloud.batch import Work
from cloud.packed_linear import can_pack
from cloud.torch_model import TorchModel
from tests.real_model import RealModel
from tests.tiny_models import (
    CONTEXT,
    CUT,
    FAMILIES,
    HIDDEN,
    reference_logits,
    states_at_cut,
    taken_over,
    tiny_model,
    tokens,
    work,
)

# Rounding of fp32 kernels on logits of about 10.
CLOSE = {"rtol": 0.0, "atol": 2e-4}


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest) -> Any:
    return tiny_model(request.param)


@pytest.fixture(scope="module")
def llama() -> Any:
    return tiny_model("llama")


def test_a_whole_text_gives_the_logits_of_transformers(model: Any) -> None:
    text = tokens(40)
    (logits,) = taken_over(model).forward([work(1, 0, text)])
    torch.testing.assert_close(logits, reference_logits(model, text), **CLOSE)


def test_plain_linear_layers_give_them_too(model: Any) -> None:
    text = tokens(40)
    (logits,) = taken_over(model, pack=False).forward([work(1, 0, text)])
    torch.testing.assert_close(logits, reference_logits(model, text), **CLOSE)


def test_rollback_and_refill_give_the_logits_of_the_new_text(model: Any) -> None:
    """Hazard 1: a rollback that missed a layer would leave rejected keys in sight."""
    ours = taken_over(model)
    text, rejected = tokens(30), tokens(9, seed=1)
    ours.forward([work(1, 0, text[:20])])
    ours.forward([work(1, 20, rejected)])
    assert ours.length(1) == 29
    (logits,) = ours.forward([work(1, 18, text[18:])])
    assert ours.length(1) == 30
    torch.testing.assert_close(logits, reference_logits(model, text)[18:], **CLOSE)


def test_only_wanted_rows_come_back(llama: Any) -> None:
    ours = taken_over(llama)
    text = tokens(20)
    chunk, window = ours.forward([work(1, 0, text[:8], targets_from=8), work(2, 0, text, targets_from=17)])
    assert chunk.shape == (0, 96)
    torch.testing.assert_close(window, reference_logits(llama, text)[17:], **CLOSE)


def test_a_pass_of_chunks_alone_wants_nothing(llama: Any) -> None:
    ours = taken_over(llama)
    assert [part.shape[0] for part in ours.forward([work(1, 0, tokens(5), 5), work(2, 0, tokens(3), 3)])] == [0, 0]
    assert ours.length(1) == 5 and ours.length(2) == 3


def test_rows_from_states_match_rows_from_ids(model: Any) -> None:
    """A split session, prefilled from ids, then fed with transformers' own states at the cut."""
    ours = taken_over(model)
    text = tokens(30)
    states = states_at_cut(model, text)
    ours.forward([work(1, 0, text[:20], 20)])
    (logits,) = ours.forward([work(1, 20, text[20:26], 0, states[20:26])])
    torch.testing.assert_close(logits, reference_logits(model, text)[20:26], **CLOSE)
    (logits,) = ours.forward([work(1, 22, text[22:], 0, states[22:])])
    torch.testing.assert_close(logits, reference_logits(model, text)[22:], **CLOSE)


def test_states_decide_and_not_the_ids_beside_them(llama: Any) -> None:
    ours = taken_over(llama)
    text, other = tokens(12), tokens(2, seed=5)
    states = states_at_cut(llama, text)
    ours.forward([work(1, 0, text[:10], 10)])
    (logits,) = ours.forward([work(1, 10, other, 0, states[10:])])
    torch.testing.assert_close(logits, reference_logits(llama, text)[10:], **CLOSE)


def test_sessions_of_all_kinds_share_a_pass(model: Any) -> None:
    """A window from ids, a split session, a chunk of a prompt and one row: each as if it were alone."""
    ours = taken_over(model)
    texts = {slot: tokens(40, seed=slot) for slot in (1, 2, 3, 4)}
    want = {slot: reference_logits(model, text) for slot, text in texts.items()}
    ours.forward([work(1, 0, texts[1][:30], 30), work(2, 0, texts[2][:25], 25), work(4, 0, texts[4][:39], 39)])
    states = states_at_cut(model, texts[2])[25:31]
    parts = ours.forward(
        [
            work(2, 25, texts[2][25:31], 0, states),
            work(1, 30, texts[1][30:], 2),
            work(3, 0, texts[3][:15], 15),
            work(4, 39, texts[4][39:]),
        ]
    )
    torch.testing.assert_close(parts[0], want[2][25:31], **CLOSE)
    torch.testing.assert_close(parts[1], want[1][32:], **CLOSE)
    assert parts[2].shape[0] == 0
    torch.testing.assert_close(parts[3], want[4][39:], **CLOSE)
    (rest,) = ours.forward([work(3, 15, texts[3][15:])])
    torch.testing.assert_close(rest, want[3][15:], **CLOSE)


@pytest.mark.parametrize("heads", [(4, 4, 16), (4, 2, 64), (6, 2, 32), (8, 1, 128)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_a_row_has_the_same_bits_in_any_batch(dtype: torch.dtype, heads: tuple[int, int, int]) -> None:
    """Hazard 5: what a draft is checked against must not depend on how it was batched, so nothing is compared closely
    here, but exactly. The place is chosen so that windows cross a block of keys."""
    if not can_pack(dtype):
        pytest.skip(f"this CPU multiplies no packed {dtype} weights")
    shape = dict(zip(("num_attention_heads", "num_key_value_heads", "head_dim"), heads, strict=True))
    model = tiny_model("llama", dtype, num_hidden_layers=CUT + 1, hidden_size=96, **shape)
    text = tokens(540)
    alone = taken_over(model)
    alone.forward([work(1, 0, text[:500], 500)])
    one_by_one = torch.cat([alone.forward([work(1, at, [text[at]])])[0] for at in range(500, 540)])

    ours = taken_over(model)
    for at in range(0, 500, 100):
        ours.forward([work(1, at, text[at : at + 100], 100), work(2, at, tokens(100, seed=2))])
    for rows in (2, 3, 9, 11, 22, 33, 40):
        others = [work(2, 500, tokens(5, seed=3)), work(3, 0, tokens(7, seed=rows))]
        _, window, _ = ours.forward([others[0], work(1, 500, text[500 : 500 + rows]), others[1]])
        assert torch.equal(window, one_by_one[:rows]), f"{rows} rows"


def test_freeing_a_slot_forgets_it_and_nothing_else(llama: Any) -> None:
    """Hazard 8."""
    ours = taken_over(llama)
    text = tokens(20)
    ours.forward([work(1, 0, text[:10], 10), work(2, 0, text[:10], 10)])
    ours.free(1)
    ours.free(1)
    assert (ours.length(1), ours.length(2)) == (0, 10)
    (logits,) = ours.forward([work(2, 10, text[10:])])
    torch.testing.assert_close(logits, reference_logits(llama, text)[10:], **CLOSE)
    assert "cached" in str(ours.problem(work(1, 10, text[10:])))


def states(rows: int, width: int = HIDDEN, fill: float = 0.0) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.full((rows, width), fill, dtype=np.float32)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (work(1, 0, []), "no rows"),
        (work(1, 6, [1]), "only 5 tokens are cached"),
        (work(9, 1, [1]), "only 0 tokens are cached"),
        (work(1, 5, [1] * (CONTEXT - 4)), f"the context holds {CONTEXT}"),
        (work(1, 5, [1, 2], 0, states(3)), r"\(3, 64\); \(2, 64\) is right"),
        (work(1, 5, [1, 2], 0, states(2, 63)), r"\(2, 63\); \(2, 64\) is right"),
        (work(1, 5, [1], 0, states(1, fill=np.nan)), "infinite or undefined"),
        (work(1, 5, [1], 0, states(1, fill=-np.inf)), "infinite or undefined"),
        (work(2, 5, [1]), f"come with states at layer {CUT}"),
    ],
)
def test_what_cannot_be_run_is_named(llama: Any, bad: Work, why: str) -> None:
    ours = taken_over(llama)
    ours.forward([work(1, 0, tokens(5)), work(2, 0, tokens(4))])
    ours.forward([work(2, 4, [1], 0, states(1))])
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(ours.problem(bad))
    assert ours.problem(work(1, 5, [1])) is None and ours.problem(work(2, 5, [1], 0, states(1))) is None


def test_the_context_can_be_filled_to_its_end(llama: Any) -> None:
    ours = taken_over(llama)
    text = tokens(CONTEXT)
    for at in range(0, CONTEXT, 100):
        (logits,) = ours.forward([work(1, at, text[at : at + 100])])
    torch.testing.assert_close(logits, reference_logits(llama, text)[-100:], **CLOSE)


def test_a_cut_outside_the_model_is_refused(llama: Any) -> None:
    with pytest.raises(AssertionError, match="between 1 and 3"):
        TorchModel(copy.deepcopy(llama), cut=4, max_context=10)


@pytest.mark.model
def test_the_real_model_gives_the_logits_of_transformers(real: RealModel) -> None:
    text = real.prompt("Write a Python function that reverses a string.")
    want = reference_logits(real.reference, text)
    slot = 1 << 30
    real.target.forward([work(slot, 0, text[:10], 10)])
    real.target.forward([work(slot, 10, text[5:9])])
    (logits,) = real.target.forward([work(slot, 10, text[10:])])
    real.target.free(slot)
    torch.testing.assert_close(logits, want[10:], rtol=0, atol=2e-3)
