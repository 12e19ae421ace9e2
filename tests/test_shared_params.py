"""What a request may ask for: every bound, from both sides."""

import math
from typing import Any

import pytest

from shared.errors import BadInput
from shared.params import CLOUD_PLACEMENTS, Limits, Placement, SamplingParams


def test_the_default_is_greedy_and_everything_is_off() -> None:
    params = SamplingParams()
    assert params.greedy and not params.needs_history
    assert (params.top_k, params.top_p, params.min_p, params.repetition_penalty) == (0, 1, 0, 1)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("seed", [0, 2**64 - 1], [-1, 2**64]),
        ("temperature", [0, 0.001, 1, 100], [-0.1, 1e-4, 1e-310, 100.1, math.nan, math.inf]),
        ("top_k", [0, 1, 2**31 - 1], [-1]),
        ("top_p", [1e-6, 0.5, 1], [0, -0.1, 1.01, math.nan]),
        ("min_p", [0, 0.5, 0.999], [-0.1, 1, math.nan]),
        ("repetition_penalty", [0.01, 1, 100], [0, -1, 1e-300, 1e300, math.nan, math.inf]),
        ("presence_penalty", [-2, 0, 2], [-2.01, 2.01, math.nan]),
        ("frequency_penalty", [-2, 0, 2], [-2.01, 2.01, math.nan]),
    ],
)
def test_ranges(name: str, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        assert getattr(SamplingParams(**{name: value}), name) == value
    for value in bad:
        with pytest.raises(BadInput, match=f"^{name} is .*; it must be "):
            SamplingParams(**{name: value})


@pytest.mark.parametrize(
    ("changed", "needed"),
    [
        ({"repetition_penalty": 1.1}, True),
        ({"presence_penalty": -0.1}, True),
        ({"frequency_penalty": 0.1}, True),
        ({"temperature": 1, "top_k": 5, "top_p": 0.5, "min_p": 0.1, "seed": 4}, False),
    ],
)
def test_only_penalties_need_the_text_so_far(changed: dict[str, Any], needed: bool) -> None:
    assert SamplingParams(**changed).needs_history is needed


@pytest.mark.parametrize(
    "name", ["max_frame_bytes", "max_context", "max_new_tokens", "max_draft_nodes", "max_sessions", "idle_ttl_s"]
)
def test_no_limit_may_be_zero(name: str) -> None:
    assert getattr(Limits(**{name: 1}), name) == 1  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=name):
        Limits(**{name: 0})  # type: ignore[arg-type]


def test_the_cloud_has_no_part_in_the_local_placement() -> None:
    assert set(Placement) - set(CLOUD_PLACEMENTS) == {Placement.LOCAL}
