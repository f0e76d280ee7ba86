"""Credentials that tool code uses without seeing them: placeholders inside, real values in the one header outside.

A placeholder is worth nothing. It becomes the secret in the header, at the hosts and below the paths that the operator
named; the whole header is written as the operator said. Anywhere else it is refused: a sign that something went wrong,
or was tried. What a server answers is masked, for it may echo what it got.
"""

import base64
import binascii
import re
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import unquote_plus

from gateway.config.network_settings import CredentialSettings
from gateway.errors import Misconfigured
from gateway.network.http_request import Headers, Origin, ProxyRequest, Refused, refusal
from gateway.network.masking import Form, Masked
from gateway.network.secret_value import SecretUnavailable, SecretValue

PREFIX = "airlock_ph_"
_MARK = PREFIX.encode()
_PLACEHOLDER = re.compile(rb"airlock_ph_[0-9a-f]{40}")
# A part of the secret could pass unmasked, in a form or a length that the client chose.
_NOT_TO_BOUND_HOSTS = frozenset({b"accept-encoding", b"sec-websocket-extensions"})
_NOT_WITH_A_SECRET = frozenset({b"range", b"if-range"})


@dataclass(frozen=True)
class Caller:
    """On whose behalf a connection is made."""

    agent: str = ""
    tool: str = ""


@dataclass(frozen=True)
class Credential:
    """A binding with its placeholder."""

    settings: CredentialSettings
    placeholder: str
    value: SecretValue

    def is_for(self, caller: Caller) -> bool:
        tools, agents = self.settings.tools, self.settings.agents
        return (not tools or caller.tool in tools) and (not agents or caller.agent in agents)

    def is_bound_to(self, origin: Origin) -> bool:
        return origin.scheme == self.settings.scheme and (origin.host, origin.port) in self.settings.places

    def covers(self, request: ProxyRequest) -> bool:
        """Return whether the request's path, however it is read, is below a prefix."""
        prefixes = [prefix.rstrip("/") for prefix in self.settings.path_prefixes]
        return all(
            any(path == prefix or path.startswith(prefix + "/") for prefix in prefixes) for path in request.paths
        )

    def header(self, secret: str) -> tuple[bytes, bytes]:
        """Return the header that carries the secret."""
        if self.settings.basic_user is not None:
            pair = f"{self.settings.basic_user}:{secret}".encode()
            return self.settings.header.encode(), b"Basic " + base64.b64encode(pair)
        return self.settings.header.encode(), self.settings.format.replace("{}", secret).encode()


