"""Waits between tries."""

from random import Random

from edge.backoff import Backoff


def test_waits_double_up_to_the_cap_with_jitter() -> None:
    """Hazard 9: reconnecting devices don't come in step."""
    backoff = Backoff(0.1, 5.0, Random(3))
    waits = [backoff.next() for _ in range(60)]
    for tries, wait in enumerate(waits):
        whole = min(5.0, 0.1 * 2**tries)
        assert whole / 2 <= wait <= whole
    assert len(set(waits[10:])) > 40, "the waits at the cap are all alike"


def test_reset_begins_again() -> None:
    backoff = Backoff(0.1, 5.0, Random(3))
    for _ in range(5):
        backoff.next()
    backoff.reset()
    assert backoff.next() <= 0.1


def test_a_wait_that_was_asked_for_is_never_shortened() -> None:
    backoff = Backoff(0.1, 5.0, Random(3))
    waits = [backoff.after(2.0) for _ in range(50)]
    assert all(2.0 <= wait <= 2.5 for wait in waits) and len(set(waits)) > 40
