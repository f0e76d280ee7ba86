"""What an endpoint's complaints usually mean, and the setting to change: tables of patterns and sentences.

The first row that matches counts. A sentence names settings as they are written in YAML; {model} is the model's name.
Endpoints choose the words: patterns repeat nothing without a bound, so that no words take long to search.
"""

import re
from collections.abc import Iterable

_KEY = "check the API key in the variable that api_key_env names"
_CREDIT = "the account of the API key has no credit left: add some, or set api_key_env to the variable of another key"
CUT_OFF = "check the server's log and the time limits of proxies in between, or set base_url to bypass them"
_CLIENT = "the server requires a client certificate: set client_cert_file and client_key_file"
_NO_TOOLS = "the model cannot call tools at this endpoint: set name to one that can"
_TEMPLATE = "the server's chat template rejects the conversation: start it with another, or set name to another model"

_NO_CREDIT = r"credit balance|insufficient[ _](?:balance|credits?|quota|funds)|billing_hard_limit"

# The same request gets the same answer: asking again is of no use, whatever the status.
_FINAL = (
    (
        r"enable-auto-tool-choice|tool-call-parser",
        "vLLM was started without tool calling: start it with these options, or set tool_choice to none",
    ),
    (r"requires --jinja", "llama-server was started without tool calling: start it with --jinja"),
    (
        r"tools with stream|verified to stream|not support stream|stream\w{0,9} (?:is |are )?not (?:supported|allowed)",
        "the endpoint does not stream this request: set stream to false",
    ),
    (r"v1/responses\b", "this model needs the Responses API: set api to responses"),
    (
        r"support tool use|not support (?:tools?|function)|(?:tool|function)[\w ]{0,30} (?:is|are) not (?:suppor|ena)",
        _NO_TOOLS,
    ),
    (r"unsupported param: tools", _NO_TOOLS),
    (r"roles must alternate|jinja|chat[ _]template|raise_exception", _TEMPLATE),
    (
        r"DeploymentNotFound|deployment for this resource does not exist",
        "Azure has no such deployment: set name to the deployment's name, and base_url to its resource",
    ),
    (r"\bresource not found", "check base_url and, on Azure, name and the api-version in query"),
    (r"api[-_ ]?version", "the API version is missing or unknown: set api-version in query"),
    (
        r"content_filter|content (?:management|usage) policy|ResponsibleAI",
        "a content filter refused the conversation: change the task, or the filter at the provider",
    ),
    (
        r"data policy|allowed providers|ignored providers",
        "the account's privacy settings exclude every provider: change them, or set provider in extra",
    ),
    (r"try pulling", "the server has no such model: pull it there, or set name to one that it has"),
    (
        r"model_not_found|(?:no such|unknown|invalid) model|not a valid model|model.{0,120}(?:not found|not exist)",
        "the endpoint has no model {model}: set name to one that it lists",
    ),
    (r"invalid_api_key|(?:incorrect|invalid) (?:x-)?api[- ]key|api key not valid|no auth credentials", _KEY),
    (
        r"max_?\w{0,20}tokens\b.{0,80}(?:too large|at most|exceed|greater|less than)|at most \d+ completion tokens",
        "max_output_tokens is more than the model can write: lower it",
    ),
    (
        r"HTTP request (?:was )?(?:sent )?to (?:an? )?HTTPS",
        "the server expects TLS on this port: use https:// in base_url",
    ),
    (r"No required SSL certificate", _CLIENT),
)

# It may be better in a while.
_PASSING = (
    (
        r"loading model|model is (?:currently |still )?(?:being )?load",
        "the server is still loading the model: wait until it has",
    ),
)

_IN_BETWEEN = "the server, or a proxy in between, has a shorter time limit than timeout_s: raise that limit"

_BY_STATUS = {
    401: _KEY,
    402: _CREDIT,
    403: f"{_KEY}, its permissions, and base_url",
    404: "check base_url, which often ends with /v1, and the model's name {model}",
    405: "base_url does not lead to the API: it often ends with /v1",
    407: "the proxy requires a user and a password: put them in proxy",
    408: _IN_BETWEEN,
    409: "the endpoint is busy with something that conflicts with this request",
    429: "too many requests or tokens at once for this API key: lower concurrent_requests, or raise its limit",
    499: _IN_BETWEEN,
    500: "the endpoint failed: check its log",
    504: _IN_BETWEEN,
    524: _IN_BETWEEN,
}
_AWAY = "the server behind this address is down or overloaded: check that it runs, or set base_url to another"
_UNSUITABLE = "the endpoint does not accept this request: check base_url and the model's settings"

