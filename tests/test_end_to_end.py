"""The real link, a real server and a proxy that cuts, stalls and delays: toy models, exact text."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from edge.answer import Answer, Provenance
from edge.answer_text import AnswerText
from edge.drafter import Drafter
from edge.generation import Generation
from edge.link import Link
from edge.link_config import LinkConfig
from edge.pacing import FixedPacing
from edge.plan import Plan
from edge.uplink import Uplink
from scripts.link_proxy import ThreadedLinkProxy
from shared.params import Limits, Placement, SamplingParams
from tests.fakes import EOS, IDENTITY, ToyDraftModel, ToyModel, ToyVerifier
from tests.servers import running_server
from tests.test_edge_conversation import Letters

PROMPT = (5, 6, 7)
COUNT = 200
# Token 0 has no weight here, so that the answers are long enough to be cut.
SAMPLED = SamplingParams(seed=5, temperature=1.2)


class LongToyModel(ToyModel):
    """The toy model without an end of text."""

    def logits(self, tokens):  # type: ignore[no-untyped-def]
        logits = super().logits(tokens)
        logits[EOS] = -1e9
        return logits


@contextmanager
def linked(hang_after_s: float = 0.3) -> Iterator[tuple[Uplink, ThreadedLinkProxy]]:
    verifier = ToyVerifier(LongToyModel(1))
    with (
        running_server(verifier, limits=Limits(max_context=512)) as server,
        ThreadedLinkProxy("127.0.0.1", server.port) as proxy,
    ):
        config = LinkConfig(
            f"ws://127.0.0.1:{proxy.port}",
            IDENTITY,
            beat_interval_s=hang_after_s / 3,
            beat_timeout_s=hang_after_s,
            backoff_base_s=0.01,
            backoff_cap_s=0.05,
        )
        link = Link(config)
        link.start()
        try:
            yield Uplink(link), proxy
        finally:
            link.close()


def generation(uplink: Uplink, wrong: float, plan: Plan) -> Generation:
    answer = Answer(PROMPT, SAMPLED, COUNT, frozenset({EOS}), 512)
    drafter = Drafter(ToyDraftModel(LongToyModel(1), wrong), SAMPLED, len(PROMPT), plan.hidden is not None)
    return Generation(answer, drafter, AnswerText(Letters()), uplink, plan, time.monotonic)


def alone() -> list[int]:
    return LongToyModel(1).continue_(PROMPT, SAMPLED, COUNT, frozenset({EOS}))


@pytest.mark.parametrize("pacing", [FixedPacing(4, 4), FixedPacing(3, 9)], ids=["stop-and-wait", "pipelined"])
@pytest.mark.parametrize("hidden", [None, "fp16"])
def test_a_cut_in_mid_answer_over_real_sockets(pacing: FixedPacing, hidden: str | None) -> None:
    with linked() as (uplink, proxy):
        made = generation(uplink, 0.3, Plan(pacing=pacing, hidden=hidden))
        cut = restored = False
        for _ in made.run():
            if not cut and len(made.answer.tokens) >= 60:
                cut = True
                proxy.cut()
            elif cut and not restored and made.statistics.local_tokens >= 20:
                restored = True
                proxy.restore()
    assert restored and made.statistics.links_lost == 1
    assert made.answer.tokens == alone()
    assert Provenance.LOCAL not in made.answer.provenance


def test_a_half_open_link_is_noticed_and_the_device_goes_on() -> None:
    """Hazards 9 and 20: nothing is reset, nothing comes; the protocol's own beats find it out."""
    with linked() as (uplink, proxy):
        made = generation(uplink, 0.3, Plan())
        hung = restored = False
        for _ in made.run():
            if not hung and len(made.answer.tokens) >= 60:
                hung = True
                proxy.hang()
            elif hung and not restored and made.statistics.local_tokens >= 20:
                restored = True
                proxy.restore()
    assert restored and made.statistics.links_lost == 1
    assert made.answer.tokens == alone()


def test_the_cloud_streams_alone_and_a_second_answer_uses_the_same_link() -> None:
    with linked() as (uplink, _):
        for plan in (Plan(placement=Placement.AR), Plan()):
            made = generation(uplink, 0.3, plan)
            for _ in made.run():
                pass
            assert made.answer.tokens == alone()
            assert made.statistics.bytes_up > 0 < made.statistics.bytes_down


def test_an_answer_that_is_left_ends_its_session() -> None:
    """Hazard 8: what the user stops is stopped in the cloud too."""
    with linked() as (uplink, _):
        made = generation(uplink, 0.3, Plan())
        running = made.run()
        for _ in running:
            if len(made.answer.tokens) >= 20:
                break
        running.close()
        again = generation(uplink, 0.3, Plan())
        for _ in again.run():
            pass
        assert again.answer.tokens == alone()
