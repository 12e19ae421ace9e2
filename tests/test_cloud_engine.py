"""The engine's own bookkeeping; what it serves over a socket is in test_cloud_app."""

import threading
from types import SimpleNamespace

import pytest

from cloud import engine
from cloud.engine import Engine
from cloud.metrics import Metrics
from cloud.scheduler import Scheduler, SchedulerLimits
from cloud.sequence import ModelShape
from shared.frames import Commit, Finish, Open, Opened, Refuse
from shared.params import Placement, SamplingParams
from tests.fakes import VOCAB, WIDTH, ToyModel, ToyVerifier
from tests.servers import LIMITS


def test_time_in_the_queue_counts_from_the_arrival(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a frame waits for a running pass is part of it: the operator sees a busy model, not an idle queue."""
    now = [100.0]
    monkeypatch.setattr(engine, "time", SimpleNamespace(monotonic=lambda: now[0]))
    shape = ModelShape(VOCAB, WIDTH, LIMITS.max_context)
    made = Engine(Scheduler(shape, LIMITS, SchedulerLimits()), ToyVerifier(ToyModel(1)), Metrics())
    commits: list[Commit] = []
    done = threading.Event()

    def reply(frame: Opened | Commit | Finish | Refuse) -> None:
        if isinstance(frame, Commit):
            commits.append(frame)
        if isinstance(frame, Finish | Refuse):
            done.set()

    asked = Open(1, (5, 6, 7), 3, 3, SamplingParams(), Placement.AR, (), None)
    made.open(made.new_slot(), asked, reply)
    now[0] += 3.0
    made.start()
    assert done.wait(30)
    made.stop()
    assert commits[0].timings.queue_us == 3_000_000
    assert [commit.timings.queue_us for commit in commits[1:]] == [0, 0]
