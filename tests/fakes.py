"""Small stand-ins for the model, the draft model and the link."""

import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from cloud.batch import Batch, Verdict
from cloud.engine import BatchVerifier
from cloud.scheduler import Scheduler, SchedulerLimits
from cloud.sequence import ModelShape
from edge.link_events import FrameReceived, LinkDown, LinkEvent, LinkUp
from shared.bundle import BundleIdentity
from shared.codec import decode, encode
from shared.errors import LinkLost
from shared.frames import CONNECTION, VERSION, Cancel, Draft, Finish, Frame, Open, Refuse, Steer, Welcome
from shared.params import Limits, SamplingParams
from shared.sampling import choose

V = TypeVar("V", bound=BatchVerifier)

VOCAB = 32
WIDTH = 8
EOS = 0
IDENTITY = BundleIdentity("a" * 64, "b" * 64, "c" * 64, 2, "d" * 64)


class ToyModel:
    """A language model in one line: the logits are noise seeded by the last three tokens."""

    def __init__(self, seed: int, vocab: int = VOCAB) -> None:
        self.seed = seed
        self.vocab = vocab

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """float32 [vocab] for the token after `tokens`."""
        rng = np.random.default_rng([self.seed, *tokens[-3:]])
        return (3 * rng.standard_normal(self.vocab)).astype(np.float32)

    def continue_(self, prompt: Sequence[int], params: SamplingParams, count: int, stops: frozenset[int]) -> list[int]:
        """What the model alone writes: one token after the other."""
        tokens = list(prompt)
        while len(tokens) < len(prompt) + count:
            tokens.append(choose(self.logits(tokens), params, len(tokens), tokens, len(prompt)))
            if tokens[-1] in stops:
                break
        return tokens[len(prompt) :]


class ToyVerifier:
    """The toy model behind the verifier's interface, with a KV cache that can only be what was fed."""

    def __init__(self, model: ToyModel) -> None:
        self.model = model
        self.kv: dict[int, list[int]] = {}
        self.batches: list[Batch] = []

    def run(self, batch: Batch) -> list[Verdict]:
        self.batches.append(batch)
        verdicts = []
        for work in batch.works:
            held = self.kv.setdefault(work.slot, [])
            assert work.start <= len(held), "the pass starts beyond what the cache holds"
            del held[work.start :]
            targets = []
            for index, token in enumerate(work.tokens):
                held.append(token)
                if index >= work.targets_from:
                    targets.append(
                        choose(self.model.logits(held), work.params, len(held), tuple(held), work.prompt_len)
                    )
            verdicts.append(Verdict(work.slot, tuple(targets)))
        return verdicts

    def free(self, slot: int) -> None:
        self.kv.pop(slot, None)


class ToyDraftModel:
    """A draft model that is right with a given chance at each place: `wrong` 0 is perfect, 1 never right."""

    hidden_size = WIDTH
    vocab_size = VOCAB

    def __init__(self, model: ToyModel, wrong: float, max_context: int = 512) -> None:
        self.model = model
        self.wrong = wrong
        self.max_context = max_context
        self.tokens: list[int] = []

    @property
    def length(self) -> int:
        return len(self.tokens)

    def forward(self, ids: Sequence[int]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        self.tokens.extend(ids)
        logits = self.model.logits(self.tokens)
        if random.Random(f"{self.model.seed} {self.tokens}").random() < self.wrong:
            logits = np.roll(logits, 1)
        return logits, np.asarray([[token + 0.25] * WIDTH for token in ids], dtype=np.float32)

    def truncate(self, n: int) -> None:
        assert n <= len(self.tokens)
        del self.tokens[n:]

    def close(self) -> None:
        pass


class LocalCloud(Generic[V]):
    """The real scheduler behind a channel without sockets. Frames pass through their bytes on the way.

    `weather` is called before each event is handed out; what it returns happens: "cut", "restore", "repeat" (the last
    frame comes again) or None. Time is a counter.
    """

    def __init__(
        self,
        verifier: V,
        limits: Limits | None = None,
        weather: Callable[[], str | None] = lambda: None,
        shape: ModelShape | None = None,
    ) -> None:
        self.limits = limits or Limits(max_context=512)
        self.verifier = verifier
        self.weather = weather
        shape = shape or ModelShape(VOCAB, WIDTH, self.limits.max_context)
        self.scheduler = Scheduler(shape, self.limits, SchedulerLimits())
        self.bytes_up = 0
        self.bytes_down = 0
        self.up = False
        self.now = 0.0
        self._events: deque[LinkEvent] = deque()
        self._slots: dict[int, int] = {}
        self._next_slot = 0
        self._last: Frame | None = None

    def connect(self) -> None:
        self.up = True
        self._events.append(LinkUp(Welcome(CONNECTION, VERSION, IDENTITY, self.limits), 0.0))

    def cut(self) -> None:
        self.up = False
        self._events.clear()
        for slot in self._slots.values():
            self.scheduler.drop(slot)
            self.verifier.free(slot)
        self._slots.clear()
        self._events.append(LinkDown(LinkLost("cut"), 0.0))

    def send(self, frame: Open | Draft | Steer | Cancel) -> None:
        if not self.up:
            return
        data = encode(frame)
        self.bytes_up += len(data)
        self._receive(decode(data, 1 << 20))

    def poll(self, timeout: float | None) -> LinkEvent | None:
        match self.weather():
            case "cut" if self.up:
                self.cut()
            case "restore" if not self.up:
                self.connect()
            case "repeat" if self.up and self._last is not None:
                self._receive(self._last)
        if self._events:
            return self._events.popleft()
        if timeout == 0.0 or not self.up:
            return None
        self._pass()
        return self._events.popleft() if self._events else None

    def _receive(self, frame: Frame) -> None:
        self.now += 1
        match frame:
            case Open():
                self._next_slot += 1
                self._slots[frame.session] = self._next_slot
                self._answer(self.scheduler.open(self._next_slot, frame, self.now))
            case Draft() | Steer() if frame.session in self._slots:
                self._last = frame
                self._answer(self.scheduler.update(self._slots[frame.session], frame, self.now))
            case Cancel() if frame.session in self._slots:
                self._answer(self.scheduler.cancel(self._slots[frame.session]))

    def _pass(self) -> None:
        self.now += 1
        batch = self.scheduler.next_batch()
        if batch is not None:
            self._answer(self.scheduler.complete(batch, self.verifier.run(batch), 0.0, self.now))

    def _answer(self, answers: Sequence[tuple[int, Frame]]) -> None:
        for slot, frame in answers:
            if isinstance(frame, Finish | Refuse):
                self.verifier.free(slot)
            data = encode(frame)
            self.bytes_down += len(data)
            received = decode(data, 1 << 20)
            self._events.append(FrameReceived(received))  # type: ignore[arg-type]
