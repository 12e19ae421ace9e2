"""Running the verifier: load the model, bind the address, serve until told to stop."""

import asyncio
import json
import logging
import signal
import socket
import ssl

import uvicorn
from rich.console import Console

from cloud.app import DRAIN_GRACE, Hub, Service, create_app
from cloud.config import ServeConfig
from cloud.engine import Engine
from cloud.metrics import Metrics
from cloud.scheduler import Scheduler
from cloud.sequence import ModelShape
from cloud.source import resolve_source
from shared.bundle import load_manifest
from shared.errors import BadInput, EdgewiseError

log = logging.getLogger(__name__)


class _Server(uvicorn.Server):
    """Takes no more devices, tells those that are here to go elsewhere, and gives them time for it."""

    def __init__(self, config: uvicorn.Config, hub: Hub) -> None:
        super().__init__(config)
        self._hub = hub

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        self._hub.drain()
        # uvicorn closes all sockets at once, before a Drain could leave.
        clock = asyncio.get_running_loop().time
        deadline = clock() + DRAIN_GRACE
        while self._hub.connections and not self.force_exit and clock() < deadline:
            await asyncio.sleep(0.02)
        await super().shutdown(sockets)


def serve(config: ServeConfig, as_json: bool) -> int:
    """Serve until SIGTERM or Ctrl-C; the exit code: 0 when told to stop, 1 when the model fails to load.

    Raises BadInput for a model, bundle, certificate or address that can't be used.
    """
    manifest = load_manifest(config.bundle)
    source = resolve_source(config.model, config.home, progress=None)
    if source.weights_sha256 != manifest.identity.weights:
        raise BadInput(f"the bundle {config.bundle} was built from other weights than {config.model}; build it again")
    config = config.within(int(source.config["max_position_embeddings"]))
    metrics, console = Metrics(), Console(stderr=True)
    hub = Hub(config, metrics)

    def load() -> Service:
        # torch takes seconds to import, and /health answers meanwhile.
        from cloud.load import load_verifier

        loaded = load_verifier(source, manifest, config)
        shape = ModelShape(loaded.vocab_size, manifest.hidden_size, config.limits.max_context)
        scheduler = Scheduler(shape, config.limits, config.capacity)
        if not as_json:
            console.print(f"[green]ready[/]: {manifest.name}, {loaded.dtype} on {config.device}", highlight=False)
        return Service(Engine(scheduler, loaded.verifier, metrics), manifest.identity, manifest.name, loaded.dtype)

    listener = _bind(config)
    server: _Server

    def failed() -> None:
        server.should_exit = True

    server = _Server(
        uvicorn.Config(
            create_app(hub, load, failed),
            log_level="warning",
            ws="auto",
            # One byte more than a frame may have, so that our own refusal names the limit.
            ws_max_size=config.limits.max_frame_bytes + 1,
            ws_per_message_deflate=False,
            ssl_certfile=config.tls_cert,
            ssl_keyfile=config.tls_key,
            timeout_graceful_shutdown=2,
        ),
        hub,
    )
    host, port = listener.getsockname()[:2]
    _announce(config, host, port, as_json)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:
        # Once all has ended in order, uvicorn raises the signal that it was told to stop by again.
        return 0
    except ssl.SSLError as error:
        raise BadInput(f"the TLS certificate and key can't be used: {error}") from error
    finally:
        listener.close()
    if isinstance(hub.failure, EdgewiseError):
        raise hub.failure
    if hub.failure is not None:
        log.error("the model did not load: %r", hub.failure)
        return 1
    return 0


def _bind(config: ServeConfig) -> socket.socket:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        return socket.create_server((config.host, config.port), family=family, backlog=128)
    except OSError as error:
        raise BadInput(f"can't listen on {config.host}:{config.port}: {error.strerror or error}") from error


def _announce(config: ServeConfig, host: str, port: int, as_json: bool) -> None:
    scheme = "wss" if config.tls_cert else "ws"
    url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
    if as_json:
        print(json.dumps({"url": url, "port": port}), flush=True)
        return
    console = Console(stderr=True)
    console.print(f"[bold]edgewise-cloud[/] listens on [cyan]{url}[/]")
    if not config.loopback and config.tls_cert is None:
        console.print("[yellow]without TLS, the token and all text can be read on the way[/]")
