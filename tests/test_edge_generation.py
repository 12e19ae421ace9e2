"""The device's loop against the real scheduler, with toy models and no sockets."""

import random
from collections.abc import Callable, Sequence

import pytest

from edge.answer import Answer, Provenance
from edge.drafter import Drafter
from edge.generation import Generation
from edge.link_events import Declined
from edge.pacing import FixedPacing
from edge.plan import Plan, WhenBack
from edge.uplink import Uplink
from shared.errors import Code, Refused
from shared.frames import Cancel, Draft, FinishReason, Open, Refuse, Steer
from shared.params import Limits, Placement, SamplingParams
from tests.fakes import EOS, LocalCloud, ToyDraftModel, ToyModel, ToyVerifier

PROMPT = (5, 6, 7)
GREEDY = SamplingParams()
SAMPLED = SamplingParams(seed=11, temperature=0.8, top_k=20, top_p=0.95)
PENALISED = SamplingParams(seed=3, temperature=0.9, repetition_penalty=1.2, presence_penalty=0.4, frequency_penalty=0.2)


class NoText:
    """Text is of no concern here: nothing stops it."""

    def extend(self, tokens: Sequence[int]) -> int | None:
        return None

    def stop_in(self, drafted: Sequence[int]) -> int | None:
        return None


def generation(
    cloud: LocalCloud[ToyVerifier] | None,
    wrong: float,
    params: SamplingParams,
    plan: Plan,
    max_tokens: int = 40,
    model_seed: int = 1,
) -> Generation:
    answer = Answer(PROMPT, params, max_tokens, frozenset({EOS}), max_context=512)
    draft_model = ToyDraftModel(ToyModel(model_seed), wrong)
    drafter = Drafter(draft_model, params, len(PROMPT), keep_hidden=plan.hidden is not None)
    ticks = iter(range(10**9))
    uplink = None if cloud is None else Uplink(cloud)
    return Generation(answer, drafter, NoText(), uplink, plan, clock=lambda: next(ticks) / 1000)


def alone(params: SamplingParams, max_tokens: int = 40, model_seed: int = 1) -> list[int]:
    return ToyModel(model_seed).continue_(PROMPT, params, max_tokens, frozenset({EOS}))


def run(made: Generation) -> Generation:
    for _ in made.run():
        pass
    return made


def connected(
    weather: Callable[[], str | None] = lambda: None, limits: Limits | None = None
) -> LocalCloud[ToyVerifier]:
    cloud = LocalCloud(ToyVerifier(ToyModel(1)), limits=limits, weather=weather)
    cloud.connect()
    return cloud


@pytest.mark.parametrize("params", [GREEDY, SAMPLED, PENALISED], ids=["greedy", "sampled", "penalised"])
@pytest.mark.parametrize("wrong", [0.0, 0.3, 1.0], ids=["perfect", "random", "always-wrong"])
@pytest.mark.parametrize("placement", [Placement.EDGE, Placement.AR])
@pytest.mark.parametrize("pacing", [FixedPacing(4, 4), FixedPacing(2, 7), FixedPacing(1, 1)])
def test_committed_text_is_what_the_cloud_alone_writes(
    params: SamplingParams, wrong: float, placement: Placement, pacing: FixedPacing
) -> None:
    made = run(generation(connected(), wrong, params, Plan(placement=placement, pacing=pacing)))
    assert made.answer.tokens == alone(params)
    assert len(made.answer.provenance) == len(made.answer.tokens)
    assert Provenance.LOCAL not in made.answer.provenance


