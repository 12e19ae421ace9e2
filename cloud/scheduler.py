"""Which sessions go into the next pass, and what its verdicts mean for them.

Arithmetic only: time is an argument, there is no torch and no asyncio, so the same class runs on a virtual clock.
"""

from dataclasses import dataclass

from cloud.batch import Batch, Verdict
from cloud.sequence import ModelShape, Sequence
from shared.errors import Code, PeerError, Refused
from shared.frames import Commit, Draft, Finish, FinishReason, Open, Opened, Refuse, Steer
from shared.params import Limits

Answer = tuple[int, Opened | Commit | Finish | Refuse]
"""A slot and a frame for the device behind it."""


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """How much is admitted, and how wide a pass may be.

    `prefill_rows` bounds the prompt rows of a pass, so that a long prompt holds the others up for one chunk only.
    """

    max_sequences: int = 64
    max_rows: int = 1024
    prefill_rows: int = 256
    retry_after_s: float = 1.0


class Scheduler:
    """Continuous batching of ragged windows: each pass takes every ready session, least recently served first."""

    def __init__(self, shape: ModelShape, limits: Limits, capacity: SchedulerLimits) -> None:
        self._shape = shape
        self._limits = limits
        self._capacity = capacity
        self._sequences: dict[int, Sequence] = {}

    def __len__(self) -> int:
        return len(self._sequences)

    @property
    def any_ready(self) -> bool:
        """Whether a pass would bring some session on."""
        return any(sequence.ready for sequence in self._sequences.values())

    def open(self, slot: int, frame: Open, now: float) -> list[Answer]:
        """Admit a session, or say why not."""
        try:
            if len(self._sequences) >= self._capacity.max_sequences:
                raise Refused(
                    Code.BUSY, f"{len(self._sequences)} sessions are open, the most here", self._capacity.retry_after_s
                )
            sequence = Sequence(slot, frame, self._shape, self._limits, now)
        except Refused as refused:
            return [(slot, Refuse(frame.session, refused.code, refused.message, refused.retry_after))]
        self._sequences[slot] = sequence
        opened = Opened(frame.session, sequence.trie.position, sequence.trie.hash)
        return [(slot, opened), *self._finish_if_done(sequence)]

    def update(self, slot: int, frame: Draft | Steer, now: float) -> list[Answer]:
        """Take a frame of an open session. One that doesn't fit ends that session only."""
        sequence = self._sequences.get(slot)
        if sequence is None:
            return []
        try:
            if isinstance(frame, Draft):
                sequence.draft(frame, now)
            else:
                sequence.steer(frame.placement, now)
        except PeerError as error:
            return [self._refuse(sequence, error.code, error.message)]
        return []

    def cancel(self, slot: int) -> list[Answer]:
        """End a session by the device's wish."""
        sequence = self._sequences.pop(slot, None)
        if sequence is None:
            return []
        place = sequence.trie.position, sequence.trie.hash
        return [(slot, Finish(sequence.session, *place, FinishReason.CANCELLED))]

    def drop(self, slot: int) -> None:
        """Forget a session whose device has gone."""
        self._sequences.pop(slot, None)

    def next_batch(self) -> Batch | None:
        """The rows of the next pass, or None when no session is ready."""
        works = []
        rows = prefill = 0
        ready = [sequence for sequence in self._sequences.values() if sequence.ready]
        for sequence in sorted(ready, key=lambda s: s.prefilling):
            left = self._capacity.max_rows - rows
            budget = min(left, self._capacity.prefill_rows - prefill) if sequence.prefilling else left
            if budget < 1:
                continue
            work = sequence.work(budget)
            works.append(work)
            rows += len(work.tokens)
            prefill += len(work.tokens) if sequence.prefilling else 0
        return Batch(tuple(works)) if works else None

    def complete(self, batch: Batch, verdicts: list[Verdict], verify_s: float, now: float) -> list[Answer]:
        """Commit what the verdicts say; sessions that ended meanwhile are passed over."""
        answers: list[Answer] = []
        for work, verdict in zip(batch.works, verdicts, strict=True):
            sequence = self._sequences.pop(work.slot, None)
            if sequence is None:
                continue
            # Back at the end of the line, so that a full pass never leaves the same sessions out.
            self._sequences[work.slot] = sequence
            if verdict.error is not None:
                answers.append(self._refuse(sequence, Code.INTERNAL, verdict.error))
                continue
            commit = sequence.complete(work, verdict, round(verify_s * 1e6), batch.rows, now)
            if commit is not None:
                answers.append((work.slot, commit))
                answers.extend(self._finish_if_done(sequence))
        return answers

    def expire(self, now: float) -> list[Answer]:
        """Refuse sessions that have been silent for `idle_ttl_s`; a device that still lives resumes by replay."""
        silent = [s for s in self._sequences.values() if not s.ready and now - s.last_heard > self._limits.idle_ttl_s]
        message = f"no draft for {self._limits.idle_ttl_s} s; open the session again to go on"
        return [self._refuse(sequence, Code.IDLE, message) for sequence in silent]

    def refuse_all(self, code: Code, message: str) -> list[Answer]:
        """End every session, since the model can't go on."""
        return [self._refuse(sequence, code, message) for sequence in list(self._sequences.values())]

    def _finish_if_done(self, sequence: Sequence) -> list[Answer]:
        reason = sequence.finished
        if reason is None:
            return []
        del self._sequences[sequence.slot]
        finish = Finish(sequence.session, sequence.trie.position, sequence.trie.hash, reason)
        return [(sequence.slot, finish)]

    def _refuse(self, sequence: Sequence, code: Code, message: str) -> Answer:
        del self._sequences[sequence.slot]
        return sequence.slot, Refuse(sequence.session, code, message)
