"""One session's arithmetic: what a pass is given, and what its verdict commits."""

import numpy as np
import pytest

from cloud.batch import Verdict
from cloud.sequence import ModelShape, Sequence
from shared.errors import Code, PeerError, Refused
from shared.frames import Draft, FinishReason, HiddenRows, Open
from shared.hidden_codec import encode_rows
from shared.params import Limits, Placement, SamplingParams
from shared.trie import prefix_hash

SHAPE = ModelShape(vocab_size=50, hidden_size=4, max_context=64)
LIMITS = Limits(max_draft_nodes=8, max_new_tokens=20)
PROMPT = (7, 8, 9)


def opened(**changes: object) -> Open:
    fields: dict[str, object] = {
        "session": 1,
        "tokens": PROMPT,
        "prompt_len": 3,
        "max_tokens": 10,
        "params": SamplingParams(),
        "placement": Placement.EDGE,
        "stop_ids": (2,),
        "hidden": None,
    }
    return Open(**(fields | changes))  # type: ignore[arg-type]


def sequence(**changes: object) -> Sequence:
    return Sequence(1, opened(**changes), SHAPE, LIMITS, now=0.0)


def draft(on: tuple[int, ...], *tokens: int, hidden: HiddenRows | None = None) -> Draft:
    return Draft(1, len(on), prefix_hash(on), tokens, hidden=hidden)


def verdict(*targets: int) -> Verdict:
    return Verdict(1, targets)