def test_perfect_drafts_need_one_pass_per_window() -> None:
    """Hazard 2: after full acceptance the bonus token is in the draft's cache, so the next window is right too."""
    made = run(generation(connected(), 0.0, GREEDY, Plan(pacing=FixedPacing(4, 4)), max_tokens=31, model_seed=1))
    expected = alone(GREEDY, 31)
    assert made.answer.tokens == expected
    # The first pass gives one token without drafts (or takes the first window), each later one gives five.
    assert made.statistics.cloud_passes <= 1 + -(-(len(expected) - 1) // 5)
    assert made.statistics.accepted == made.statistics.drafted


def test_acceptance_by_depth_counts_reached_places_only() -> None:
    never = run(generation(connected(), 1.0, GREEDY, Plan()))
    assert set(never.statistics.acceptance_by_depth) <= {0.0}
    always = run(generation(connected(), 0.0, GREEDY, Plan()))
    assert set(always.statistics.acceptance_by_depth) == {1.0}


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_hidden_states_travel_beside_drafts(params: SamplingParams) -> None:
    cloud = connected()
    made = run(generation(cloud, 0.3, params, Plan(hidden="fp32")))
    assert made.answer.tokens == alone(params)
    joined = [work for batch in cloud.verifier.batches for work in batch.works if work.hidden is not None]
    assert joined, "no pass started at the cut"
    for work in joined:
        assert work.hidden is not None
        assert [row[0] for row in work.hidden] == [token + 0.25 for token in work.tokens]


def test_without_a_link_the_device_writes_alone() -> None:
    cloud = LocalCloud(ToyVerifier(ToyModel(2)))
    cloud.cut()
    made = run(generation(cloud, 0.0, GREEDY, Plan(), model_seed=1))
    assert made.answer.tokens == alone(GREEDY)
    assert set(made.answer.provenance) == {Provenance.LOCAL}


def test_placement_local_opens_no_session() -> None:
    cloud = connected()
    made = run(generation(cloud, 0.0, SAMPLED, Plan(placement=Placement.LOCAL)))
    assert made.answer.tokens == alone(SAMPLED)
    assert cloud.bytes_up == 0


def after(calls: Sequence[int], names: Sequence[str]) -> Callable[[], str | None]:
    """Weather that happens at given polls."""
    count = 0

    def weather() -> str | None:
        nonlocal count
        count += 1
        return dict(zip(calls, names, strict=True)).get(count)

    return weather


@pytest.mark.parametrize("wrong", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("hidden", [None, "fp32"])
def test_a_cut_in_mid_answer_is_revised_when_the_link_returns(wrong: float, hidden: str | None) -> None:
    """Hazard 7: a resume restores the tokens, their place and the seed's position together."""
    made = run(generation(connected(after([12, 17], ["cut", "restore"])), wrong, SAMPLED, Plan(hidden=hidden)))
    assert made.statistics.links_lost == 1
    assert made.statistics.local_tokens > 0
    assert made.answer.tokens == alone(SAMPLED)
    assert Provenance.LOCAL not in made.answer.provenance


def test_keep_leaves_the_local_tail_as_it_was_written() -> None:
    cloud = connected(after([12, 30], ["cut", "restore"]))
    made = run(generation(cloud, 1.0, GREEDY, Plan(when_back=WhenBack.KEEP), max_tokens=60))
    kinds = made.answer.provenance
    assert Provenance.LOCAL in kinds
    last = len(kinds) - 1 - kinds[::-1].index(Provenance.LOCAL)
    given = [*PROMPT, *made.answer.tokens[: last + 1]]
    rest = ToyModel(1).continue_(given, GREEDY, 60 - (last + 1), frozenset({EOS}))
    assert made.answer.tokens[last + 1 :] == rest


def test_an_answer_that_ends_offline_ends_as_local() -> None:
    made = run(generation(connected(after([8], ["cut"])), 0.0, GREEDY, Plan()))
    assert made.answer.finish_reason in (FinishReason.LENGTH, FinishReason.STOP)
    assert made.answer.provenance[-1] is Provenance.LOCAL
    assert made.answer.tokens == alone(GREEDY)


@pytest.mark.parametrize("history", range(120))
def test_bad_weather_ends_with_the_exact_text(history: int) -> None:
    """Seeded histories of cuts, returns and repeated frames: each ends with the text of the cloud alone."""
    rng = random.Random(history)
    params = rng.choice([GREEDY, SAMPLED, PENALISED])

    def weather() -> str | None:
        return rng.choices(["cut", "restore", "repeat", None], [0.05, 0.3, 0.1, 0.55])[0]

    length = rng.randint(1, 4)
    pacing = FixedPacing(length, length + rng.randint(0, 6))
    hidden = rng.choice([None, None, "fp32", "fp16"])
    made = run(generation(connected(weather), rng.random(), params, Plan(pacing=pacing, hidden=hidden)))
    expected = alone(params)
    certain = [kind for kind in made.answer.provenance if kind is not Provenance.LOCAL]
    assert made.answer.tokens[: len(certain)] == expected[: len(certain)]
    if Provenance.LOCAL not in made.answer.provenance:
        assert made.answer.tokens == expected


def test_a_long_local_tail_goes_up_in_pieces_within_the_window() -> None:
    limits = Limits(max_context=512, max_draft_nodes=8)
    cloud = connected(after([6, 60], ["cut", "restore"]), limits)
    made = run(generation(cloud, 0.0, GREEDY, Plan(), max_tokens=60, model_seed=1))
    assert made.answer.tokens == alone(GREEDY, 60)
    assert made.statistics.local_tokens > 8 or made.answer.finish_reason is FinishReason.STOP


def test_a_refusal_is_no_reason_to_go_offline() -> None:
    """Hazard 20: only a lost link means offline."""
    made = generation(connected(limits=Limits(max_context=512, max_new_tokens=5)), 0.0, GREEDY, Plan())
    with pytest.raises(Refused, match="max_tokens is 40; it must be 1 to 5"):
        run(made)
    assert made.answer.tokens == [] and made.statistics.local_tokens == 0


def test_the_end_of_the_context_ends_the_answer() -> None:
    limits = Limits(max_context=10)
    made = run(generation(connected(limits=limits), 0.0, SamplingParams(), Plan(placement=Placement.AR)))
    assert len(PROMPT) + len(made.answer.tokens) == 10
    assert made.answer.finish_reason is FinishReason.LENGTH


class FullCloud(LocalCloud[ToyVerifier]):
    """Refuses the first opens for want of room."""

    def __init__(self, times: int) -> None:
        super().__init__(ToyVerifier(ToyModel(1)))
        self.times = times

    def send(self, frame: Open | Draft | Steer | Cancel) -> None:
        if isinstance(frame, Open) and self.times:
            self.times -= 1
            self._answer([(0, Refuse(frame.session, Code.BUSY, "full", 0.05))])
            return
        super().send(frame)


def test_a_full_cloud_is_asked_again_and_in_the_end_its_refusal_is_told() -> None:
    cloud = FullCloud(times=3)
    cloud.connect()
    made = run(generation(cloud, 0.3, GREEDY, Plan()))
    assert made.answer.tokens == alone(GREEDY) and made.statistics.local_tokens == 0
    never = FullCloud(times=10**6)
    never.connect()
    with pytest.raises(Refused, match="busy: full"):
        run(generation(never, 0.3, GREEDY, Plan(busy_patience_s=1.0)))


def test_a_silent_session_that_was_sent_away_is_opened_again() -> None:
    cloud = connected()
    made = generation(cloud, 0.3, GREEDY, Plan())
    for step, _ in enumerate(made.run()):
        if step == 9:
            cloud._answer([(0, Refuse(1, Code.IDLE, "silent"))])
    assert made.answer.tokens == alone(GREEDY)


def test_a_cloud_that_declines_connections_is_no_lost_link() -> None:
    """Hazard 20: nothing is written alone while the cloud is there and full."""
    cloud = connected()
    cloud._events.clear()
    for _ in range(3):
        cloud._events.append(Declined(Refused(Code.BUSY, "full", 0.01), 0.01))
    cloud.connect()
    made = run(generation(cloud, 0.3, GREEDY, Plan()))
    assert made.answer.tokens == alone(GREEDY) and made.statistics.local_tokens == 0
