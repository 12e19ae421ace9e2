"""How tokens are chosen from logits, on the logits' own device: the twin of `shared.sampling` and `shared.noise`.

The same arithmetic in float64 and the same order of processors, for all wanted rows of one session at once. Logits
must be finite.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from shared.noise import GAMMA, MIX_1, MIX_2, position_key
from shared.params import SamplingParams


def choose(
    logits: Tensor, params: SamplingParams, position: int, history: Sequence[int] = (), prompt_len: int = 0
) -> Tensor:
    """The tokens for consecutive places: logits [rows, vocab] → int64 [rows], on the same device.

    Row r chooses the token at `position + r`. `history` holds all tokens before the last row's place, so row r sees
    `history[:position + r]`; it is read by the penalties only, and its first `prompt_len` are the prompt.
    """
    if params.greedy and not params.needs_history:
        return logits.argmax(-1)
    scores = process(logits, params, position, history, prompt_len)
    if not params.greedy:
        scores += torch.stack([gumbel(params.seed, position + row, scores) for row in range(scores.shape[0])])
    return scores.argmax(-1)


def process(
    logits: Tensor, params: SamplingParams, position: int = 0, history: Sequence[int] = (), prompt_len: int = 0
) -> Tensor:
    """Penalties, temperature, top-k, top-p and min-p: logits [rows, vocab] → float64 [rows, vocab], -inf where removed.

    `position` and `history` as in `choose`. At temperature 0 only the penalties apply.
    """
    scores = logits.to(torch.float64, copy=True)
    if params.needs_history:
        for row, values in enumerate(scores):
            _penalise(values, params, history[: position + row], prompt_len)
    if params.greedy:
        return scores
    scores /= params.temperature
    if 0 < params.top_k < scores.shape[1]:
        kth = scores.topk(params.top_k, dim=1).values[:, -1:]
        scores.masked_fill_(scores < kth, -torch.inf)
    if params.top_p < 1:
        floors = torch.stack([_nucleus_floor(values, params.top_p) for values in scores])
        scores.masked_fill_(scores < floors[:, None], -torch.inf)
    if params.min_p > 0:
        floors = scores.amax(1) + torch.tensor(params.min_p, dtype=torch.float64, device=scores.device).log()
        scores.masked_fill_(scores < floors[:, None], -torch.inf)
    return scores


def gumbel(seed: int, position: int, like: Tensor) -> Tensor:
    """Standard Gumbel noise at `position` for every token: float64 [vocab] on the device of `like` [..., vocab]."""
    tokens = torch.arange(1, like.shape[-1] + 1, dtype=torch.int64, device=like.device)
    # int64 wraps on overflow as uint64 does; only the shifts must be kept from copying the sign.
    z = tokens * _signed(GAMMA) + _signed(position_key(seed, position))
    z = (z ^ _shift(z, 30)) * _signed(MIX_1)
    z = (z ^ _shift(z, 27)) * _signed(MIX_2)
    z = z ^ _shift(z, 31)
    uniform = (_shift(z, 12).to(torch.float64) + 0.5) * 2.0**-52
    return uniform.log_().neg_().log_().neg_()


def _signed(value: int) -> int:
    """The int64 with the bits of the uint64 `value`."""
    return value - (1 << 64) if value >= 1 << 63 else value


def _shift(z: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _penalise(scores: Tensor, params: SamplingParams, history: Sequence[int], prompt_len: int) -> None:
    """Apply the penalties to scores [vocab] in place."""
    tokens = torch.tensor(history, dtype=torch.int64, device=scores.device)
    if params.repetition_penalty != 1:
        seen = tokens.unique()
        values = scores[seen]
        scores[seen] = torch.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
    if params.presence_penalty or params.frequency_penalty:
        answer, counts = tokens[prompt_len:].unique(return_counts=True)
        scores[answer] -= params.presence_penalty + params.frequency_penalty * counts.to(torch.float64)


def _nucleus_floor(scores: Tensor, top_p: float) -> Tensor:
    """The lowest score in the smallest set of likeliest tokens whose probabilities reach `top_p`: a scalar."""
    peak = scores.max()
    weights = (scores - peak).exp()
    total = weights.sum()
    # Tokens below this bound weigh less than 1 - top_p in all, so they can't be in the set: sort the others only.
    kept = scores[weights >= (1 - top_p) * total / weights.shape[0]].sort(descending=True).values
    mass = (kept - peak).exp().cumsum(0) / total
    last = torch.searchsorted(mass, top_p).clamp(max=kept.shape[0] - 1)
    return kept[last]
