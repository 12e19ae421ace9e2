"""What an evaluation's places come to: rates, committed tokens a pass, over all answers and by kind of task."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloud.distil.evaluation import TEMPERATURE, Places
from cloud.distil.score import Hits, acceptance_by_depth, tokens_per_pass

DRAFT_LENGTHS = tuple(range(1, 9))
# The length that acceptance by depth is shown for.
DEEPEST = DRAFT_LENGTHS[-1]
# MT-Bench's own kinds of task, which Spec-Bench counts as one.
_CHAT = frozenset({"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"})


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
        "covered": _mean(part.covered for part in places),
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
