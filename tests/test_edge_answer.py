"""The device's truth: what is final, what is in flight, and what a verdict does to both."""

import pytest

from edge.answer import Answer, Provenance
from shared.errors import PeerError
from shared.frames import Commit, Finish, FinishReason, Timings
from shared.params import Placement, SamplingParams
from shared.trie import prefix_hash

PROMPT = (5, 6)
TIMES = Timings(0, 0, 1)


def answer(max_tokens: int = 10) -> Answer:
    return Answer(PROMPT, SamplingParams(), max_tokens, frozenset({2}), max_context=100)


def drafted(made: Answer, *tokens: int) -> Answer:
    for token in tokens:
        made.grow(token)
    return made


def commit(on: tuple[int, ...], tokens: tuple[int, ...], accepted: int) -> Commit:
    return Commit(1, len(on), prefix_hash(on), tokens, accepted, max(accepted, 3), TIMES)


def test_drafts_leave_in_order_and_are_then_in_flight() -> None:
    made = drafted(answer(), 11, 12, 13)
    first = made.take_draft(1, 2)
    assert (first.at, first.hash, first.tokens) == (2, prefix_hash(PROMPT), (11, 12))
    assert (made.in_flight, made.unsent) == (2, 1)
    second = made.take_draft(1, 5)
    assert (second.at, second.hash, second.tokens) == (4, prefix_hash((*PROMPT, 11, 12)), (13,))
    assert (made.in_flight, made.unsent) == (3, 0)


def test_full_acceptance_and_a_next_token_that_was_drafted_go_on_without_a_break() -> None:
    made = drafted(answer(), 11, 12, 13, 14)
    made.take_draft(1, 2)
    assert made.commit(commit(PROMPT, (11, 12, 13), 2)) == 3
    assert made.drafted == [14]
    assert made.provenance == [Provenance.ACCEPTED, Provenance.ACCEPTED, Provenance.CLOUD]
    assert (made.in_flight, made.unsent) == (0, 1)


def test_a_correction_goes_back_to_its_place() -> None:
    made = drafted(answer(), 11, 12, 13)
    made.take_draft(1, 3)
    made.commit(commit(PROMPT, (11, 20), 1))
    assert made.drafted == [] and made.tokens == [11, 20]
    assert made.provenance_runs == [(Provenance.ACCEPTED, 1), (Provenance.CLOUD, 1)]
    assert (made.in_flight, made.unsent) == (0, 0)


def test_a_repeated_commit_adds_nothing_and_an_unknown_place_is_passed_over() -> None:
    made = drafted(answer(), 11)
    made.take_draft(1, 1)
    verdict = commit(PROMPT, (11, 20), 1)
    assert made.commit(verdict) == 2
    assert made.commit(verdict) == 0
    assert made.commit(commit((9, 9), (1,), 0)) is None
    assert made.tokens == [11, 20] and len(made.provenance) == 2


def test_a_commit_that_overlaps_keeps_the_provenance_of_each_token() -> None:
    made = answer()
    made.commit(commit(PROMPT, (11,), 0))
    made.commit(commit(PROMPT, (11, 12, 13), 2))
    assert made.provenance == [Provenance.CLOUD, Provenance.ACCEPTED, Provenance.CLOUD]


def test_a_commit_that_changes_final_text_is_an_error() -> None:
    made = answer()
    made.commit(commit(PROMPT, (11,), 0))
    with pytest.raises(PeerError, match="changes tokens"):
        made.commit(commit(PROMPT, (12,), 0))


def test_after_an_open_everything_is_unsent_and_one_pass_is_owed() -> None:
    made = drafted(answer(), 11, 12)
    made.take_draft(1, 2)
    frame = made.open(2, Placement.EDGE, None)
    assert frame.tokens == PROMPT and frame.prompt_len == 2
    assert (made.in_flight, made.unsent) == (0, 2)
    assert made.awaits_verdict
    made.commit(commit(PROMPT, (20,), 0))
    assert not made.awaits_verdict


def test_an_empty_draft_is_owed_an_answer_until_it_comes() -> None:
    made = answer()
    assert not made.awaits_verdict
    assert made.take_draft(1, 4).tokens == ()
    assert made.awaits_verdict
    made.commit(commit(PROMPT, (11,), 0))
    assert not made.awaits_verdict


def test_a_drafted_stop_token_only_ends_the_drafting() -> None:
    """Hazard 3: the target may reject it."""
    made = drafted(answer(), 11, 2)
    assert not made.can_draft and made.finish_reason is None
    made.take_draft(1, 2)
    made.commit(commit(PROMPT, (11, 20), 1))
    assert made.can_draft


def test_the_last_place_is_the_clouds_own() -> None:
    made = drafted(answer(max_tokens=3), 11, 12)
    assert made.can_draft and not made.worth_drafting


def test_what_was_written_alone_is_kept_or_finishes_the_answer() -> None:
    kept = drafted(answer(), 11, 12)
    kept.keep_local()
    assert kept.tokens == [11, 12] and set(kept.provenance) == {Provenance.LOCAL}
    assert kept.finish_reason is None
    stopped = drafted(answer(), 11, 2)
    stopped.finish_locally()
    assert stopped.finish_reason is FinishReason.STOP
    full = drafted(answer(max_tokens=2), 11, 12)
    full.finish_locally()
    assert full.finish_reason is FinishReason.LENGTH


def test_a_finish_counts_only_at_the_trunks_end() -> None:
    """Hazard 21: a truncated answer is never reported as a clean stop."""
    made = answer()
    made.commit(commit(PROMPT, (11,), 0))
    assert not made.finish(Finish(1, 4, 99, FinishReason.STOP))
    assert made.finish_reason is None
    assert made.finish(Finish(1, 3, prefix_hash((*PROMPT, 11)), FinishReason.LENGTH))
    assert made.finish_reason is FinishReason.LENGTH


def test_a_stop_string_trims_tokens_and_provenance_together() -> None:
    """Hazard 3: text, tokens and counts end at the same place."""
    made = answer()
    made.commit(commit(PROMPT, (11, 12, 13), 1))
    made.cut(2)
    assert made.tokens == [11, 12] and len(made.provenance) == 2
    assert made.finish_reason is FinishReason.STOP
