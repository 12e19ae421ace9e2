"""The one thread that owns the model. The event loop talks to it by a queue in and a callback out, nothing else."""

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from cloud.batch import Batch, Verdict
from cloud.metrics import Metrics
from cloud.scheduler import Answer, Scheduler
from shared.errors import Code
from shared.frames import Cancel, Commit, Draft, Finish, Open, Opened, Refuse, Steer

log = logging.getLogger(__name__)

Reply = Callable[[Opened | Commit | Finish | Refuse], None]
"""Called in the engine's thread for each frame of one session."""

# How often silent sessions are looked for when nothing else happens, in seconds.
EXPIRE_EVERY = 5.0


class BatchVerifier(Protocol):
    """What the engine needs of the model."""

    def run(self, batch: Batch) -> list[Verdict]: ...

    def free(self, slot: int) -> None: ...


@dataclass(frozen=True, slots=True)
class _Frame:
    slot: int
    frame: Open | Draft | Steer | Cancel
    # When the frame came (time.monotonic): what it waits for a running pass is part of its time in the queue.
    arrived: float
    reply: Reply | None = None


@dataclass(frozen=True, slots=True)
class _Gone:
    slot: int


class _Stop:
    pass


class Engine:
    """Runs schedule → verify → complete while there is work; sleeps on its queue while there is none."""

    def __init__(self, scheduler: Scheduler, verifier: BatchVerifier, metrics: Metrics) -> None:
        self._scheduler = scheduler
        self._verifier = verifier
        self._metrics = metrics
        self._inbox: queue.SimpleQueue[_Frame | _Gone | _Stop] = queue.SimpleQueue()
        self._replies: dict[int, Reply] = {}
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._next_slot = 0
        self._failure: BaseException | None = None
        self._ended: tuple[Code, str] | None = None

    @property
    def failure(self) -> BaseException | None:
        """What ended the thread, if it failed."""
        return self._failure

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End after the pass that runs now. Open sessions get a Refuse (draining)."""
        self._inbox.put(_Stop())
        self._thread.join()

    def new_slot(self) -> int:
        """A slot for a session that is about to open. Called by the event loop only."""
        self._next_slot += 1
        return self._next_slot

    def open(self, slot: int, frame: Open, reply: Reply) -> None:
        self._inbox.put(_Frame(slot, frame, time.monotonic(), reply))
        if self._ended is not None:
            self._answer_late_opens(*self._ended)

    def update(self, slot: int, frame: Draft | Steer | Cancel) -> None:
        self._inbox.put(_Frame(slot, frame, time.monotonic()))

    def drop(self, slot: int) -> None:
        """The device behind a slot has gone: its KV is freed before the next pass (hazard 8)."""
        self._inbox.put(_Gone(slot))

    def _run(self) -> None:
        ended = Code.DRAINING, "this server is going; resume on another one"
        try:
            while self._take_commands():
                self._step()
        except BaseException as error:
            log.exception("the engine stopped")
            self._failure = error
            ended = Code.INTERNAL, "the model stopped; this server needs a restart"
        self._deliver(self._scheduler.refuse_all(*ended))
        self._ended = ended
        self._answer_late_opens(*ended)

    def _step(self) -> None:
        batch = self._scheduler.next_batch()
        if batch is None:
            return
        now = time.monotonic()
        verdicts = self._verifier.run(batch)
        done = time.monotonic()
        answers = self._scheduler.complete(batch, verdicts, done - now, done)
        self._deliver(answers)
        self._metrics.passed(batch, answers, done - now)

    def _take_commands(self) -> bool:
        """Apply what has arrived, waiting only when no session is ready; False when told to stop."""
        block = not self._scheduler.any_ready
        while True:
            try:
                command = self._inbox.get(block, EXPIRE_EVERY if block else None)
            except queue.Empty:
                if block:
                    self._deliver(self._scheduler.expire(time.monotonic()))
                return True
            block = False
            if isinstance(command, _Stop):
                return False
            self._apply(command)

    def _apply(self, command: _Frame | _Gone) -> None:
        match command:
            case _Gone(slot):
                self._scheduler.drop(slot)
                self._release(slot)
            case _Frame(slot, Open() as frame, arrived, reply):
                assert reply is not None, "an Open comes with its reply"
                self._replies[slot] = reply
                self._deliver(self._scheduler.open(slot, frame, arrived))
            case _Frame(slot, Cancel()):
                self._deliver(self._scheduler.cancel(slot))
            case _Frame(slot, Draft() | Steer() as frame, arrived):
                self._deliver(self._scheduler.update(slot, frame, arrived))

    def _deliver(self, answers: list[Answer]) -> None:
        for slot, frame in answers:
            reply = self._replies.get(slot)
            if isinstance(frame, Finish | Refuse):
                self._metrics.ended(frame)
                self._release(slot)
            if reply is not None:
                reply(frame)
        self._metrics.sessions.set(len(self._scheduler))

    def _release(self, slot: int) -> None:
        self._replies.pop(slot, None)
        self._verifier.free(slot)

    def _answer_late_opens(self, code: Code, message: str) -> None:
        """Answer what still comes in, so that nobody waits for a thread that has ended."""
        while True:
            try:
                command = self._inbox.get_nowait()
            except queue.Empty:
                return
            if isinstance(command, _Frame) and command.reply is not None:
                command.reply(Refuse(command.frame.session, code, message))
