"""From a batch to verdicts: which places are chosen, with which noise, and what happens to bad logits."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from cloud.batch import Batch, Work
from cloud.verifier import Verifier
from shared.params import SamplingParams
from shared.sampling import choose
from tests.tiny_models import reference_logits, taken_over, tiny_model, tokens, work

SAMPLED = SamplingParams(seed=5, temperature=1.0, top_p=0.9, repetition_penalty=1.2, frequency_penalty=0.3)


class FixedLogits:
    """A model whose logits after any token are one row of a table; some tokens give bad ones."""

    def __init__(self, table: Tensor) -> None:
        self.table = table
        self.freed: list[int] = []

    def problem(self, work: Work) -> str | None:
        return "told so" if 99 in work.tokens else None

    def forward(self, works: Sequence[Work]) -> list[Tensor]:
        assert all(self.problem(work) is None for work in works)
        return [self.table[list(work.tokens[work.targets_from :])] for work in works]

    def free(self, slot: int) -> None:
        self.freed.append(slot)


@pytest.fixture
def model() -> FixedLogits:
    torch.manual_seed(0)
    return FixedLogits(torch.randn(30, 30) * 2)


@pytest.mark.parametrize("params", [SamplingParams(), replace(SAMPLED, seed=1), SAMPLED])
def test_each_place_has_its_own_noise_and_its_own_past(model: FixedLogits, params: SamplingParams) -> None:
    """Hazard 18: a penalty sees the drafted tokens before its place, and none after it."""
    history, rows = (3, 4, 5, 5), (6, 7, 7, 8)
    job = Work(1, 4, rows, 1, params, 2, history=history if params.needs_history else None)
    (verdict,) = Verifier(model).run(Batch((job,)))
    text = history + rows
    want = [choose(model.table[text[at - 1]].numpy(), params, at, text[:at], 2) for at in range(6, 9)]
    assert verdict.targets == tuple(want) and verdict.error is None


def test_a_chunk_has_no_targets(model: FixedLogits) -> None:
    chunk, window = Verifier(model).run(Batch((work(1, 0, [1, 2], 2), work(2, 0, [3], 0))))
    assert chunk.targets == () and chunk.error is None
    assert window.targets == (int(model.table[3].argmax()),)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("params", [SamplingParams(), SAMPLED])
def test_bad_logits_end_their_own_session_only(model: FixedLogits, value: float, params: SamplingParams) -> None:
    """Hazard 15: a NaN must not turn into token 0 again and again."""
    model.table[7, 29] = value
    jobs = [Work(slot, 0, (slot, token), 0, params, 1, history=()) for slot, token in ((1, 2), (2, 7), (3, 4))]
    good, bad, other = Verifier(model).run(Batch(tuple(jobs)))
    assert bad.targets == () and bad.error is not None and "slot 2" in bad.error and "undefined" in bad.error
    assert good.error is None and other.error is None and len(good.targets) == len(other.targets) == 2


def test_what_the_model_can_not_run_is_answered_in_its_place(model: FixedLogits) -> None:
    verdicts = Verifier(model).run(Batch((work(1, 0, [1]), work(2, 0, [99]), work(3, 0, [2]))))
    assert [verdict.slot for verdict in verdicts] == [1, 2, 3]
    assert [verdict.error for verdict in verdicts] == [None, "slot 2: told so", None]
    (alone,) = Verifier(model).run(Batch((work(2, 0, [99]),)))
    assert alone.error == "slot 2: told so"


def test_freeing_reaches_the_model(model: FixedLogits) -> None:
    Verifier(model).free(4)
    assert model.freed == [4]


@pytest.fixture(scope="module")
def llama() -> Any:
    return tiny_model("llama")


def test_four_sessions_in_a_batch_decide_as_if_alone(llama: Any) -> None:
    texts = {slot: tokens(20 + slot, seed=slot) for slot in range(4)}
    jobs = [replace(work(slot, 0, text, 5), params=replace(SAMPLED, seed=slot)) for slot, text in texts.items()]
    jobs[0] = replace(jobs[0], params=SamplingParams())
    batched = Verifier(taken_over(llama)).run(Batch(tuple(jobs)))
    for job, verdict in zip(jobs, batched, strict=True):
        (alone,) = Verifier(taken_over(llama)).run(Batch((job,)))
        assert verdict == alone
    greedy = reference_logits(llama, texts[0])[5:].argmax(1).tolist()
    assert list(batched[0].targets) == greedy


def test_a_session_whose_states_go_bad_leaves_the_others_alone(llama: Any) -> None:
    """Hazard 15: rows of one pass share tensors; what is undefined in one session must not spread."""
    poisoned = copy.deepcopy(llama)
    poisoned.get_input_embeddings().weight[9] = torch.nan
    verifier = Verifier(taken_over(poisoned))
    text = [token for token in tokens(12) if token != 9]
    want = reference_logits(llama, text).argmax(1).tolist()
    bad, good = verifier.run(Batch((work(1, 0, [3, 9]), work(2, 0, text[:6]))))
    assert bad.targets == () and bad.error is not None
    assert list(good.targets) == want[:6]
    verifier.free(1)
    good, reopened = verifier.run(Batch((work(2, 6, text[6:]), work(1, 0, text))))
    assert list(good.targets) == want[6:] and list(reopened.targets) == want
