"""Fitting the exit's entry: least squares from the residual at the cut to the one that the exit's first block reads.

In closed form, from sums over the rows, so all cuts share one reading of the text and the order of rows doesn't matter.
Rows weigh by the inverse of their distance, since a few positions have residuals many times as long as the others.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from cloud.publish.exit_entry import ExitEntry

# Ridge, as a share of each input's own sum of squares.
RIDGE = 1e-2

Advance = Callable[[int, int], None]
"""Called with texts read and all."""


@dataclass(slots=True)
class _Sums:
    inputs: Tensor
    products: Tensor


def fit_entries(
    model: PreTrainedModel, texts: Sequence[Sequence[int]], cuts: Sequence[int], advance: Advance, n_blocks: int = 1
) -> dict[int, ExitEntry]:
    """The entry for each cut, fitted on token ids; the matrix is rounded to float16's numbers, as it is stored.

    It leads to what the first of the model's last `n_blocks` blocks reads.
    """
    width = model.config.hidden_size
    sums = {
        cut: _Sums(
            torch.zeros(width + 1, width + 1, dtype=torch.float64), torch.zeros(width + 1, width, dtype=torch.float64)
        )
        for cut in cuts
    }
    for done, ids in enumerate(texts, start=1):
        states = residuals(model, ids)
        # The first position's residual is an outlier many times as long as the others.
        goal = states[-1 - n_blocks][1:].double()
        for cut, part in sums.items():
            start = states[cut][1:].double()
            way = goal - start
            inputs = torch.cat([start, start.new_ones(len(start), 1)], dim=1)
            weighted = inputs / way.square().mean(1, keepdim=True).clamp_min(1e-9)
            part.inputs += weighted.T @ inputs
            part.products += weighted.T @ way
        advance(done, len(texts))
    return {cut: _solve(part) for cut, part in sums.items()}


@torch.inference_mode()
def residuals(model: PreTrainedModel, ids: Sequence[int]) -> list[Tensor]:
    """The residual before each layer, and last the final state: float32 [T, d] each."""
    body: Any = model.model
    tokens = torch.tensor([list(ids)], device=model.device)
    states = body(tokens, output_hidden_states=True, use_cache=False).hidden_states
    return [state[0].float().cpu() for state in states]


@torch.inference_mode()
def agreement(
    model: PreTrainedModel,
    texts: Sequence[tuple[Sequence[int], Sequence[int]]],
    entries: Mapping[int, ExitEntry],
    advance: Advance,
) -> dict[int, float]:
    """For each cut, how often the exit's best token is the full model's, at each place of the answers.

    `texts` are prompt ids and answer ids; all weights as they are in `model`.
    """
    matched, rows = dict.fromkeys(entries, 0), 0
    head: Any = model
    for done, (prompt, answer) in enumerate(texts, start=1):
        states = residuals(model, [*prompt, *answer])
        places = slice(len(prompt) - 1, None)
        wanted = head.lm_head(states[-1][places]).argmax(-1)
        rows += len(wanted)
        for cut, entry in entries.items():
            drafted = head.lm_head(head.model.norm(_leave(model, states[cut], entry)[places])).argmax(-1)
            matched[cut] += int((drafted == wanted).sum())
        advance(done, len(texts))
    return {cut: count / max(1, rows) for cut, count in matched.items()}


def _leave(model: Any, x: Tensor, entry: ExitEntry) -> Tensor:
    """The residual after the exit block for residuals x [T, d] at the cut."""
    entered = x + torch.from_numpy(entry.shift)
    if entry.matrix is not None:
        entered = entered + x @ torch.from_numpy(entry.matrix)
    places = torch.arange(len(x))[None]
    tables = model.model.rotary_emb(entered[None], places)
    mask = torch.full((len(x), len(x)), -torch.inf).triu(1)[None, None]
    left = model.model.layers[-1](entered[None], attention_mask=mask, position_ids=places, position_embeddings=tables)
    # A tensor in newer transformers, a tuple that begins with it in older ones.
    out: Tensor = left[0] if isinstance(left, tuple) else left
    return out.reshape(x.shape)


def _solve(sums: _Sums) -> ExitEntry:
    ridge = torch.diag(sums.inputs.diagonal() * RIDGE)
    solved = torch.linalg.solve(sums.inputs + ridge, sums.products).numpy()
    matrix = solved[:-1].astype(np.float16).astype(np.float32)
    return ExitEntry(matrix, solved[-1].astype(np.float32))
