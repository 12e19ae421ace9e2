"""The queue between the link's thread and the generating thread."""

import threading

from edge.event_box import EventBox
from edge.link_events import Declined, Fatal, FrameReceived, LinkDown, LinkEvent, LinkUp
from shared.errors import BadInput, Code, LinkLost, Refused
from shared.frames import CONNECTION, VERSION, Drain, Welcome
from shared.params import Limits
from tests.fakes import IDENTITY

UP = LinkUp(Welcome(CONNECTION, VERSION, IDENTITY, Limits()), 0.01)
FRAME = FrameReceived(Drain(CONNECTION, 1.0))
BUSY = Declined(Refused(Code.BUSY, "full", 1.0), 1.0)
FATAL = Fatal(BadInput("no"))


def down(seconds: float) -> LinkDown:
    return LinkDown(LinkLost("gone"), seconds)


def events(box: EventBox) -> list[LinkEvent]:
    taken = []
    while (item := box.take(0.0)) is not None:
        taken.append(item[0])
    return taken


def test_events_come_in_order_with_their_connection() -> None:
    box = EventBox()
    for number, event in enumerate([UP, FRAME, FRAME]):
        assert box.put(event, number)
    assert [box.take(0.0) for _ in range(4)] == [(UP, 0), (FRAME, 1), (FRAME, 2), None]


def test_a_long_outage_is_one_event() -> None:
    box = EventBox()
    box.put(UP, 1)
    box.put(FRAME, 1)
    for tries in range(100):
        box.put(down(tries), tries)
        box.put(BUSY, tries)
        box.put(UP, tries)
    box.put(down(1.5), 100)
    last = down(1.5)
    box.put(last, 101)
    assert events(box) == [UP, FRAME, last]


def test_a_loss_is_told_even_when_the_link_is_back_already() -> None:
    box = EventBox()
    first = down(0.1)
    box.put(UP, 1)
    box.put(FRAME, 1)
    box.put(first, 1)
    box.put(UP, 2)
    assert events(box) == [UP, FRAME, first, UP]


def test_a_fatal_stays() -> None:
    box = EventBox()
    box.put(FRAME, 1)
    box.put(FATAL, 1)
    assert box.take(0.0) == (FRAME, 1)
    box.close()
    assert box.take(None) == box.take(0.0) == (FATAL, 1)


def test_frames_are_bounded_and_the_links_state_still_fits() -> None:
    box = EventBox(max_frames=3)
    assert [box.put(FRAME, 1) for _ in range(5)] == [True, True, True, False, False]
    assert box.put(FATAL, 1)


def test_waiting_ends_by_time_by_an_event_and_by_closing() -> None:
    now = iter([0.0, 0.0, 5.0])
    assert EventBox(clock=lambda: next(now)).take(0.001) is None
    for act, expected in ((lambda box: box.put(FRAME, 1), (FRAME, 1)), (lambda box: box.close(), None)):
        box, taken = EventBox(), []
        waiting = threading.Thread(target=lambda box=box, taken=taken: taken.append(box.take(None)))
        waiting.start()
        act(box)
        waiting.join(10)
        assert taken == [expected]
