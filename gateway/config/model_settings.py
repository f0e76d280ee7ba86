"""A model in the configuration: its endpoint, its request settings and its prices."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import date
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, model_validator

from agent.models.prices import Prices
from agent.models.settings import Api, Connection, MaxTokensName, PromptCache, RequestSettings, ResponseFormat
from gateway.config.section import Section
from gateway.errors import Misconfigured

CONCURRENT_INFERENCES = 16
"""The default of TenantSettings.concurrent_inferences."""

MODEL_EXAMPLE = "`model: {name: gpt-5-mini}`"
_PRICES = frozenset(Prices.__dataclass_fields__)
_REQUEST = frozenset(RequestSettings.__dataclass_fields__)
_CONNECTION = frozenset(Connection.__dataclass_fields__)
# What another model at the same endpoint does not take over, and what another endpoint does not either.
_OF_ONE_MODEL = (
    _PRICES
    | _REQUEST - {"api", "max_output_tokens", "response_format", "prompt_cache", "send_reasoning"}
    | {"context_window_tokens", "fallbacks"}
)
_OF_ONE_ENDPOINT = (
    _OF_ONE_MODEL
    | {"response_format", "prompt_cache", "api", "send_reasoning", "concurrent_requests"}
    | {"headers", "query", "ca_file", "client_cert_file", "client_key_file"}
)
_VARIABLE = re.compile(r"\$\{(\w+)\}")
# What the driver itself sends.
_OWN_FIELDS = frozenset({"model", "messages", "input", "instructions", "tools", "stream", "stream_options"})


def _field_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}", name):
        raise ValueError(f"{name!r} cannot be the name of a header or a query parameter")
    return name


def _as_text(value: Any) -> Any:
    # YAML reads an api-version such as 2024-10-21 as a date.
    return str(value) if isinstance(value, int | float | date) and not isinstance(value, bool) else value


def _field_value(value: str) -> str:
    if not re.fullmatch(r"[\t\x20-\x7e]*", value):
        raise ValueError("the value of a header or a query parameter is printable ASCII; put a secret in ${VARIABLE}")
    return value


def _not_the_drivers(extra: dict[str, JsonValue]) -> dict[str, JsonValue]:
    if own := sorted(_OWN_FIELDS & extra.keys()):
        raise ValueError(f"{own[0]}: the gateway sends this itself, so it cannot be set here")
    return extra


_Fields = dict[
    Annotated[str, AfterValidator(_field_name)],
    Annotated[str, Field(max_length=4096), BeforeValidator(_as_text), AfterValidator(_field_value)],
]


class OneModelSettings(Section):
    """A model behind an OpenAI-compatible endpoint.

    Unset fields come from the next level out (`within`): subagent, agent, tenant, gateway, then OPENAI_BASE_URL and
    AIRLOCK_MODEL. Prices are US dollars per million tokens; without them the cost is unknown. A field that is null is
    left to the endpoint.
    """

    name: str | None = Field(default=None, description="unset: AIRLOCK_MODEL, then gpt-5-mini")
    base_url: str | None = Field(default=None, description="the endpoint; unset: OPENAI_BASE_URL, then OpenAI")
    api_key_env: str | None = Field(
        default="OPENAI_API_KEY", description="the variable with the key; null for an endpoint without keys"
    )
    api: Api = Field(default="chat_completions", description="which of the endpoint's APIs to use")
    stream: bool = Field(default=True, description="false for an endpoint that cannot stream, or not with tools")
    connect_timeout_s: float = Field(default=10.0, gt=0, allow_inf_nan=False, description="for connecting")
    idle_timeout_s: float = Field(
        default=120.0, gt=0, allow_inf_nan=False, description="for the first piece of a stream, and between two pieces"
    )
    timeout_s: float = Field(
        default=600.0, gt=0, allow_inf_nan=False, description="for a whole answer, streamed or not"
    )
    concurrent_requests: int | None = Field(
        default=None, ge=1, description="requests to this model at once, from all tenants of a gateway process"
    )
    temperature: float | None = Field(default=None, ge=0, le=2, allow_inf_nan=False)
    top_p: float | None = Field(default=None, gt=0, le=1, allow_inf_nan=False)
    seed: int | None = None
    stop: tuple[Annotated[str, Field(min_length=1, max_length=256)], ...] = Field(
        default=(), max_length=16, examples=["[END]"], description="texts that end an answer"
    )
    reasoning_effort: str | None = Field(default=None, pattern=r"^[a-z]{1,16}$", description="such as low or high")
    max_output_tokens: int | None = Field(default=None, ge=1, description="per answer; unset: the endpoint's own limit")
    max_tokens_name: MaxTokensName | None = Field(
        default=None, description="the endpoint's name for max_output_tokens; unset: both are tried, once"
    )
    tool_choice: str | None = Field(
        default=None, pattern=r"^[A-Za-z0-9_-]{1,64}$", description="auto, none, required or the name of a tool"
    )
    parallel_tool_calls: bool | None = Field(default=None, description="false: at most one call in each answer")
    response_format: ResponseFormat | None = Field(
        default=None, description="how the endpoint makes a structured output fit its schema"
    )
    send_reasoning: bool = Field(
        default=True, description="keep the reasoning that the endpoint wants back with the thread, and send it back"
    )
    store_reasoning: bool = Field(default=False, description="store the reasoning that the endpoint shows, as events")
    prompt_cache: PromptCache | None = Field(default=None, description="how a request marks what may be cached")
    headers: _Fields = Field(default={}, max_length=32, description="sent with each request; may contain ${VARIABLE}")
    query: _Fields = Field(default={}, max_length=32, description="parameters in the URL; may contain ${VARIABLE}")
    ca_file: str | None = Field(default=None, description="the certificate authorities to trust, as PEM")
    client_cert_file: str | None = Field(default=None, description="a client certificate, as PEM")
    client_key_file: str | None = Field(default=None, description="its key, unless it is in the same file")
    proxy: str | None = Field(
        default=None, pattern=r"^https?://", description="the proxy to use in place of the environment's"
    )
    extra: Annotated[dict[str, JsonValue], AfterValidator(_not_the_drivers)] = Field(
        default={}, description="added to each request's body, which it overrides"
    )
    context_window_tokens: int | None = Field(
        default=None, ge=1000, description="the size of the context window, for summarization"
    )
    input_usd_per_mtok: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    output_usd_per_mtok: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    cached_input_usd_per_mtok: float | None = Field(
        default=None, ge=0, allow_inf_nan=False, description="of input from the prompt cache; unset: the input price"
    )
    reasoning_usd_per_mtok: float | None = Field(
        default=None, ge=0, allow_inf_nan=False, description="of reasoning; unset: the output price"
    )

    @model_validator(mode="after")
    def _validated(self) -> Self:
        return self.fitting()

    def fitting(self) -> Self:
        """Return these settings. Raises ValueError naming one that does not fit another."""
        if (self.input_usd_per_mtok is None) != (self.output_usd_per_mtok is None):
            raise ValueError("input_usd_per_mtok and output_usd_per_mtok: set both prices or neither")
        if self.input_usd_per_mtok is None and (self.cached_input_usd_per_mtok or self.reasoning_usd_per_mtok):
            raise ValueError("cached_input_usd_per_mtok and reasoning_usd_per_mtok: set the two other prices too")
        if self.api == "responses" and (self.seed is not None or self.stop or self.prompt_cache == "cache_control"):
            raise ValueError("api: the Responses API has no seed, stop or prompt_cache: cache_control; remove them")
        if self.client_key_file is not None and self.client_cert_file is None:
            raise ValueError("client_key_file: set client_cert_file too")
        return self

    def within(self, outer: OneModelSettings, field: str = "model") -> Self:
        """Return these settings with unset fields taken from `outer`; null counts as set.

        What belongs to one model, such as prices, temperature and the context window, is not inherited by another; what
        belongs to one endpoint, such as headers, not by another endpoint. A key is sent only to the endpoint that it
        was configured for: settings with another base_url need their own api_key_env. Another api_key_env alone is
        another key for the same endpoint. Misconfigured names `field`, the place of these settings.
        """
        unset = type(self).model_fields.keys() & type(outer).model_fields.keys() - self.model_fields_set
        if len(unset & _PRICES) < len(_PRICES):
            unset -= _PRICES
        whole = self.model_copy(update={name: getattr(outer, name) for name in unset - _OF_ONE_ENDPOINT})
        if whole.resolved_base_url() == outer.resolved_base_url():
            same = whole.resolved_name() == outer.resolved_name()
            inherited = unset & (_OF_ONE_ENDPOINT if same else _OF_ONE_ENDPOINT - _OF_ONE_MODEL)
            whole = whole.model_copy(update={name: getattr(outer, name) for name in inherited})
        elif "api_key_env" in unset:
            raise Misconfigured(
                f"{field}.base_url: set api_key_env beside it, the variable with the key for this endpoint, or "
                f"null for an endpoint without keys; {outer.api_key_env} belongs to another endpoint and is not "
                "sent here unless it is set here too"
            )
        try:
            return whole.fitting()
        except ValueError as error:
            raise Misconfigured(f"{field}.{error}") from error

    @property
    def priced(self) -> bool:
        return self.input_usd_per_mtok is not None

    def resolved_name(self) -> str:
        return self.name or os.environ.get("AIRLOCK_MODEL") or "gpt-5-mini"

    def resolved_base_url(self) -> str | None:
        """Return the endpoint; None for the openai package's default."""
        return self.base_url or os.environ.get("OPENAI_BASE_URL")

    def resolved_api_key(self, whose: str = "the model") -> str:
        """Return the key, "" for an endpoint without keys.

        Misconfigured if the environment lacks it, naming `whose` key it is.
        """
        if self.api_key_env is None:
            return ""
        key = os.environ.get(self.api_key_env)
        if not key:
            raise Misconfigured(
                f"no key for {whose}: set {self.api_key_env} in the gateway's environment, or set another variable in "
                "model.api_key_env, or null for an endpoint without keys"
            )
        return key

    def prices(self) -> Prices | None:
        if self.input_usd_per_mtok is None or self.output_usd_per_mtok is None:
            return None
        return Prices(**self._values(_PRICES))

    def request_settings(self) -> RequestSettings:
        return RequestSettings(**self._values(_REQUEST))

    def connection(self, whose: str = "the model") -> Connection:
        """Return how the endpoint is reached. Misconfigured names a missing variable or a file that cannot be used."""
        values = self._values(_CONNECTION)
        for name in ("headers", "query"):
            values[name] = _with_variables(values[name], f"{whose}: {name}")
        connection = Connection(**values)
        try:
            connection.tls()
        except ValueError as error:
            raise Misconfigured(f"{whose}: {error}") from error
        return connection

    def _values(self, names: frozenset[str]) -> dict[str, Any]:
        return {name: getattr(self, name) for name in names}


class ModelSettings(OneModelSettings):
    """A model and its fallbacks. OneModelSettings says what unset fields mean."""

    fallbacks: tuple[OneModelSettings, ...] = Field(
        default=(),
        max_length=8,
        examples=["`fallbacks: [{name: gpt-5-nano}]`"],
        description="the models to ask in turn while this one is unavailable or overloaded",
    )

    def in_order(self, field: str = "model") -> tuple[OneModelSettings, ...]:
        """Return this model and its fallbacks, which inherit from it. Misconfigured names the place of a fallback."""
        named = enumerate(self.fallbacks)
        return (self, *(fallback.within(self, f"{field}.fallbacks.{index}") for index, fallback in named))


def _with_variables(fields: Mapping[str, str], whose: str) -> dict[str, str]:
    def value(found: re.Match[str]) -> str:
        known = os.environ.get(found[1])
        if known is None:
            raise Misconfigured(f"{whose}: set {found[1]} in the gateway's environment")
        return known

    return {name: _VARIABLE.sub(value, text) for name, text in fields.items()}
