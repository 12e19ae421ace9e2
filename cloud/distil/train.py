"""Training an exit head on the frozen model's own states: the loss, the steps, checkpoints.

The target is the model's distribution over the frequent tokens and those of the texts, so every place teaches more than
one token, and beside it the model's final state, which gives a direction from the first step on. Sources: EESD (arXiv
2404.18911) for self-distillation of an early exit; EAGLE (arXiv 2401.15077) for the regression beside it.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cloud.distil.batches import Batch, Batches, epochs
from cloud.distil.features import Span
from cloud.distil.head import ExitHead
from cloud.distil.vocabulary import DraftVocabulary
from shared.errors import BadInput

FEATURE_WEIGHT = 0.1
_WARM_UP = 100
_LEAST_RATE = 0.05
_DECAY = 0.05


@dataclass(frozen=True, slots=True)
class Schedule:
    """How long and how fast: `tokens` rows in all, `batch` texts a step; the rate falls along half a cosine."""

    tokens: int
    batch: int = 2
    learning_rate: float = 1e-3
    seed: int = 0

    def rate(self, step: int, tokens: int) -> float:
        """The learning rate of this step, when `tokens` rows have been seen."""
        course = 0.5 * (1 + math.cos(math.pi * min(1.0, tokens / self.tokens)))
        return self.learning_rate * min(1.0, (step + 1) / _WARM_UP) * (_LEAST_RATE + (1 - _LEAST_RATE) * course)


@dataclass(slots=True)
class Progress:
    """Where training stands. `loss` is a moving mean of the divergence in nats."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    loss: float = math.nan


class Trainer:
    """One head on its way through a schedule."""

    def __init__(
        self, head: ExitHead, vocabulary: DraftVocabulary, batches: Batches, spans: Sequence[Span], plan: Schedule
    ) -> None:
        self.head = head
        self.progress = Progress()
        self._vocabulary = vocabulary
        self._texts = sha256("".join(span.digest for span in spans).encode()).hexdigest()
        self._batches = batches
        self._plan = plan
        self._groups: Iterator[list[Span]] = epochs(spans, plan.batch, plan.seed)
        matrices = [p for p in head.parameters() if p.ndim > 1]
        vectors = [p for p in head.parameters() if p.ndim == 1]
        self._optimizer = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": _DECAY}, {"params": vectors, "weight_decay": 0.0}],
            lr=plan.learning_rate,
            betas=(0.9, 0.95),
            fused=True,
        )

    @property
    def done(self) -> bool:
        return self.progress.tokens >= self._plan.tokens

    def step(self, clock: Callable[[], float]) -> None:
        """Learn from the next batch."""
        begin = clock()
        progress = self.progress
        batch = self._batches.read(next(self._groups))
        for group in self._optimizer.param_groups:
            group["lr"] = self._plan.rate(progress.step, progress.tokens)
        divergence, regression = self._losses(batch)
        (divergence + FEATURE_WEIGHT * regression).backward()
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        loss = divergence.item()
        progress.loss = loss if math.isnan(progress.loss) else 0.99 * progress.loss + 0.01 * loss
        progress.step += 1
        progress.tokens += len(batch.ids)
        progress.seconds += clock() - begin

    def save(self, path: Path) -> None:
        """Write a checkpoint; the one before stays until this one is whole."""
        record = {
            "head": self.head.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "plan": asdict(self._plan),
            "texts": self._texts,
            "progress": asdict(self.progress),
        }
        part = path.with_suffix(".part")
        torch.save(record, part)
        part.replace(path)

    def resume(self, path: Path) -> None:
        """Go on from a checkpoint. Raises BadInput for one of another schedule, of other texts or another head."""
        try:
            record: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
            if record["plan"] != asdict(self._plan):
                raise BadInput(
                    f"{path} belongs to another schedule ({record['plan']}); give the same flags or remove it"
                )
            if record["texts"] != self._texts:
                raise BadInput(f"{path} belongs to other texts; give the same --data or remove it")
            self.head.load_state_dict(record["head"])
            self._optimizer.load_state_dict(record["optimizer"])
            self.progress = Progress(**record["progress"])
        except (OSError, RuntimeError, UnpicklingError, KeyError, ValueError, TypeError) as error:
            raise BadInput(f"{path} is no checkpoint of this head ({error}); remove it to begin anew") from error
        for _ in range(self.progress.step):
            next(self._groups)

    def _losses(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """KL divergence from the model's distribution, and the distance of the states: scalars."""
        output, wanted = self._vocabulary.rows_with(batch.ids), batch.wanted
        with torch.autocast(output.device.type, output.dtype, enabled=output.dtype is not torch.float32):
            drafted = self.head(batch.at_cut)[wanted]  # [rows, d]
            target = batch.final[wanted]
            with torch.no_grad():
                teacher = (target.to(output.dtype) @ output.T).float().log_softmax(-1)
            student = (drafted.to(output.dtype) @ output.T).float().log_softmax(-1)
            divergence = F.kl_div(student, teacher, reduction="batchmean", log_target=True)
            return divergence, F.smooth_l1_loss(drafted.float(), target)


@torch.inference_mode()
def acceptance(head: ExitHead, vocabulary: DraftVocabulary, batches: Batches, spans: Sequence[Span]) -> float:
    """How often the head's best token is the model's, over all places of these answers.

    The head chooses among the frequent tokens and those that came before the place, the model among all.
    """
    matched = places = 0
    whole = vocabulary.whole
    for span in spans:
        batch = batches.read([span])
        with torch.autocast(whole.device.type, whole.dtype, enabled=whole.dtype is not torch.float32):
            drafted = head(batch.at_cut)[batch.wanted].to(whole.dtype) @ whole.T
            target = (batch.final[batch.wanted].to(whole.dtype) @ whole.T).argmax(-1)
        allowed = vocabulary.allowed(batch.ids[:-1], max(0, span.answer_from - 1))
        drafted.masked_fill_(~allowed, -torch.inf)
        matched += int((drafted.argmax(-1) == target).sum())
        places += len(target)
    return matched / max(1, places)