@pytest.mark.parametrize(("arrived", "waited_from"), [(1.0, 2.0), (2.5, 2.5)], ids=["in its own pass", "after it"])
def test_a_draft_waits_from_its_arrival_but_not_for_its_sessions_own_pass(arrived: float, waited_from: float) -> None:
    made = sequence()
    made.complete(made.work(100), verdict(10), verify_us=1_000_000, rows=3, now=2.0)
    made.draft(draft((*PROMPT, 10), 11), now=arrived)
    commit = made.complete(made.work(100), verdict(11, 12), verify_us=1_000_000, rows=2, now=4.0)
    assert commit is not None and commit.timings.queue_us == round((4.0 - waited_from) * 1e6) - 1_000_000


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"tokens": (), "prompt_len": 0}, Code.BAD_REQUEST, "prompt is empty"),
        ({"prompt_len": 9}, Code.BAD_REQUEST, "prompt_len is 9"),
        ({"tokens": (1,) * 65, "prompt_len": 65}, Code.TOO_LONG, "the context holds 64"),
        ({"max_tokens": 0}, Code.BAD_REQUEST, "must be 1 to 20"),
        ({"max_tokens": 21}, Code.BAD_REQUEST, "must be 1 to 20"),
        ({"tokens": (7, 8, 50)}, Code.BAD_REQUEST, "token 50 is outside the vocabulary of 50"),
        ({"placement": Placement.LOCAL}, Code.BAD_REQUEST, "use edge or ar"),
        ({"hidden": "int3"}, Code.BAD_HIDDEN, "takes fp32, fp16"),
        ({"hidden": "fp32", "placement": Placement.AR}, Code.BAD_REQUEST, "placement edge"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused_by_name(changes: dict[str, object], code: Code, words: str) -> None:
    with pytest.raises(Refused, match=words) as caught:
        sequence(**changes)
    assert caught.value.code is code


def test_the_first_pass_needs_no_draft_and_the_second_does() -> None:
    made = sequence()
    assert made.ready
    work = made.work(100)
    assert (work.start, work.tokens, work.targets_from) == (0, PROMPT, 2)
    commit = made.complete(work, verdict(11), 5, 3, now=1.0)
    assert commit is not None and commit.tokens == (11,) and commit.accepted == commit.drafted == 0
    assert not made.ready
    made.draft(draft((*PROMPT, 11)), now=2.0)
    assert made.ready, "an empty draft asks for a pass"


@pytest.mark.parametrize(
    ("targets", "tokens", "accepted", "cached"),
    [((21, 22, 23, 24), (21, 22, 23, 24), 3, 6), ((21, 30, 31, 32), (21, 30), 1, 4), ((30, 1, 1, 1), (30,), 0, 3)],
    ids=["all", "partial", "none"],
)
def test_a_verdict_commits_the_path_and_the_targets_next(
    targets: tuple[int, ...], tokens: tuple[int, ...], accepted: int, cached: int
) -> None:
    """Hazard 1 and 2: none, some and all accepted leave the cache's length right."""
    made = sequence()
    made.draft(draft(PROMPT, 21, 22, 23), now=0.0)
    work = made.work(100)
    assert work.tokens == (*PROMPT, 21, 22, 23)
    commit = made.complete(work, verdict(*targets), 5, 6, now=1.0)
    assert commit is not None
    assert (commit.tokens, commit.accepted, commit.drafted) == (tokens, accepted, 3)
    assert made.cached == cached == made.trie.position - 1
    made.draft(draft((*PROMPT, *tokens)), now=2.0)
    following = made.work(100)
    assert (following.start, following.tokens) == (cached, tokens[-1:])


def test_a_stop_token_inside_the_accepted_run_ends_the_answer_there() -> None:
    """Hazard 3: nothing after the stop token leaks, though drafts and targets go on."""
    made = sequence()
    made.draft(draft(PROMPT, 21, 2, 23), now=0.0)
    commit = made.complete(made.work(100), verdict(21, 2, 23, 24), 5, 6, now=1.0)
    assert commit is not None and commit.tokens == (21, 2) and commit.accepted == 2
    assert made.finished is FinishReason.STOP


def test_a_drafted_stop_token_that_the_target_rejects_ends_nothing() -> None:
    """Hazard 3: a draft's end of text is only a guess."""
    made = sequence()
    made.draft(draft(PROMPT, 2), now=0.0)
    commit = made.complete(made.work(100), verdict(21, 22), 5, 4, now=1.0)
    assert commit is not None and commit.tokens == (21,)
    assert made.finished is None


def test_the_token_limit_ends_inside_an_accepted_run() -> None:
    made = sequence(max_tokens=2)
    made.draft(draft(PROMPT, 21, 22, 23), now=0.0)
    work = made.work(100)
    assert work.tokens == (*PROMPT, 21), "drafts for the last place would be of no use"
    commit = made.complete(work, verdict(21, 22), 5, 4, now=1.0)
    assert commit is not None and commit.tokens == (21, 22)
    assert made.finished is FinishReason.LENGTH


def test_a_long_prompt_goes_in_chunks_without_targets() -> None:
    made = sequence(tokens=tuple(range(10, 20)), prompt_len=10)
    chunks = []
    while made.cached < 8:
        work = made.work(4)
        assert made.complete(work, verdict(), 5, 4, now=1.0) is None
        chunks.append((work.start, work.tokens, work.targets_from))
    assert chunks == [(0, (10, 11, 12, 13), 4), (4, (14, 15, 16, 17), 4)]
    last = made.work(4)
    assert (last.start, last.tokens, last.targets_from) == (8, (18, 19), 1)


def test_stale_and_repeated_drafts_change_nothing() -> None:
    made = sequence()
    made.draft(draft(PROMPT, 21, 22), now=0.0)
    made.draft(draft(PROMPT, 21, 22), now=0.0)
    made.draft(draft((*PROMPT, 40), 41), now=0.0)
    assert made.trie.size == 2
    made.complete(made.work(100), verdict(30, 31, 32), 5, 5, now=1.0)
    made.draft(draft((*PROMPT, 21, 22), 23), now=2.0)
    assert made.trie.size == 0 and not made.ready


def test_more_drafts_than_the_window_are_an_error() -> None:
    with pytest.raises(PeerError, match="more than 8") as caught:
        sequence().draft(draft(PROMPT, *range(10, 19)), now=0.0)
    assert caught.value.code is Code.WINDOW_EXCEEDED


def test_tokens_outside_the_vocabulary_are_an_error() -> None:
    with pytest.raises(PeerError, match="outside the vocabulary"):
        sequence().draft(draft(PROMPT, 50), now=0.0)


def rows(first: int, *values: float) -> HiddenRows:
    return HiddenRows("fp32", first, encode_rows(np.array([[v] * 4 for v in values], dtype=np.float32), "fp32"))


def joined() -> Sequence:
    """A session whose prompt has gone through as ids and whose first token, 11, is committed."""
    made = sequence(hidden="fp32")
    made.complete(made.work(100), verdict(11), 5, 3, now=1.0)
    return made


def test_rows_join_at_the_cut_after_the_prompt() -> None:
    made = joined()
    made.draft(draft((*PROMPT, 11), 21, 22, hidden=rows(3, 0.5, 1.5, 2.5)), now=2.0)
    work = made.work(100)
    assert work.tokens == (11, 21, 22) and work.hidden is not None
    assert work.hidden[:, 0].tolist() == [0.5, 1.5, 2.5]


def test_without_the_row_of_the_last_token_there_is_no_pass() -> None:
    made = joined()
    made.draft(draft((*PROMPT, 11), 21, hidden=rows(4, 1.5)), now=2.0)
    assert not made.ready
    made.draft(draft((*PROMPT, 11), hidden=rows(3, 0.5)), now=3.0)
    work = made.work(100)
    assert work.hidden is not None and work.hidden[:, 0].tolist() == [0.5, 1.5]


def test_a_second_draft_brings_only_its_own_rows() -> None:
    made = joined()
    made.draft(draft((*PROMPT, 11), 21, hidden=rows(3, 0.5, 1.5)), now=2.0)
    made.draft(draft((*PROMPT, 11, 21), 22, hidden=rows(5, 2.5)), now=2.0)
    work = made.work(100)
    assert work.hidden is not None and work.hidden[:, 0].tolist() == [0.5, 1.5, 2.5]


@pytest.mark.parametrize(
    ("hidden", "words"),
    [
        (None, "opened with hidden=fp32"),
        (rows(3, 1.0), "one row of fp32 a token"),
        (HiddenRows("fp32", 3, b"123"), "no whole rows"),
        (HiddenRows("fp16", 3, bytes(16)), "one row of fp32 a token"),
        (HiddenRows("fp32", 3, b"\x00\x00\xc0\x7f" * 8), "not finite"),
        (HiddenRows("q1", 3, bytes(16)), "unknown hidden codec"),
    ],
    ids=["missing", "too few", "ragged", "other codec", "nan", "unknown"],
)
def test_hidden_states_that_do_not_fit_are_refused_by_name(hidden: HiddenRows | None, words: str) -> None:
    """Hazard 15: what isn't finite never reaches the model."""
    with pytest.raises(PeerError, match=words) as caught:
        joined().draft(draft((*PROMPT, 11), 21, hidden=hidden), now=2.0)
    assert caught.value.code is Code.BAD_HIDDEN


def test_steering_starts_and_stops_the_stream() -> None:
    made = sequence(placement=Placement.AR)
    made.complete(made.work(100), verdict(11), 5, 3, now=1.0)
    assert made.ready
    made.steer(Placement.EDGE, now=2.0)
    assert not made.ready
    with pytest.raises(PeerError, match="use edge or ar"):
        made.steer(Placement.LOCAL, now=2.0)
