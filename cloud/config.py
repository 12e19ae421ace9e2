"""What `edgewise-cloud serve` is told, checked once."""

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

from cloud.scheduler import SchedulerLimits
from shared.errors import BadInput
from shared.params import Limits


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """The whole configuration of one server process.

    Raises BadInput for an address that the network can reach without a token (hazard 22), or half a TLS pair.
    """

    model: str
    bundle: Path
    home: Path
    device: str = "cpu"
    dtype: str = "bf16"
    threads: int = 0
    host: str = "127.0.0.1"
    port: int = 8765
    token: str | None = None
    insecure: bool = False
    tls_cert: Path | None = None
    tls_key: Path | None = None
    hello_timeout_s: float = 10.0
    max_connections: int = 64
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

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False
