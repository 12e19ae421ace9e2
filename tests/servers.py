"""A real uvicorn server with the toy model, in a thread of the test."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from cloud.app import Hub, Service, create_app
from cloud.config import ServeConfig
from cloud.engine import BatchVerifier, Engine
from cloud.metrics import Metrics
from cloud.scheduler import Scheduler, SchedulerLimits
from cloud.sequence import ModelShape
from shared.params import Limits
from tests.fakes import IDENTITY, VOCAB, WIDTH

LIMITS = Limits(max_context=512, max_frame_bytes=1 << 16, idle_ttl_s=30)


@dataclass
class Running:
    """A server under test."""

    port: int
    hub: Hub
    server: uvicorn.Server

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}"


@contextmanager
def running_server(
    verifier: BatchVerifier,
    *,
    limits: Limits = LIMITS,
    loaded: threading.Event | None = None,
    **config: object,
) -> Iterator[Running]:
    """Serve on a free loopback port; with `loaded` the model loads only once that is set."""
    metrics = Metrics()
    made = ServeConfig(model="toy", bundle=Path("."), home=Path("."), limits=limits, **config)  # type: ignore[arg-type]
    hub = Hub(made, metrics)

    def load() -> Service:
        if loaded is not None:
            assert loaded.wait(30)
        shape = ModelShape(VOCAB, WIDTH, limits.max_context)
        scheduler = Scheduler(shape, limits, SchedulerLimits())
        return Service(Engine(scheduler, verifier, metrics), IDENTITY, "toy", "fp32")

    listener = socket.create_server(("127.0.0.1", 0))
    app = create_app(hub, load, failed=lambda: None)
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            log_level="warning",
            ws="auto",
            ws_max_size=limits.max_frame_bytes + 1,
            ws_per_message_deflate=False,
            timeout_graceful_shutdown=1,
        )
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        port = listener.getsockname()[1]
        ready = threading.Event()
        while loaded is None and hub.service is None and hub.failure is None and thread.is_alive():
            ready.wait(0.005)
        yield Running(port, hub, server)
    finally:
        if loaded is not None:
            loaded.set()
        server.should_exit = True
        thread.join(15)
        listener.close()
        assert not thread.is_alive(), "the server did not stop"
