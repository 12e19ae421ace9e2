"""What one answer cost and how its drafts fared."""

from dataclasses import dataclass, field

from shared.frames import Commit


@dataclass(slots=True)
class Statistics:
    """Counts and times of one answer; times in seconds.

    `verify_s` and `queue_s` are the cloud's own figures from its Commits; `link_s` is what is left of each wait for
    a verdict: sockets, protocol and the network. That wait counts from the newest draft, so only stop-and-wait shows
    the link's whole share.
    """

    cloud_passes: int = 0
    drafted: int = 0
    accepted: int = 0
    local_tokens: int = 0
    links_lost: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    started: float = 0.0
    first_token: float | None = None
    finished: float = 0.0
    draft_s: float = 0.0
    draft_steps: int = 0
    send_s: float = 0.0
    queue_s: float = 0.0
    verify_s: float = 0.0
    link_s: float = 0.0
    commit_s: float = 0.0
    windows: int = 0
    _reached: list[int] = field(default_factory=list)
    _matched: list[int] = field(default_factory=list)

    @property
    def acceptance_by_depth(self) -> list[float]:
        """At each depth of a draft: how often its token was right, of the times that all before it were."""
        return [matched / reached for matched, reached in zip(self._matched, self._reached, strict=True) if reached]

    @property
    def ttft_ms(self) -> float | None:
        return None if self.first_token is None else 1000 * (self.first_token - self.started)

    def tokens_per_s(self, tokens: int) -> float:
        """Over the whole answer, the prompt's prefill included."""
        elapsed = self.finished - self.started
        return tokens / elapsed if elapsed > 0 else 0.0

    def saw_token(self, now: float) -> None:
        """Note when the first token could be shown."""
        if self.first_token is None:
            self.first_token = now

    def committed(self, frame: Commit, waited_s: float | None) -> None:
        """Count one Commit; `waited_s` is the time since its draft was sent, where one was."""
        self.cloud_passes += 1
        self.drafted += frame.drafted
        self.accepted += frame.accepted
        for depth in range(min(frame.drafted, frame.accepted + 1)):
            if depth == len(self._reached):
                self._reached.append(0)
                self._matched.append(0)
            self._reached[depth] += 1
            self._matched[depth] += depth < frame.accepted
        queue_s, verify_s = frame.timings.queue_us / 1e6, frame.timings.verify_us / 1e6
        if waited_s is not None:
            self.windows += 1
            self.queue_s += queue_s
            self.verify_s += verify_s
            self.link_s += max(0.0, waited_s - queue_s - verify_s)
