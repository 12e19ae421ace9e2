"""How well an exit drafts: hits at every place of answers that the model wrote, greedy and with the shared noise.

Teacher-forced: at each place both see the text before it, as they do in a pass up to the first miss. So one reading
of a text gives every draft length.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cloud import torch_sampling
from cloud.distil.head import ExitHead
from cloud.distil.score import Hits
from cloud.distil.vocabulary import DraftVocabulary
from cloud.publish.exit_fit import residuals
from shared.params import SamplingParams

TEMPERATURE = 0.8


@dataclass(frozen=True, slots=True)
class Answer:
    """The ids of a prompt and of the model's answer, and the kind of task."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    category: str = "all"


@dataclass(frozen=True, slots=True)
class Places:
    """One value for each place of an answer: hits bool, overlap float64, `Σ min(p, q)` at the temperature.

    `covered`: the model's greedy token is one that can be drafted.
    """

    category: str
    covered: Hits
    greedy: Hits
    top4: Hits
    coupled: Hits
    overlap: NDArray[np.float64]


class Evaluation:
    """An exit beside the model that it drafts for."""

    def __init__(self, model: Any, head: ExitHead, cut: int, vocabulary: DraftVocabulary, seed: int = 0) -> None:
        """Model and head may be on a GPU."""
        self._model = model
        self._head = head
        self._cut = cut
        self._vocabulary = vocabulary
        self._params = SamplingParams(seed=seed, temperature=TEMPERATURE)

    @torch.inference_mode()
    def read(self, answer: Answer) -> Places:
        """The places of one answer."""
        text = [*answer.prompt, *answer.answer]
        states = residuals(self._model, text)
        rows = slice(len(answer.prompt) - 1, len(answer.prompt) + len(answer.answer) - 1)
        at_cut, final = (states[at].to(self._model.device) for at in (self._cut, -1))
        target = self._logits(final[rows])
        known = torch.tensor(text[:-1], device=self._model.device)
        allowed = self._vocabulary.allowed(known, rows.start)
        draft = self._logits(self._head(at_cut[None])[0][rows]).masked_fill_(~allowed, -torch.inf)
        best = draft.topk(4, dim=-1).indices
        wanted = target.argmax(-1)
        position = len(answer.prompt)
        sampled, guessed = (self._choose(logits, position) for logits in (target, draft))
        p, q = ((logits.double() / TEMPERATURE).softmax(-1) for logits in (target, draft))
        return Places(
            answer.category,
            covered=allowed.gather(1, wanted[:, None])[:, 0].cpu().numpy(),
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
