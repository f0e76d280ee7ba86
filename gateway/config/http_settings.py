"""The section `http`: the HTTP listener beside gRPC."""

from pydantic import Field, field_validator

from gateway.config.section import Section

_LISTEN_EXAMPLE = "`http: {listen: 127.0.0.1:7480}`"


class HttpSettings(Section):
    """The HTTP listener."""

    listen: str | None = Field(
        default=None,
        description="HOST:PORT to listen on; unset: no HTTP listener. If `--listen` has port 0, this one gets a free "
        "port, too",
        examples=[_LISTEN_EXAMPLE],
    )
    hosts: tuple[str, ...] = Field(
        default=(),
        description="values of the Host header that are served, with their port if they have one, or *.example.com for "
        "all names below a domain; unset: on loopback the names of this machine alone, elsewhere any",
    )
    origins: tuple[str, ...] = Field(
        default=(), description="origins of web pages that may send requests, such as https://app.example"
    )

    public_url: str | None = Field(
        default=None,
        description="the listener's URL as its clients reach it, without a path, such as https://airlock.example; "
        "unset: as the Host header of a request names it. Set it behind a proxy that terminates TLS",
    )

    @field_validator("public_url")
    @classmethod
    def _is_url(cls, url: str | None) -> str | None:
        if url is None:
            return None
        url = url.rstrip("/")
        cls._are_origins((url,))
        return url

    @field_validator("origins")
    @classmethod
    def _are_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            scheme, mark, host = origin.partition("://")
            if scheme not in {"http", "https"} or not mark or not host or "/" in host:
                raise ValueError(f"origins: {origin!r}: a scheme, a host and a port, such as https://app.example")
        return origins
