"""A conversation over a fake device: turns, interruptions, refusals, stop strings."""

import io
from collections.abc import Iterator, Sequence

import pytest
from rich.console import Console

from edge.answer import Answer
from edge.answer_text import AnswerText
from edge.conversation import converse
from edge.drafter import Drafter
from edge.generation import Generation
from edge.plan import Plan
from edge.report import answer_report, summary_rows
from edge.speaker import Speaker
from edge.token_bytes import TokenBytes
from edge.tokenizer import Message
from edge.uplink import Uplink
from shared.errors import BadInput
from shared.frames import FinishReason
from shared.params import SamplingParams
from tests.fakes import EOS, VOCAB, LocalCloud, ToyDraftModel, ToyModel, ToyVerifier

# Token 0 ends the text; the others are letters.
TABLE = TokenBytes(tuple(b"" if i == EOS else bytes([96 + i]) for i in range(VOCAB)), frozenset({EOS}))


class Letters:
    """Each letter is a token."""

    table = TABLE

    def encode(self, text: str) -> list[int]:
        return [ord(letter) - 96 for letter in text if "a" <= letter <= "z"]


class FakeDevice:
    """Answers by the toy model over the real scheduler."""

    def __init__(self, stops: Sequence[str] = (), interrupt_turn: int | None = None, wrong: float = 0.3) -> None:
        self.cloud = LocalCloud(ToyVerifier(ToyModel(1)))
        self.cloud.connect()
        self.uplink = Uplink(self.cloud)
        self.stops = stops
        self.wrong = wrong
        self.seen: list[list[Message]] = []
        self.interrupt_turn = interrupt_turn

    def chat(self, messages: Sequence[Message]) -> tuple[Generation, AnswerText]:
        self.seen.append(list(messages))
        prompt = Letters().encode(messages[-1].content)
        if not prompt:
            raise BadInput("the prompt is empty; say something")
        params = SamplingParams()
        answer = Answer(prompt, params, 12, frozenset({EOS}), 512)
        drafter = Drafter(ToyDraftModel(ToyModel(1), self.wrong), params, len(prompt), keep_hidden=False)
        text = AnswerText(Letters(), self.stops)
        ticks = iter(range(10**9))
        made = Generation(answer, drafter, text, self.uplink, Plan(), clock=lambda: next(ticks) / 1000)
        if len(self.seen) == self.interrupt_turn:
            made.run = self._interrupted  # type: ignore[method-assign]
        return made, text

    def _interrupted(self) -> Iterator[None]:
        yield
        raise KeyboardInterrupt


def letters(prompt: str, count: int = 12) -> str:
    tokens = ToyModel(1).continue_(Letters().encode(prompt), SamplingParams(), count, frozenset({EOS}))
    return "".join(chr(96 + token) for token in tokens if token != EOS)


def console() -> Console:
    return Console(file=io.StringIO(), width=200)


def said(screen: Console) -> str:
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


def test_each_turn_carries_the_ones_before() -> None:
    device, screen = FakeDevice(), console()
    assert converse(device, screen, console(), ["abc", "", "def"]) == 0
    assert said(screen).split() == [letters("abc"), letters("def")]
    assert device.seen[1] == [Message("user", "abc"), Message("assistant", letters("abc")), Message("user", "def")]


def test_an_interrupt_stops_the_answer_and_not_the_program() -> None:
    device, notices = FakeDevice(interrupt_turn=1), console()
    assert converse(device, console(), notices, ["abc", "def"]) == 0
    assert "stopped" in said(notices)
    assert len(device.seen) == 2


def test_an_error_loses_its_own_turn_only() -> None:
    device, screen, notices = FakeDevice(), console(), console()
    converse(device, screen, notices, ["123", "abc"])
    assert "the prompt is empty" in said(notices)
    assert said(screen).strip() == letters("abc")
    assert device.seen[1] == [Message("user", "abc")]


@pytest.mark.parametrize("cut", [False, True], ids=["online", "offline"])
def test_a_stop_string_trims_text_tokens_and_counts_together(cut: bool) -> None:
    """Hazard 3: across token borders, from the cloud as from the device alone."""
    whole = letters("abc")
    stop = whole[4:6]
    device = FakeDevice(stops=[stop], wrong=0.0)
    if cut:
        device.cloud.cut()
    made, text = device.chat([Message("user", "abc")])
    Speaker(None, console()).speak(made, text)
    before = whole[: whole.index(stop)]
    report = answer_report(made, text.finish())
    assert report["text"] == before
    assert report["finish_reason"] is FinishReason.STOP
    assert len(report["token_ids"]) == report["completion_tokens"] == sum(count for _, count in report["provenance"])
    assert report["completion_tokens"] <= len(before) + 1


def test_losing_the_link_is_told_once_and_the_report_counts_it() -> None:
    device, notices = FakeDevice(), console()
    device.cloud.cut()
    made, text = device.chat([Message("user", "abc")])
    Speaker(console(), notices).speak(made, text)
    assert said(notices).count("no link: cut; going on alone") == 1
    report = answer_report(made, text.finish())
    rows = summary_rows(report)
    assert report["written_alone"] == report["completion_tokens"] > 0
    assert rows["tokens"].endswith(" local") and rows["cloud passes"] == "0"


def test_the_return_of_the_link_is_told() -> None:
    device, screen, notices = FakeDevice(), console(), console()
    made, text = device.chat([Message("user", "abc")])

    def scene() -> None:
        if len(made.answer.tokens) >= 3 and not made.statistics.links_lost:
            device.cloud.cut()
        elif made.alone and made.statistics.local_tokens == 2:
            device.cloud.connect()

    Speaker(screen, notices).speak(made, text, each=scene)
    assert said(screen).strip() == letters("abc")
    assert said(notices).splitlines() == [
        "no link: cut; going on alone",
        "the link is back: going on with the cloud",
    ]
    assert summary_rows(answer_report(made, text.text))["written alone"] == "2 tokens, link lost once"
