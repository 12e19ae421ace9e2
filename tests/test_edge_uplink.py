"""What the generating thread makes of the link's news."""

from collections.abc import Sequence

import pytest

from edge.answer import Answer
from edge.drafter import Drafter
from edge.generation import Generation
from edge.link_events import Declined, Fatal, LinkDown, LinkEvent, LinkUp
from edge.plan import Plan
from edge.uplink import Uplink
from shared.errors import BadInput, Code, LinkLost, Refused
from shared.frames import CONNECTION, VERSION, Cancel, Draft, Open, Steer, Welcome
from shared.params import Limits, SamplingParams
from tests.fakes import IDENTITY, ToyDraftModel, ToyModel

UP = LinkUp(Welcome(CONNECTION, VERSION, IDENTITY, Limits()), 0.01)
DOWN = LinkDown(LinkLost("gone"), 0.1)
BUSY = Declined(Refused(Code.BUSY, "full", 1.0), 1.0)


class News:
    """A channel that tells what it is given and carries nothing; its last news repeats."""

    bytes_up = 0
    bytes_down = 0

    def __init__(self, events: Sequence[LinkEvent]) -> None:
        self.events = list(events)
        self.sent: list[object] = []

    def poll(self, timeout: float | None) -> LinkEvent | None:
        if timeout == 0.0 or not self.events:
            return None
        return self.events.pop(0) if len(self.events) > 1 else self.events[0]

    def send(self, frame: Open | Draft | Steer | Cancel) -> None:
        self.sent.append(frame)


class NoText:
    """Text is of no concern here."""

    def extend(self, tokens: Sequence[int]) -> int | None:
        return None

    def stop_in(self, drafted: Sequence[int]) -> int | None:
        return None


def generation(news: News) -> Generation:
    params = SamplingParams()
    answer = Answer((5, 6), params, 4, frozenset(), max_context=64)
    drafter = Drafter(ToyDraftModel(ToyModel(1), 0.0), params, 2, keep_hidden=False)
    ticks = iter(range(10**6))
    return Generation(answer, drafter, NoText(), Uplink(news), Plan(), clock=lambda: float(next(ticks)))


@pytest.mark.parametrize(
    ("events", "up", "lost"),
    [
        ([UP], True, False),
        ([DOWN], False, True),
        ([BUSY], False, False),
        ([UP, BUSY], False, False),
        ([DOWN, BUSY], False, True),
        ([UP, DOWN, UP], True, False),
    ],
)
def test_a_busy_cloud_is_not_offline(events: list[LinkEvent], up: bool, lost: bool) -> None:
    """Hazard 20: being declined neither begins nor ends writing alone."""
    news = News(events)
    uplink = Uplink(news)
    for _ in events:
        uplink.take(1.0)
    assert (uplink.up, uplink.lost) == (up, lost)


@pytest.mark.parametrize("events", [[BUSY], [UP, BUSY]])
def test_a_cloud_that_stays_busy_ends_the_answer_with_its_refusal(events: list[LinkEvent]) -> None:
    """Hazard 20: and nothing is written alone meanwhile."""
    made = generation(News(events))
    with pytest.raises(Refused, match="full"):
        for _ in made.run():
            pass
    assert made.statistics.local_tokens == 0


def test_a_device_that_is_alone_stays_alone_when_declined() -> None:
    made = generation(News([DOWN, BUSY]))
    for _ in made.run():
        pass
    assert made.statistics.local_tokens == 4


def test_a_fatal_ends_the_answer_and_the_next_one_too() -> None:
    news = News([Fatal(BadInput("another bundle"))])
    for _ in range(2):
        with pytest.raises(BadInput, match="another bundle"):
            for _ in generation(news).run():
                pass
