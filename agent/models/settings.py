"""How a model is asked: what each request says, and how its endpoint is reached."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Api = Literal["chat_completions", "responses"]
MaxTokensName = Literal["max_tokens", "max_completion_tokens"]
PromptCache = Literal["cache_control", "prompt_cache_key"]
ResponseFormat = Literal["json_schema", "json_object"]


@dataclass(frozen=True, kw_only=True)
class RequestSettings:
    """What each request asks for, and through which API; the endpoint decides what is None.

    `max_tokens_name` is the name under which `max_output_tokens` is sent; None means that the endpoint is asked once
    and its answer remembered. `tool_choice` is auto, none, required or a tool's name. `response_format` is used for an
    answer that must fit a schema. `prompt_cache` marks what the endpoint may cache, as it wants that marked. With
    `send_reasoning` what the endpoint wants back of its reasoning is kept with its answers and sent back. `extra` is
    added to the request's body and overrides it. The Responses API has no `seed` and no `stop`.
    """

    api: Api = "chat_completions"
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    reasoning_effort: str | None = None
    max_output_tokens: int | None = None
    max_tokens_name: MaxTokensName | None = None
    tool_choice: str | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    prompt_cache: PromptCache | None = None
    send_reasoning: bool = True
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Connection:
    """How an endpoint is reached.

    `headers` and `query` are sent with each request. `ca_file` replaces the certificate authorities that are trusted; a
    client certificate needs its key, in the same file or in `client_key_file`. `proxy` replaces that of the
    environment. `connect_timeout_s` bounds the connecting, `idle_timeout_s` a stream's silence, and `timeout_s` the
    whole answer, streamed or not.
    """

    headers: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    ca_file: str | None = None
    client_cert_file: str | None = None
    client_key_file: str | None = None
    proxy: str | None = None
    connect_timeout_s: float = 10.0
    idle_timeout_s: float = 120.0
    timeout_s: float = 600.0

    def tls(self) -> ssl.SSLContext | None:
        """Return the TLS settings, None for the usual ones. Raises ValueError for files that cannot be used."""
        if not (self.ca_file or self.client_cert_file):
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
        except OSError as error:  # ssl.SSLError is one
            raise ValueError(f"ca_file: {self.ca_file} has no certificates that can be read: {error}") from error
        if self.client_cert_file:
            try:
                context.load_cert_chain(self.client_cert_file, self.client_key_file, password=_no_password)
            except OSError as error:
                raise ValueError(
                    f"client_cert_file: {self.client_cert_file} and its key cannot be used: {error}"
                ) from error
        return context


def _no_password() -> str:
    # Without this, OpenSSL asks for the password of an encrypted key on the terminal.
    raise ValueError("client_key_file: the key is encrypted; give one without a password")
