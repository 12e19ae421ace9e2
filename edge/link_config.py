"""Where the cloud is, and how patient the link is with it."""

import ipaddress
import ssl
from dataclasses import dataclass, field, fields
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from shared.bundle import BundleIdentity
from shared.errors import BadInput

SESSION_PATH = "/v1/session"


@dataclass(frozen=True, slots=True)
class LinkConfig:
    """The whole configuration of a link. Times are in seconds.

    `url` is ws://HOST:PORT or wss://HOST:PORT, with a path where a proxy wants one. `ca` is a PEM file of certificates
    to trust in place of the system's. Beats go every `beat_interval_s` while an answer is open and every
    `idle_beat_interval_s` otherwise, which is below the idle time-outs of common proxies (hazard 9).

    Raises BadInput for an address or a number that can't be used, with what could.
    """

    url: str
    identity: BundleIdentity
    token: str | None = field(default=None, repr=False)
    ca: Path | None = None
    max_message_bytes: int = 16 << 20
    connect_timeout_s: float = 5.0
    hello_timeout_s: float = 5.0
    beat_interval_s: float = 1.0
    idle_beat_interval_s: float = 20.0
    beat_timeout_s: float = 3.0
    close_timeout_s: float = 1.0
    backoff_base_s: float = 0.1
    backoff_cap_s: float = 5.0
    stable_after_s: float = 5.0

    def __post_init__(self) -> None:
        parts = self._parts
        if parts.scheme not in ("ws", "wss") or not parts.hostname:
            raise BadInput(f"{self.url} is no address of a cloud; use ws://HOST:PORT or wss://HOST:PORT")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise BadInput("the cloud's address may hold a host, a port and a path only; give the token as such")
        if self.ca is not None and parts.scheme != "wss":
            raise BadInput(f"certificates to trust are of use with wss:// only, not with {self.url}")
        if self.token is not None and not (self.token.isascii() and self.token.isprintable() and self.token.strip()):
            raise BadInput("the token must be printable ASCII, since it travels in an HTTP header")
        for entry in fields(self):
            value = getattr(self, entry.name)
            if isinstance(value, int | float) and value <= 0:
                raise BadInput(f"{entry.name} is {value}; it must be above 0")

    @property
    def _parts(self) -> SplitResult:
        try:
            parts = urlsplit(self.url)
            _ = parts.port
        except ValueError as error:
            raise BadInput(f"{self.url} is no address of a cloud: {error}") from error
        return parts

    @property
    def session_url(self) -> str:
        """The address of the WebSocket."""
        parts = self._parts
        path = parts.path.rstrip("/")
        if not path.endswith(SESSION_PATH):
            path += SESSION_PATH
        return parts._replace(path=path).geturl()

    @property
    def where(self) -> str:
        """The cloud's host and port, for messages."""
        parts = self._parts
        host = f"[{parts.hostname}]" if parts.hostname and ":" in parts.hostname else parts.hostname
        return f"{host}:{parts.port or (443 if parts.scheme == 'wss' else 80)}"

    @property
    def loopback(self) -> bool:
        """Whether the cloud is on this machine: no HTTP proxy may stand between."""
        host = self._parts.hostname or ""
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return host == "localhost" or host.endswith(".localhost")

    def tls(self) -> ssl.SSLContext | None:
        """What to check the cloud's certificate with; None for ws.

        Raises BadInput for a CA file that can't be read.
        """
        if self._parts.scheme != "wss":
            return None
        try:
            return ssl.create_default_context(cafile=None if self.ca is None else str(self.ca))
        except (OSError, ssl.SSLError) as error:
            raise BadInput(f"{self.ca} holds no certificates that can be read ({error}); give a PEM file") from error
