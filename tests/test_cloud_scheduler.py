"""Which sessions share a pass, who comes next, and who is sent away."""

from cloud.batch import Verdict
from cloud.scheduler import Scheduler, SchedulerLimits
from cloud.sequence import ModelShape
from shared.errors import Code
from shared.frames import Commit, Draft, Finish, FinishReason, Open, Opened, Refuse, Steer
from shared.params import Limits, Placement, SamplingParams
from shared.trie import prefix_hash

SHAPE = ModelShape(vocab_size=50, hidden_size=4, max_context=200)


def scheduler(**capacity: int) -> Scheduler:
    return Scheduler(SHAPE, Limits(idle_ttl_s=10, max_draft_nodes=8), SchedulerLimits(**capacity))


def request(length: int = 3, placement: Placement = Placement.AR, max_tokens: int = 10) -> Open:
    tokens = tuple(10 + i % 30 for i in range(length))
    return Open(1, tokens, length, max_tokens, SamplingParams(), placement, (2,), None)


def complete(made: Scheduler, now: float, token: int = 11) -> list[tuple[int, object]]:
    batch = made.next_batch()
    assert batch is not None
    verdicts = [Verdict(w.slot, (token,) * (len(w.tokens) - w.targets_from)) for w in batch.works]
    return list(made.complete(batch, verdicts, 0.01, now))


def test_windows_of_several_sessions_share_a_pass() -> None:
    made = scheduler()
    for slot in (1, 2, 3):
        assert isinstance(made.open(slot, request(slot + 1), 0.0)[0][1], Opened)
    batch = made.next_batch()
    assert batch is not None
    assert [(work.slot, len(work.tokens)) for work in batch.works] == [(1, 2), (2, 3), (3, 4)]
    assert batch.rows == 9


def test_a_long_prompt_takes_one_chunk_of_a_pass_beside_decoding() -> None:
    made = scheduler(prefill_rows=16)
    made.open(1, request(), 0.0)
    complete(made, 1.0)
    made.open(2, request(100), 1.0)
    for step in range(5):
        batch = made.next_batch()
        assert batch is not None
        assert {work.slot: len(work.tokens) for work in batch.works} == {1: 1, 2: 16}
        made.complete(batch, [Verdict(1, (11,)), Verdict(2, ())], 0.01, 2.0 + step)


def test_when_a_pass_is_full_the_longest_waiting_goes_first() -> None:
    made = scheduler(max_rows=2)
    for slot in (1, 2, 3):
        made.open(slot, request(1, max_tokens=20), 0.0)
    served: list[int] = []
    for step in range(6):
        batch = made.next_batch()
        assert batch is not None and batch.rows <= 2
        served += [work.slot for work in batch.works]
        made.complete(batch, [Verdict(w.slot, (11,)) for w in batch.works], 0.01, 1.0 + step)
    assert sorted(served) == [1] * 4 + [2] * 4 + [3] * 4


def test_a_full_server_names_when_to_try_again() -> None:
    made = scheduler(max_sequences=1)
    made.open(1, request(), 0.0)
    [(_, answer)] = made.open(2, request(), 0.0)
    assert isinstance(answer, Refuse) and answer.code is Code.BUSY and answer.retry_after == 1.0
    assert made.next_batch() is not None


def test_every_answer_ends_in_a_frame() -> None:
    made = scheduler()
    made.open(1, request(max_tokens=2), 0.0)
    assert [type(frame) for _, frame in complete(made, 1.0)] == [Commit]
    frames = [frame for _, frame in complete(made, 2.0)]
    assert [type(frame) for frame in frames] == [Commit, Finish]
    assert isinstance(frames[1], Finish) and frames[1].reason is FinishReason.LENGTH
    assert len(made) == 0


def test_an_open_that_is_at_its_end_finishes_at_once() -> None:
    made = scheduler()
    done = Open(1, (10, 11, 2), 2, 5, SamplingParams(), Placement.EDGE, (2,), None)
    frames = [frame for _, frame in made.open(1, done, 0.0)]
    assert [type(frame) for frame in frames] == [Opened, Finish]
    assert isinstance(frames[1], Finish) and frames[1].reason is FinishReason.STOP


def test_a_bad_frame_ends_its_own_session_only() -> None:
    made = scheduler()
    for slot in (1, 2):
        made.open(slot, request(placement=Placement.EDGE), 0.0)
    bad = Draft(1, 3, prefix_hash((10, 11, 12)), (99,))
    [(slot, answer)] = made.update(1, bad, 1.0)
    assert slot == 1 and isinstance(answer, Refuse) and answer.code is Code.BAD_FRAME
    batch = made.next_batch()
    assert batch is not None and [work.slot for work in batch.works] == [2]


def test_rows_that_cannot_be_trusted_end_their_own_session_only() -> None:
    made = scheduler()
    for slot in (1, 2):
        made.open(slot, request(), 0.0)
    batch = made.next_batch()
    assert batch is not None
    answers = made.complete(batch, [Verdict(1, (), "the logits are not finite"), Verdict(2, (11,))], 0.01, 1.0)
    assert [(slot, type(frame)) for slot, frame in answers] == [(1, Refuse), (2, Commit)]


def test_a_cancel_is_answered_and_a_dropped_device_is_not() -> None:
    made = scheduler()
    made.open(1, request(), 0.0)
    [(_, finish)] = made.cancel(1)
    assert isinstance(finish, Finish) and finish.reason is FinishReason.CANCELLED
    assert made.cancel(1) == []
    made.open(2, request(), 0.0)
    made.drop(2)
    assert len(made) == 0 and made.next_batch() is None


def test_verdicts_for_a_session_that_left_meanwhile_are_passed_over() -> None:
    """Hazard 8: a device that goes in mid-pass leaves nothing behind."""
    made = scheduler()
    made.open(1, request(), 0.0)
    batch = made.next_batch()
    assert batch is not None
    made.drop(1)
    assert made.complete(batch, [Verdict(1, (11,))], 0.01, 1.0) == []


def test_silent_sessions_are_sent_away_after_the_idle_time() -> None:
    made = scheduler()
    made.open(1, request(placement=Placement.EDGE), 0.0)
    complete(made, 1.0)
    assert made.expire(10.0) == []
    [(_, answer)] = made.expire(10.5)
    assert isinstance(answer, Refuse) and answer.code is Code.IDLE


def test_steering_to_a_placement_without_a_cloud_is_refused() -> None:
    made = scheduler()
    made.open(1, request(), 0.0)
    [(_, answer)] = made.update(1, Steer(1, Placement.LOCAL), 1.0)
    assert isinstance(answer, Refuse) and answer.code is Code.BAD_REQUEST


def test_queue_and_verify_times_are_told_apart() -> None:
    made = scheduler()
    now = 5.0
    made.open(1, request(), now)
    batch = made.next_batch()
    assert batch is not None
    [(_, commit)] = made.complete(batch, [Verdict(1, (11,))], 0.02, now + 0.05)
    assert isinstance(commit, Commit)
    assert (commit.timings.queue_us, commit.timings.verify_us, commit.timings.rows) == (30_000, 20_000, 3)
