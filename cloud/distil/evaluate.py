"""How well an exit drafts: hits at every place of answers that the model wrote, greedy and with the shared noise.

Teacher-forced: at each place both see the text before it, as they do in a pass up to the first miss. So one reading
of a text gives every draft length.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cloud import torch_sampling
from cloud.distil.head import ExitHead
from cloud.distil.score import Hits, acceptance_by_depth, tokens_per_pass
from cloud.publish.exit_fit import residuals
from shared.params import SamplingParams

DRAFT_LENGTHS = tuple(range(1, 9))
# The length that acceptance by depth is shown for.
DEEPEST = DRAFT_LENGTHS[-1]
TEMPERATURE = 0.8
# MT-Bench's own kinds of task, which Spec-Bench counts as one.
_CHAT = frozenset({"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"})


@dataclass(frozen=True, slots=True)
class Answer:
    """The ids of a prompt and of the model's answer, and the kind of task."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    category: str = "all"


@dataclass(frozen=True, slots=True)
class Places:
    """One value for each place of an answer: hits bool, overlap float64, `Σ min(p, q)` at the temperature."""

    category: str
    greedy: Hits
    top4: Hits
    coupled: Hits
    overlap: NDArray[np.float64]


class Evaluation:
    """An exit beside the model that it drafts for."""

    def __init__(self, model: Any, head: ExitHead, cut: int, drafted: Sequence[int], seed: int = 0) -> None:
        """`drafted` are the tokens that can be drafted; model and head may be on a GPU."""
        self._model = model
        self._head = head
        self._cut = cut
        self._drafted = torch.as_tensor(drafted, device=model.device)
        self._params = SamplingParams(seed=seed, temperature=TEMPERATURE)

    @torch.inference_mode()
    def read(self, answer: Answer) -> Places:
        """The places of one answer."""
        states = residuals(self._model, [*answer.prompt, *answer.answer])
        rows = slice(len(answer.prompt) - 1, len(answer.prompt) + len(answer.answer) - 1)
        at_cut, final = (states[at].to(self._model.device) for at in (self._cut, -1))
        target = self._logits(final[rows])
        draft = torch.full_like(target, -torch.inf)
        draft[:, self._drafted] = self._logits(self._head(at_cut[None])[0][rows])[:, self._drafted]
        best = draft.topk(4, dim=-1).indices
        wanted = target.argmax(-1)
        position = len(answer.prompt)
        sampled, guessed = (self._choose(logits, position) for logits in (target, draft))
        p, q = ((logits.double() / TEMPERATURE).softmax(-1) for logits in (target, draft))
        return Places(
            answer.category,
            greedy=(best[:, 0] == wanted).cpu().numpy(),
            top4=(best == wanted[:, None]).any(-1).cpu().numpy(),
            coupled=(sampled == guessed).cpu().numpy(),
            overlap=torch.minimum(p, q).sum(-1).cpu().numpy(),
        )

    def _logits(self, states: Tensor) -> Tensor:
        weight = self._model.lm_head.weight
        logits: Tensor = (states.to(weight.dtype) @ weight.T).float()
        return logits

    def _choose(self, logits: Tensor, position: int) -> Tensor:
        """The token at each place under the shared noise; what can't be drafted is never chosen."""
        return torch_sampling.choose(logits, self._params, position)


def evaluate(evaluation: Evaluation, answers: Sequence[Answer], advance: Callable[[int, int], None]) -> dict[str, Any]:
    """The figures over all answers together, and by category."""
    places = []
    for done, answer in enumerate(answers, start=1):
        places.append(evaluation.read(answer))
        advance(done, len(answers))
    return summarise(places)


def summarise(places: Sequence[Places]) -> dict[str, Any]:
    """`first_position_acceptance` is over all places; `acceptance_by_depth` over passes with eight drafts."""
    categories = sorted({part.category for part in places})
    return {
        **_figures(places),
        "by_category": {name: _figures([part for part in places if part.category == name]) for name in categories},
    }


def group(category: str | None) -> str:
    """The name under which a kind of task is counted."""
    if category is None:
        return "all"
    return "mt_bench" if category in _CHAT else category


def _figures(places: Sequence[Places]) -> dict[str, Any]:
    greedy, coupled = [part.greedy for part in places], [part.coupled for part in places]
    accepted, most = _mean(coupled), _mean(part.overlap for part in places)
    return {
        "answers": len(places),
        "places": sum(map(len, greedy)),
        "first_position_acceptance": _mean(greedy),
        "top4": _mean(part.top4 for part in places),
        "acceptance_by_depth": [round(rate, 4) for rate in acceptance_by_depth(greedy, DEEPEST)],
        "tokens_per_pass": _by_length(greedy),
        "sampled": {
            "temperature": TEMPERATURE,
            "first_position_acceptance": accepted,
            "tokens_per_pass": _by_length(coupled),
            "most_by_rejection_sampling": most,
        },
        "coupled_over_max": round(accepted / most, 4) if most else 0.0,
    }


def _by_length(answers: Sequence[Hits]) -> Mapping[str, float]:
    return {str(length): round(tokens_per_pass(answers, length), 4) for length in DRAFT_LENGTHS}


def _mean(parts: Iterable[NDArray[Any]]) -> float:
    values = np.concatenate([*parts, np.empty(0)])
    return round(float(values.mean()), 4) if len(values) else 0.0
