"""Prometheus metrics. The speculative counters end as vLLM's do, so that dashboards made for it fit."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from cloud.batch import Batch
from cloud.scheduler import Answer
from shared.errors import Code
from shared.frames import Commit, Finish, Refuse

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Metrics:
    """All counters of one server process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.sessions = Gauge("edgewise:sessions", "Open sessions", registry=self.registry)
        self.connections = Gauge("edgewise:connections", "Open WebSockets", registry=self.registry)
        self.bytes_in = Counter("edgewise:bytes_in", "Payload bytes from devices", registry=self.registry)
        self.bytes_out = Counter("edgewise:bytes_out", "Payload bytes to devices", registry=self.registry)
        self._passes = Counter("edgewise:passes", "Forward passes of the full model", registry=self.registry)
        self._rows = Histogram("edgewise:pass_rows", "Rows in a pass", buckets=ROWS, registry=self.registry)
        self._verify = Histogram("edgewise:verify_seconds", "Time of a pass", buckets=SECONDS, registry=self.registry)
        self._queue = Histogram(
            "edgewise:queue_seconds", "Time a session waited for its pass", buckets=SECONDS, registry=self.registry
        )
        self._tokens = Counter("edgewise:generation_tokens", "Committed tokens", registry=self.registry)
        self._drafts = Counter("edgewise:spec_decode_num_drafts", "Passes that had drafts", registry=self.registry)
        self._drafted = Counter(
            "edgewise:spec_decode_num_draft_tokens", "Drafted tokens that a pass looked at", registry=self.registry
        )
        self._accepted = Counter(
            "edgewise:spec_decode_num_accepted_tokens", "Drafted tokens that were accepted", registry=self.registry
        )
        self._per_position = Counter(
            "edgewise:spec_decode_num_accepted_tokens_per_pos",
            "Accepted drafted tokens by their place in the draft",
            ["position"],
            registry=self.registry,
        )
        self._finished = Counter("edgewise:finished", "Answers that ended", ["reason"], registry=self.registry)
        self._refused = Counter(
            "edgewise:refused", "Sessions and connections refused", ["code"], registry=self.registry
        )

    def passed(self, batch: Batch, answers: list[Answer], verify_s: float) -> None:
        """Count one pass and what it committed."""
        self._passes.inc()
        self._rows.observe(batch.rows)
        self._verify.observe(verify_s)
        for _, frame in answers:
            if isinstance(frame, Commit):
                self._committed(frame)

    def ended(self, frame: Finish | Refuse) -> None:
        """Count an answer's end."""
        if isinstance(frame, Finish):
            self._finished.labels(frame.reason).inc()
        else:
            self.refused(frame.code)

    def refused(self, code: Code) -> None:
        """Count a session or connection that was declined."""
        self._refused.labels(code).inc()

    def exposition(self) -> bytes:
        """The text that a Prometheus server scrapes."""
        return generate_latest(self.registry)

    def _committed(self, commit: Commit) -> None:
        self._tokens.inc(len(commit.tokens))
        self._queue.observe(commit.timings.queue_us / 1e6)
        if commit.drafted:
            self._drafts.inc()
            self._drafted.inc(commit.drafted)
            self._accepted.inc(commit.accepted)
            for position in range(commit.accepted):
                self._per_position.labels(str(position)).inc()
