"""How long to wait before the next try."""

from random import Random


class Backoff:
    """Doubling waits from `base_s` to `cap_s`, each cut by up to half at random so that devices don't come in step."""

    def __init__(self, base_s: float, cap_s: float, random: Random) -> None:
        self._base = base_s
        self._cap = cap_s
        self._random = random
        self._tries = 0

    def next(self) -> float:
        """Seconds to wait now; longer each time until `reset`."""
        wait = min(self._cap, self._base * 2.0 ** min(self._tries, 32))
        self._tries += 1
        return wait * self._random.uniform(0.5, 1.0)

    def after(self, seconds: float) -> float:
        """A wait that the other side asked for, and up to a quarter more."""
        return seconds * self._random.uniform(1.0, 1.25)

    def reset(self) -> None:
        """Begin again with the shortest wait."""
        self._tries = 0
