"""GET /healthz: 200 while the gateway serves, 503 while it does not. GET /livez: 200 while this process answers at all.

The second is for what restarts a process that hangs. A restart does not help while the database is down.
"""

from collections.abc import Sequence

from grpc_health.v1 import health_pb2
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.serving.health import SERVING, BoundedHealth
from gateway.support.version import airlock_version


def health_routes(healthy: BoundedHealth) -> Sequence[Route]:
    """Return the route of the health check, which needs no credential."""

    async def healthz(_request: Request) -> Response:
        status = healthy.status
        answer = {"status": health_pb2.HealthCheckResponse.ServingStatus.Name(status), "version": airlock_version()}
        return JSONResponse(answer, 200 if status == SERVING else 503, {"cache-control": "no-store"})

    async def livez(_request: Request) -> Response:
        return JSONResponse({"version": airlock_version()}, headers={"cache-control": "no-store"})

    return [Route("/healthz", healthz), Route("/livez", livez)]
