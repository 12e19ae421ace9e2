"""How an answer is to be made: what the user or the caller decides before it begins."""

from dataclasses import dataclass, field
from enum import StrEnum

from edge.pacing import FixedPacing
from shared.params import Placement


class WhenBack(StrEnum):
    """What becomes of the local tail when the link returns."""

    REVISE = "revise"
    KEEP = "keep"


@dataclass(frozen=True, slots=True)
class Plan:
    """How an answer is to be made.

    `busy_patience_s` bounds how long a full cloud is asked again; `linger_s` is how long an answer that ended while
    the link was lost waits for it, so that a short outage doesn't leave a wrong ending.
    """

    placement: Placement = Placement.EDGE
    pacing: FixedPacing = field(default_factory=FixedPacing)
    hidden: str | None = None
    when_back: WhenBack = WhenBack.REVISE
    busy_patience_s: float = 30.0
    linger_s: float = 3.0