# Where a parameter of the request comes from another setting than one of its name.
_SETTINGS = {
    "max_tokens": "set max_tokens_name to max_completion_tokens",
    "max_completion_tokens": "set max_tokens_name to max_tokens",
    "stream": "set stream to false",
    "stream_options": "set stream to false",
    "tools": _NO_TOOLS,
    "reasoning": "remove reasoning_effort",
    "text": "remove response_format",
    "prompt_cache_key": "remove prompt_cache",
    "cache_control": "remove prompt_cache",
}
_SET = frozenset(
    {
        "temperature",
        "top_p",
        "seed",
        "stop",
        "max_output_tokens",
        "reasoning_effort",
        "tool_choice",
        "parallel_tool_calls",
        "response_format",
    }
)
_NAMED = re.compile(rf"\b(?P<name>{'|'.join(sorted(_SET - {'seed', 'stop'}))})\b|['\"`](?P<quoted>seed|stop)['\"`]")

_CONNECTIONS = (
    (
        r"self[- ]signed|issuer certificate",
        "this machine does not trust the issuer of the certificate: set ca_file to the issuer's certificate",
    ),
    (
        r"certificate (?:has expired|is not yet valid)",
        "renew the server's certificate, check this machine's clock, or set base_url to another address",
    ),
    (r"mismatch, certificate", "the certificate is for another name: set base_url to that name"),
    (r"certificate.?required|handshake.?failure|bad.?certificate", _CLIENT),
    (r"wrong.?version.?number|record layer", "the server does not speak TLS on this port: use http:// in base_url"),
    (
        r"name or service|name resolution|nodename|no address",
        "the host name has no address: check base_url and this machine's DNS, or set proxy",
    ),
    (r"^407 ", "the proxy requires a user and a password: put them in proxy"),
    (r"^[45]\d\d ", "the proxy refuses this connection: check proxy and base_url"),
    (r"^peer ", f"the connection ended in the middle of an answer: {CUT_OFF}"),
    (
        r"attempts failed|refused|unreachable",
        "nothing answers at this address: check base_url, proxy, and that the server runs",
    ),
    (
        r"illegal|malformed|^bad |too (?:many|long|large)|receive buffer|data received",
        "the answer is not valid HTTP: check base_url and proxy",
    ),
    (
        r"without sending",
        "the server closed the connection without an answer: check http or https in base_url, and its log",
    ),
)

_NO_CHAT = "this is not a model's answer: check base_url, which often ends with /v1"
_ANSWERS = (
    (
        r"^an answer (?:with the content-encoding|that cannot be decompressed)",
        "check proxy, and what compresses the endpoint's answers",
    ),
    (r"of reasoning and no", "raise max_output_tokens, or check how the server separates reasoning from the answer"),
    (r"^a tool call as text", "start the server with a parser for this model's tool calls, or set stream to false"),
    (
        r"^an empty answer",
        "the model wrote nothing, or the server lost it: set stream to false, or set name to another model",
    ),
    (
        r"^an empty body|^a stream that ended",
        "the server may be unable to stream with tools: check its log, or set stream to false",
    ),
    (r"^an answer without end", "the model may repeat itself: lower max_output_tokens"),
)
_DROPPED = "check base_url and that the server runs"


def settled(words: str, unsupported: str | None) -> str | None:
    """Return what a complaint means that the same request would get again, None for any other.

    `words` are the endpoint's, with its code; `unsupported` is the parameter that it does not take, if that is it.
    """
    if unsupported:
        where = "" if unsupported in _SET else " from extra"
        return f"the endpoint does not take {unsupported}: {_SETTINGS.get(unsupported) or f'remove it{where}'}"
    return _CREDIT if re.search(_NO_CREDIT, words, re.IGNORECASE) else _first(_FINAL, words)


def meaning(words: str, unsupported: str | None, status: int | None) -> str:
    """Return what a complaint with this status usually means."""
    known = settled(words, unsupported) or _first(_PASSING, words)
    if status == 429 and known != _CREDIT:
        known = None  # messages about rates have words of the others
    if known is None and status in (400, 422) and (named := _NAMED.search(words)):
        known = f"the endpoint does not accept this {named.group(named.lastgroup or 0)}: change it"
    if known is None and status is not None:
        known = _BY_STATUS.get(status) or (_AWAY if status > 500 else _UNSUITABLE)
    return known or "the endpoint failed in the middle of its answer: check its log"


def connection_meaning(cause: str) -> str:
    """Return what the failure of a connection usually means."""
    return _first(_CONNECTIONS, cause) or _DROPPED


def answer_meaning(what: str) -> str:
    """Return what it usually means that `what` came as an answer."""
    return _first(_ANSWERS, what) or _NO_CHAT


def _first(rows: Iterable[tuple[str, str]], words: str) -> str | None:
    return next((says for pattern, says in rows if re.search(pattern, words, re.IGNORECASE)), None)
