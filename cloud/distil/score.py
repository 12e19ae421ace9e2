"""What hits at each place of a text are worth to chains of drafts: acceptance by depth, committed tokens a pass."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Hits = NDArray[np.bool_]
"""For one answer, whether the draft at each place is the target's token, given the text before it: bool `[places]`."""


def pass_lengths(hits: Hits, draft_length: int) -> list[int]:
    """Drafts accepted in each pass over one answer. A pass commits those and the target's own token after them."""
    accepted = []
    at = 0
    while at < len(hits):
        window = hits[at : at + draft_length]
        count = len(window) if window.all() else int(window.argmin())
        # The answer's last token needs no token of the target's after it.
        accepted.append(count)
        at += count + 1
    return accepted


def tokens_per_pass(answers: Sequence[Hits], draft_length: int) -> float:
    """Committed tokens a pass, over all answers together, when each pass has `draft_length` drafts."""
    passes = sum(len(pass_lengths(hits, draft_length)) for hits in answers)
    return sum(map(len, answers)) / passes if passes else 0.0


def acceptance_by_depth(answers: Sequence[Hits], draft_length: int) -> list[float]:
    """Of the drafts at each depth whose predecessors were accepted, the share that was: `draft_length` numbers.

    A depth that no pass came to has 0.
    """
    accepted = np.array([count for hits in answers for count in pass_lengths(hits, draft_length)], int)
    reached = [(accepted >= depth).sum() for depth in range(draft_length + 1)]
    return [float(deeper / here) if here else 0.0 for here, deeper in zip(reached[:-1], reached[1:], strict=True)]
