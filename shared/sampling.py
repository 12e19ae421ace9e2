"""The numpy reference of how a token is chosen from logits; `cloud.torch_sampling` is its twin on tensors.

At position i the token is `argmax_v(processed_logits(v) + G(seed, i, v))`, with the noise of `shared.noise` and
none at temperature 0. Equal scores go to the smallest id.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shared.noise import gumbel
from shared.params import SamplingParams

Logits = NDArray[np.float32] | NDArray[np.float64]


def process(
    logits: Logits, params: SamplingParams, history: Sequence[int] = (), prompt_len: int = 0
) -> NDArray[np.float64]:
    """Apply penalties, temperature, top-k, top-p and min-p to `logits` [vocab]: float64 [vocab], -inf where removed.

    `history` holds all tokens before this place, of which the first `prompt_len` are the prompt; it is read by
    the penalties only. At temperature 0 only the penalties apply.
    """
    scores = logits.astype(np.float64)
    if params.needs_history:
        _penalise(scores, params, history, prompt_len)
    if params.greedy:
        return scores
    scores /= params.temperature
    if 0 < params.top_k < scores.size:
        kth = np.partition(scores, scores.size - params.top_k)[scores.size - params.top_k]
        scores[scores < kth] = -np.inf
    if params.top_p < 1:
        scores[scores < _nucleus_floor(scores, params.top_p)] = -np.inf
    if params.min_p > 0:
        scores[scores < scores.max() + np.log(params.min_p)] = -np.inf
    return scores


def choose(
    logits: Logits,
    params: SamplingParams,
    position: int,
    history: Sequence[int] = (),
    prompt_len: int = 0,
) -> int:
    """The token at `position` (the number of tokens before it) for `logits` [vocab]."""
    if params.greedy and not params.needs_history:
        return int(np.argmax(logits))
    scores = process(logits, params, history, prompt_len)
    if params.greedy:
        return int(np.argmax(scores))
    kept = np.flatnonzero(np.isfinite(scores))
    return int(kept[np.argmax(scores[kept] + gumbel(params.seed, position, kept))])


def _penalise(scores: NDArray[np.float64], params: SamplingParams, history: Sequence[int], prompt_len: int) -> None:
    if params.repetition_penalty != 1:
        seen = np.unique(np.asarray(history, dtype=np.int64))
        values = scores[seen]
        scores[seen] = np.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
    if params.presence_penalty or params.frequency_penalty:
        answer, counts = np.unique(np.asarray(history[prompt_len:], dtype=np.int64), return_counts=True)
        scores[answer] -= params.presence_penalty + params.frequency_penalty * counts


def _nucleus_floor(scores: NDArray[np.float64], top_p: float) -> float:
    """The lowest score in the smallest set of likeliest tokens whose probabilities reach `top_p`."""
    weights = np.exp(scores - scores.max())
    # Tokens below this bound weigh less than 1 - top_p in all, so they can't be in the set: sort the others only.
    kept = scores[weights >= (1 - top_p) * weights.sum() / weights.size]
    kept = np.sort(kept)[::-1]
    mass = np.cumsum(np.exp(kept - scores.max())) / weights.sum()
    return float(kept[min(int(np.searchsorted(mass, top_p)), kept.size - 1)])
