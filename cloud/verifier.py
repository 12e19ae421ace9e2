"""Running a batch: the model's logits, and from them the target's own tokens."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from cloud import torch_sampling
from cloud.batch import Batch, Verdict, Work
from shared import sampling


class RaggedModel(Protocol):
    """What the verifier needs of a model; `cloud.torch_model.TorchModel` is one."""

    def problem(self, work: Work) -> str | None:
        """Why `work` can't be run, or None."""
        ...

    def forward(self, works: Sequence[Work]) -> list[Tensor]:
        """For each work the logits after its wanted rows: float32 [wanted, vocab]."""
        ...

    def free(self, slot: int) -> None: ...


class Verifier:
    """Says, for each session of a batch, which tokens the full model would have chosen.

    A session whose rows can't be run or whose logits aren't finite gets a verdict with an error (hazard 15); the
    others of its batch don't notice.
    """

    def __init__(self, model: RaggedModel) -> None:
        self._model = model

    @torch.inference_mode()
    def run(self, batch: Batch) -> list[Verdict]:
        """The verdicts, in the order of the batch's works. A slot may be in a batch once."""
        verdicts = {}
        runnable = []
        for work in batch.works:
            problem = self._model.problem(work)
            if problem is None:
                runnable.append(work)
            else:
                verdicts[work.slot] = Verdict(work.slot, (), f"slot {work.slot}: {problem}")
        if runnable:
            logits = self._model.forward(runnable)
            # Infinite and undefined values spread to the sum; one copy from the device tells of all sessions.
            finite = torch.stack([rows.sum().isfinite() for rows in logits]).tolist()
            for work, rows, good in zip(runnable, logits, finite, strict=True):
                verdicts[work.slot] = _verdict(work, rows) if good else _not_finite(work)
        return [verdicts[work.slot] for work in batch.works]

    def free(self, slot: int) -> None:
        """Forget a slot; one that isn't there is no error."""
        self._model.free(slot)


def _verdict(work: Work, logits: Tensor) -> Verdict:
    """The target's token after each wanted row, from finite logits [wanted, vocab]."""
    # The row of token i chooses what comes at position start + i + 1.
    position = work.start + work.targets_from + 1
    history = (*(work.history or ()), *work.tokens) if work.params.needs_history else ()
    if logits.device.type == "cpu":
        # On a CPU the reference itself is several times faster than its twin.
        targets = [
            sampling.choose(row, work.params, position + index, history[: position + index], work.prompt_len)
            for index, row in enumerate(logits.numpy())
        ]
    else:
        targets = torch_sampling.choose(logits, work.params, position, history, work.prompt_len).tolist()
    return Verdict(work.slot, tuple(targets))


def _not_finite(work: Work) -> Verdict:
    return Verdict(work.slot, (), f"slot {work.slot}: the model's logits hold infinite or undefined values")
