"""GET /healthz: 200 while the gateway serves, 503 while it does not."""

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

    return [Route("/healthz", healthz)]
