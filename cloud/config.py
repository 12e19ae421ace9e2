"""What `edgewise-cloud serve` is told, checked once."""

import ipaddress
from dataclasses import dataclass, field, replace
from pathlib import Path

from cloud.scheduler import SchedulerLimits
from shared.errors import BadInput
from shared.params import Limits

# The dtype that lets the machine decide.
AUTO = "auto"


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """The whole configuration of one server process.

    Raises BadInput for an address that the network can reach without a token (hazard 22), or half a TLS pair.
    """

    model: str
    bundle: Path
    home: Path
    device: str = "cpu"
    dtype: str = AUTO
    threads: int = 0
    host: str = "127.0.0.1"
    port: int = 8765
    token: str | None = None
    insecure: bool = False
    tls_cert: Path | None = None
    tls_key: Path | None = None
    hello_timeout_s: float = 10.0
    max_connections: int = 64
    max_context: int | None = None
    limits: Limits = field(default_factory=Limits)
    capacity: SchedulerLimits = field(default_factory=SchedulerLimits)

    def __post_init__(self) -> None:
        if self.token is not None and len(self.token) < 8:
            raise BadInput("EDGEWISE_TOKEN is shorter than 8 characters; use a longer random one")
        if not self.loopback and self.token is None and not self.insecure:
            raise BadInput(
                f"{self.host} can be reached from the network and there is no token: "
                "set EDGEWISE_TOKEN, or bind 127.0.0.1, or say --insecure"
            )
        if (self.tls_cert is None) != (self.tls_key is None):
            raise BadInput("--tls-cert and --tls-key go together")
        if not 0 <= self.port <= 65535:
            raise BadInput(f"port {self.port} does not exist; use 0 (any free one) to 65535")

    def within(self, longest: int) -> "ServeConfig":
        """The same for a model whose positions end at `longest`: its limits hold the context that is served.

        Raises BadInput for a `max_context` that the model was not made for.
        """
        if self.max_context is not None and not 1 <= self.max_context <= longest:
            raise BadInput(f"--max-context is {self.max_context}; this model was made for 1 to {longest} tokens")
        context = self.max_context or min(self.limits.max_context, longest)
        return replace(self, limits=replace(self.limits, max_context=context))

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False
