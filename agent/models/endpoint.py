"""An endpoint's connection, and the ModelError for whatever goes wrong there. The only file that imports openai.

The client library connects, authenticates and sends. Answers are read by the driver, within the bounds of
agent.models.bounded_http, because the library buffers without a limit and loses error messages.
"""

import asyncio
import base64
import functools
import os
import re
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

import httpx2
import openai

from agent.errors import ModelError, ModelNonsense, ModelRefused, ModelUnavailable
from agent.models.bounded_http import BoundedClient, RefusedRedirect
from agent.models.endpoint_errors import (
    Complaint,
    UnusableAnswer,
    complaint_of,
    endpoint_error,
    parsed,
    said_by,
    unsupported_parameter,
)
from agent.models.endpoint_meanings import answer_meaning, connection_meaning
from agent.models.settings import Api, Connection

_QUOTED_CHARS = 500


class Endpoint:
    """One model's endpoint; messages are bounded and without secrets."""

    def __init__(
        self, model: str, base_url: str | None, api_key: str | None, connection: Connection, now: Callable[[], float]
    ) -> None:
        """Create a client, without connecting. Raises ValueError for OpenAI's endpoint without a key, and for files."""
        self.connection = connection
        self._model = model
        self._now = now
        if api_key is None:  # a key is sent only to the endpoint that it is for
            api_key = "" if base_url else os.environ.get("OPENAI_API_KEY", "")
        base_url = base_url or os.environ.get("OPENAI_BASE_URL")
        if not (api_key or base_url):
            raise ValueError("no API key: set OPENAI_API_KEY, or give api_key")
        parts = urlsplit(base_url or "")
        query = {**dict(parse_qsl(parts.query, keep_blank_values=True)), **connection.query}
        # Errors name the version of Azure's API, which is no secret.
        in_query = (value for name, value in query.items() if name != "api-version")
        self._secrets = frozenset({api_key, *in_query, *_secrets_in(base_url, connection)})
        keyless = not api_key and "authorization" not in {name.lower() for name in connection.headers}
        # The library takes no client without a key, but a request without one.
        self._headers = {"Authorization": openai.omit} if keyless else {}
        # A proxy cannot reach this machine's loopback, and must not see requests to it.
        trust_env = not _on_loopback(parts.hostname or "")
        self._client = openai.AsyncOpenAI(
            api_key=api_key or "none",
            base_url=urlunsplit(parts._replace(query="", fragment="")) if base_url else None,
            default_query=query,
            default_headers=connection.headers,
            max_retries=0,  # ErrorPolicy retries
            http_client=BoundedClient(
                verify=connection.tls() or _usual_tls(trust_env),
                proxy=connection.proxy,
                trust_env=trust_env,
            ),
        )
        shown = urlsplit(str(self._client.base_url))  # without credentials
        self.address = f"{shown.scheme}://{shown.netloc.rpartition('@')[2]}{shown.path}".rstrip("/")

    async def close(self) -> None:
        await self._client.close()

    @asynccontextmanager
    async def answer(self, body: Mapping[str, Any], api: Api, *, stream: bool) -> AsyncIterator[AsyncIterator[bytes]]:
        """Send a request; the context is its answer's bytes. Everything that fails in it is a ModelError."""
        of_api: Any = self._client.responses if api == "responses" else self._client.chat.completions
        needed = {name: body[name] for name in ("model", "messages", "input") if name in body}
        rest = {name: value for name, value in body.items() if name not in needed}
        read_s = self.connection.idle_timeout_s if stream else self.connection.timeout_s
        async with (
            self._model_errors(stream=stream),
            of_api.with_streaming_response.create(
                **needed, stream=stream, extra_body=rest or None, **self._options(read_s)
            ) as response,
        ):
            yield response.iter_bytes()

    async def listed(self) -> Any:
        """Return the endpoint's description of the model, as JSON; None if its list has none. Raises ModelError."""
        async with (
            self._model_errors(stream=False),
            self._client.models.with_streaming_response.list(
                **self._options(self.connection.idle_timeout_s)
            ) as response,
        ):
            known = parsed((await response.read()).decode("utf-8", "replace"))
        models = known.get("data") if isinstance(known, Mapping) else None
        named = [one for one in models if isinstance(one, Mapping)] if isinstance(models, list) else []
        own = next((one for one in named if one.get("id") == self._model), None)
        return own or (named[0] if len(named) == 1 else None)  # llama.cpp answers whatever name it is asked by

    def _options(self, read_s: float) -> dict[str, Any]:
        timeout = httpx2.Timeout(read_s, connect=self.connection.connect_timeout_s)
        return {"extra_headers": self._headers, "timeout": timeout}

    @asynccontextmanager
    async def _model_errors(self, *, stream: bool) -> AsyncIterator[None]:
        within = self.connection
        try:
            async with asyncio.timeout(within.timeout_s):
                yield
        except TimeoutError as error:
            raise self._too_slow("finish its answer", within.timeout_s, "timeout_s") from error
        except (openai.APITimeoutError, httpx2.TimeoutException) as error:
            raise self._late(error.__cause__ or error, stream=stream) from error
        except openai.APIStatusError as error:
            complaint, how = complaint_of(error.response.text), f"answered HTTP {error.status_code}"
            raise self._error(complaint, how, error.status_code, error.response.headers) from error
        except RefusedRedirect as error:
            raise ModelRefused(
                f"{self.address} redirects to {self.said(str(error))}, and the conversation is not sent there; "
                "set base_url to the address that answers"
            ) from error
        except UnusableAnswer as error:
            raise self.nonsense(str(error)) from error
        except (openai.APIConnectionError, httpx2.TransportError) as error:
            raise self._dropped(error.__cause__ or error) from error

    def complained(self, complaint: Complaint) -> ModelError:
        """Return the error of an answer that began with HTTP 200."""
        return self._error(complaint, "ended its answer with an error", complaint.status, {})

    def nonsense(self, what: str) -> ModelNonsense:
        said = said_by(what, self._secrets, _QUOTED_CHARS)
        return ModelNonsense(f"{self.address}, model {self._model!r}, sent {said}; {answer_meaning(said)}")

    def said(self, message: str) -> str:
        return said_by(message, self._secrets)

    def _error(self, complaint: Complaint, how: str, status: int | None, headers: Mapping[str, str]) -> ModelError:
        words = self.said(complaint.words)
        said = f"{self.address} {how}{f': {words}' if words else ' without a message'}"
        error = endpoint_error(complaint, said, status=status, headers=headers, now_s=self._now(), model=self._model)
        if isinstance(error, ModelRefused):
            error.unsupported_parameter = unsupported_parameter(complaint)
        return error

    def _dropped(self, error: BaseException) -> ModelUnavailable:
        cause = self.said(str(error)) or "the connection was reset"
        reached = not isinstance(error, httpx2.ConnectError | httpx2.ProxyError)
        what = "dropped the connection" if reached else "cannot be reached"
        return ModelUnavailable(f"{self.address} {what}: {cause}; {connection_meaning(cause)}")

    def _late(self, error: BaseException, *, stream: bool) -> ModelUnavailable:
        within = self.connection
        if isinstance(error, httpx2.ConnectTimeout):
            return self._too_slow("accept a connection", within.connect_timeout_s, "connect_timeout_s")
        if stream:
            return self._too_slow("send anything", within.idle_timeout_s, "idle_timeout_s")
        return self._too_slow("answer", within.timeout_s, "timeout_s")

    def _too_slow(self, what: str, timeout_s: float, setting: str) -> ModelUnavailable:
        said = f"{self.address} did not {what} within {timeout_s:g} s; raise the model's {setting}"
        return ModelUnavailable(said, unanswered=setting != "connect_timeout_s")


def _secrets_in(base_url: str | None, connection: Connection) -> Iterator[str]:
    """Yield what an endpoint's messages may quote of a connection's credentials: also a token without its scheme."""
    for address in (base_url, connection.proxy):
        parts = urlsplit(address or "")
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        if password:
            yield from (password, parts.password or "", base64.b64encode(f"{user}:{password}".encode()).decode())
    for value in connection.headers.values():
        yield from (value, *re.split(r"[\s=;,]+", value))


def _on_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


@functools.cache
def _usual_tls(trust_env: bool) -> ssl.SSLContext:
    # One for all clients: reading a system's certificates takes tens of ms and almost a MiB.
    return httpx2.create_ssl_context(trust_env=trust_env)
