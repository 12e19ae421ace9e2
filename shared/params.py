"""What a request asks for and what a peer may ask for at most."""

from dataclasses import dataclass
from enum import StrEnum

from shared.errors import BadInput


class Placement(StrEnum):
    """Who drafts and who decides (DESIGN: four placements of the same decoding)."""

    EDGE = "edge"
    AR = "ar"
    LOCAL = "local"


CLOUD_PLACEMENTS = (Placement.EDGE, Placement.AR)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen. Processors apply in the order of the fields after `seed`, penalties first.

    temperature 0 is greedy. `top_k` 0, `top_p` 1, `min_p` 0, `repetition_penalty` 1 and the other penalties 0 are off.
    The repetition penalty counts prompt and answer (CTRL, arXiv 1909.05858); presence and frequency count the answer
    only, as in the OpenAI API.

    Raises BadInput for a value out of range.
    """

    seed: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0

    def __post_init__(self) -> None:
        _require(0 <= self.seed < 2**64, "seed", self.seed, "a whole number from 0 to 2^64 - 1")
        _require(
            self.temperature == 0 or 0.001 <= self.temperature <= 100,
            "temperature",
            self.temperature,
            "0 (greedy), or 0.001 to 100",
        )
        _require(self.top_k >= 0, "top_k", self.top_k, "0 (off) or more")
        _require(0 < self.top_p <= 1, "top_p", self.top_p, "above 0, at most 1")
        _require(0 <= self.min_p < 1, "min_p", self.min_p, "0 or more, below 1")
        _require(
            0.01 <= self.repetition_penalty <= 100,
            "repetition_penalty",
            self.repetition_penalty,
            "0.01 to 100",
        )
        for name in ("presence_penalty", "frequency_penalty"):
            _require(-2 <= getattr(self, name) <= 2, name, getattr(self, name), "-2 to 2")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def needs_history(self) -> bool:
        """Whether the choice depends on more of the text than the logits carry."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds that the cloud enforces and tells in its Welcome."""

    max_frame_bytes: int = 4 << 20
    max_context: int = 4096
    max_new_tokens: int = 2048
    max_draft_nodes: int = 256
    max_sessions: int = 4
    idle_ttl_s: int = 300
    hidden_codecs: tuple[str, ...] = ("fp32", "fp16")

    def __post_init__(self) -> None:
        for name in (
            "max_frame_bytes",
            "max_context",
            "max_new_tokens",
            "max_draft_nodes",
            "max_sessions",
            "idle_ttl_s",
        ):
            _require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more")


def _require(holds: bool, name: str, value: object, right: str) -> None:
    if not holds:
        raise BadInput(f"{name} is {value}; it must be {right}")
