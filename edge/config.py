"""What the device is told, checked once."""

from dataclasses import dataclass, field
from pathlib import Path

from edge.plan import Plan
from shared.errors import BadInput
from shared.params import Placement, SamplingParams

DEFAULT_CLOUD = "ws://127.0.0.1:8765"


@dataclass(frozen=True, slots=True)
class DeviceConfig:
    """The whole configuration of one device program.

    Raises BadInput for what can't work together, with what would.
    """

    bundle: Path
    cloud: str = DEFAULT_CLOUD
    token: str | None = None
    ca: Path | None = None
    threads: int = 1
    max_tokens: int = 256
    stops: tuple[str, ...] = ()
    system: str | None = None
    params: SamplingParams = field(default_factory=SamplingParams)
    plan: Plan = field(default_factory=Plan)

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise BadInput(f"--max-tokens is {self.max_tokens}; it must be 1 or more")
        if self.plan.hidden is not None and self.plan.placement is not Placement.EDGE:
            raise BadInput(
                f"--hidden sends states beside drafts, so it needs --placement edge, not {self.plan.placement}"
            )


def find_bundle(named: Path | None, home: Path) -> Path:
    """The bundle's folder: the one named, or the only one in the home folder.

    Raises BadInput when there is none, or more than one to choose from.
    """
    if named is not None:
        return named
    folder = home / "bundles"
    found = sorted(path.parent for path in folder.glob("*/manifest.json"))
    if len(found) == 1:
        return found[0]
    if not found:
        raise BadInput(f"no bundle in {folder}; name one with --bundle, or build one with `edgewise-cloud build`")
    raise BadInput(f"{len(found)} bundles in {folder} ({', '.join(p.name for p in found)}); choose one with --bundle")
