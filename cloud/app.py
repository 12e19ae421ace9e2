"""The cloud's web application: the session socket, health and metrics."""

import asyncio
import hmac
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fastapi import FastAPI, Request, Response, WebSocket
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from cloud.config import ServeConfig
from cloud.connection import Connection
from cloud.engine import Engine
from cloud.metrics import Metrics
from shared.bundle import BundleIdentity
from shared.errors import Code

log = logging.getLogger(__name__)

# How long a device may take to resume elsewhere after a Drain, in seconds.
DRAIN_GRACE = 5.0


@dataclass(frozen=True, slots=True)
class Service:
    """A loaded model, ready to serve."""

    engine: Engine
    identity: BundleIdentity
    model_name: str
    dtype: str


class Hub:
    """What the routes share: the service once it has loaded, and the open connections."""

    def __init__(self, config: ServeConfig, metrics: Metrics) -> None:
        self.config = config
        self.metrics = metrics
        self.service: Service | None = None
        self.failure: Exception | None = None
        self.connections: set[Connection] = set()

    @property
    def ready(self) -> Service | None:
        """The service, while it can answer."""
        return self.service if self.service is not None and self.service.engine.alive else None

    @property
    def state(self) -> str:
        """Why there is no service to answer."""
        failure = self.failure if self.service is None else self.service.engine.failure
        return "loading" if failure is None and self.service is None else f"failed: {failure}"

    async def load(self, load: Callable[[], Service], failed: Callable[[], None]) -> None:
        """Load the model beside the event loop, so that /health answers meanwhile."""
        try:
            service = await asyncio.to_thread(load)
        except Exception as error:
            log.debug("the model did not load", exc_info=True)
            self.failure = error
            failed()
            return
        service.engine.start()
        self.service = service

    def drain(self) -> None:
        """Tell all devices to resume elsewhere."""
        for connection in self.connections:
            connection.drain(DRAIN_GRACE)


def create_app(hub: Hub, load: Callable[[], Service], failed: Callable[[], None]) -> FastAPI:
    """The application; `load` runs in a thread at start, `failed` is called when it raises."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        loading = asyncio.create_task(hub.load(load, failed))
        yield
        await loading
        if hub.service is not None:
            await asyncio.to_thread(hub.service.engine.stop)

    app = FastAPI(title="Edgewise", lifespan=lifespan)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        return _error(error.status_code, f"{request.method} {request.url.path}: {error.detail}")

    @app.get("/health")
    async def health() -> JSONResponse:
        service = hub.ready
        if service is None:
            return JSONResponse({"status": hub.state}, status_code=503)
        body = {"status": "ok", "model": service.model_name, "bundle": service.identity.id, "dtype": service.dtype}
        return JSONResponse(body)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(hub.metrics.exposition(), media_type=CONTENT_TYPE_LATEST)

    @app.websocket("/v1/session")
    async def session(socket: WebSocket) -> None:
        config = hub.config
        header = socket.headers.get("authorization")
        if config.token is not None and header is not None:
            if not hmac.compare_digest(header.encode(), f"Bearer {config.token}".encode()):
                hub.metrics.refused(Code.UNAUTHORIZED)
                await socket.send_denial_response(_error(401, "the bearer token is wrong"))
                return
        service = hub.ready
        if service is None:
            await socket.send_denial_response(_error(503, f"the model is not ready: {hub.state}", retry_after=1))
            return
        if len(hub.connections) >= config.max_connections:
            hub.metrics.refused(Code.BUSY)
            message = f"{len(hub.connections)} devices are connected, the most here"
            await socket.send_denial_response(_error(429, message, retry_after=1))
            return
        connection = Connection(
            socket,
            service.engine,
            service.identity,
            config.limits,
            config.token if header is None else None,
            config.hello_timeout_s,
            hub.metrics,
        )
        hub.connections.add(connection)
        try:
            await connection.serve()
        finally:
            hub.connections.discard(connection)

    return app


def _error(status: int, message: str, retry_after: int | None = None) -> JSONResponse:
    """An error body in the shape that OpenAI clients read."""
    kinds = {401: "authentication_error", 429: "rate_limit_error"}
    kind = kinds.get(status, "invalid_request_error" if status < 500 else "server_error")
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    body = {"error": {"message": message, "type": kind, "param": None, "code": status}}
    return JSONResponse(body, status_code=status, headers=headers)