class Credentials:
    """The credentials of one tenant. Placeholders last as long as this object."""

    def __init__(
        self, settings: Sequence[CredentialSettings], token: Callable[[], str] = lambda: secrets.token_hex(20)
    ) -> None:
        self._all = tuple(Credential(one, PREFIX + token(), SecretValue(one.secret)) for one in settings)

    async def check(self) -> None:
        """Raise Misconfigured if a secret is not there or a name or variable is used twice."""
        for field, names in (
            ("name", [one.settings.name for one in self._all]),
            ("env", [one.settings.env for one in self._all]),
        ):
            if twice := {name for name in names if names.count(name) > 1}:
                raise Misconfigured(f"credentials: {field} {min(twice)} is a duplicate")
        for one in self._all:
            try:
                await one.value.current()
            except SecretUnavailable as error:
                raise Misconfigured(f"credentials.{one.settings.name}.secret: {error}") from error

    def environment(self, caller: Caller) -> dict[str, str]:
        """Return the variables for a command, with placeholders in them."""
        return {
            one.settings.env: one.settings.env_format.replace("{}", one.placeholder)
            for one in self._all
            if one.is_for(caller)
        }

    def placeholder(self, name: str, caller: Caller) -> tuple[str, str] | None:
        """Return the header and the placeholder of the credential of this name; None where it is not for the caller."""
        found = (one for one in self._all if one.settings.name == name and one.is_for(caller))
        return next(((one.settings.header, one.placeholder) for one in found), None)

    def opens(self, host: str, port: int) -> bool:
        """Return whether TLS to a canonical host is to be opened, because a credential is bound to it."""
        return any(one.is_bound_to(Origin("https", host, port)) for one in self._all)

    async def exchange(self, request: ProxyRequest, *callers: Caller) -> "CredentialExchange":
        """Return what to send in place of the request, and to do with its answer. Raises Refused.

        Any of the callers may have made the request: it gets only what is for all of them.
        """
        bound = [one for one in self._all if one.is_bound_to(request.origin)]
        headers, used = await self._headers(request, callers)
        if bound:
            dropped = _NOT_TO_BOUND_HOSTS | (_NOT_WITH_A_SECRET if used else frozenset())
            headers = [(name, value) for name, value in headers if name.lower() not in dropped]
            headers.append((b"Accept-Encoding", b"identity"))
        known: set[Form] = set()
        for one in bound:
            with suppress(SecretUnavailable):  # where it is used, that was refused; else this is only about past values
                await one.value.current()
            known |= one.value.forms()
        return CredentialExchange(request, tuple(headers), tuple(one.settings.name for one in used), known)

    async def _headers(
        self, request: ProxyRequest, callers: Sequence[Caller]
    ) -> tuple[list[tuple[bytes, bytes]], list[Credential]]:
        """Return the headers with real values, and whose they are."""
        if _marked(unquote_plus(unquote_plus(request.target)).encode()) or _marked(request.origin.host.encode()):
            raise _refused(request, "", "a credential's placeholder is in the URL, not in its header")
        headers: list[tuple[bytes, bytes]] = []
        used: list[Credential] = []
        for name, value in request.headers:
            if _marked(name):
                raise _refused(request, "", "a credential's placeholder is in the name of a header")
            if not (_marked(value) or _marked(_decoded(value))):
                headers.append((name, value))
                continue
            one = self._named(request, callers, name, value)
            if one in used:
                raise _refused(request, one.settings.name, "the placeholder is in the request twice")
            used.append(one)
            try:
                headers.append(one.header(await one.value.current()))
            except SecretUnavailable as error:
                raise _unavailable(request, one.settings.name) from error
        written = [name.lower() for name, _ in headers]
        for one in used:
            if written.count(one.settings.header.lower().encode()) > 1:
                raise _refused(request, one.settings.name, f"the request has {one.settings.header} twice")
        return headers, used

    def _named(self, request: ProxyRequest, callers: Sequence[Caller], name: bytes, value: bytes) -> Credential:
        """Return the credential whose placeholder a header has. Raises Refused if it may not be there."""
        found = set(_PLACEHOLDER.findall(value) + _PLACEHOLDER.findall(_decoded(value)))
        one = next((one for one in self._all if found == {one.placeholder.encode()}), None)
        if one is None:
            raise _refused(request, "", "the placeholder is of no credential; a restart of the gateway changes all")
        settings = one.settings
        if not all(map(one.is_for, callers)):
            reason = "the credential is not for this tool or agent"
            if any(map(one.is_for, callers)):
                reason = "the credential is not for the tools or agents of all calls that run in this sandbox now"
            raise _refused(request, settings.name, reason)
        if name.lower() != settings.header.lower().encode():
            raise _refused(request, settings.name, f"the placeholder belongs in the header {settings.header}")
        if not one.is_bound_to(request.origin):
            hosts = ", ".join(f"{settings.scheme}://{host}:{port}" for host, port in sorted(settings.places))
            raise _refused(request, settings.name, f"the credential is for {hosts} only")
        if not one.covers(request):
            raise _refused(request, settings.name, f"the credential is for {', '.join(settings.path_prefixes)} only")
        return one


class CredentialExchange:
    """An Exchange (gateway.network.upstream); `used` names the credentials that were put in."""

    def __init__(self, request: ProxyRequest, headers: Headers, used: tuple[str, ...], known: set[Form]) -> None:
        self.headers = headers
        self.used = used
        self._request = request
        self._masks = bool(known)
        self._masked = Masked(known)
        self._tail = b""

    def sent(self, data: bytes) -> None:
        """Raise Refused if a placeholder is in the body, also one that two pieces share."""
        if _marked(self._tail + data):
            raise _refused(self._request, "", "a credential's placeholder is in the body, not in its header")
        self._tail = (self._tail + data)[-len(_MARK) + 1 :]

    def answered(self, headers: Headers) -> Headers:
        """Return them masked. Raises Refused for a body in which nothing could be found."""
        coding = b",".join(value for name, value in headers if name.lower() == b"content-encoding").strip().lower()
        if self._masks and coding not in {b"", b"identity"}:
            reason = "the server compressed its answer unasked, so no credential could be taken out of it"
            raise refusal(502, "bad_gateway", reason, self._request.origin)
        masked = self._masked.masked
        return tuple((masked(name), masked(value)) for name, value in headers)

    def received(self, data: bytes) -> bytes:
        return self._masked.feed(data) if self._masks else data

    def flush(self) -> bytes:
        return self._masked.flush()


def _marked(data: bytes) -> bool:
    return _MARK in data.lower()


def _decoded(value: bytes) -> bytes:
    """Return user:password of a header for Basic, as git and pip write theirs; b"" of others."""
    scheme, _, coded = value.partition(b" ")
    if scheme.lower() != b"basic":
        return b""
    try:
        return base64.b64decode(coded.strip())
    except binascii.Error:
        return b""


def _refused(request: ProxyRequest, credential: str, reason: str) -> Refused:
    rule = f"credential {credential}".rstrip()
    advice = "send the placeholder as the operator bound it; ask the operator to bind it otherwise"
    return refusal(403, "policy_denied", reason, request.origin, rule=rule, how_to_allow=advice)


def _unavailable(request: ProxyRequest, credential: str) -> Refused:
    reason = f"the secret of the credential {credential} is not available"
    return refusal(502, "bad_gateway", reason, request.origin)
