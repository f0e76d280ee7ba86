"""What an endpoint's complaints usually mean, and the setting to change: tables of patterns and sentences.

The first row that matches counts. A sentence names settings as they are written in YAML; {model} is the model's name.
Endpoints choose the words: patterns repeat nothing without a bound, so that no words take long to search.
"""

import re
from collections.abc import Iterable

_KEY = "check the model's API key, which api_key_env names"
_CREDIT = "the account of the API key has no credit left: add some, or let api_key_env name the key of another account"
CUT_OFF = "see its log, and the limits of what stands between; base_url may be one that lasts longer"
_CLIENT = "it wants a client certificate: set client_cert_file and client_key_file"
_NO_TOOLS = "the model cannot call tools there: set name to a model that can"
_TEMPLATE = "the server's chat template does not take this conversation: give it another, or set name to another model"

_NO_CREDIT = r"credit balance|insufficient[ _](?:balance|credits?|quota|funds)|billing_hard_limit"

# The same request gets the same answer: asking again is of no use, whatever the status.
_FINAL = (
    (
        r"enable-auto-tool-choice|tool-call-parser",
        "vLLM was started without tool calls: start it with these options, or set tool_choice to none",
    ),
    (r"requires --jinja", "llama-server was started without tool calls: start it with --jinja"),
    (
        r"tools with stream|verified to stream|not support stream|stream\w{0,9} (?:is |are )?not (?:supported|allowed)",
        "it does not stream this: set stream to false",
    ),
    (r"v1/responses\b", "this model wants another API: set api to responses"),
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
    (r"api[-_ ]?version", "the version of the API is missing, or unknown there: set api-version in query"),
    (
        r"content_filter|content (?:management|usage) policy|ResponsibleAI",
        "a content filter refused the conversation: change the task, or the filter at the provider",
    ),
    (
        r"data policy|allowed providers|ignored providers",
        "the account's privacy settings leave no provider: change them, or set provider in extra",
    ),
    (r"try pulling", "the server has no such model: pull it there, or set name to one that it has"),
    (
        r"model_not_found|(?:no such|unknown|invalid) model|not a valid model|model.{0,120}(?:not found|not exist)",
        "the endpoint has no model {model}: set name to one that it lists",
    ),
    (r"invalid_api_key|(?:incorrect|invalid) (?:x-)?api[- ]key|api key not valid|no auth credentials", _KEY),
    (
        r"max_?\w{0,20}tokens\b.{0,80}(?:too large|at most|exceed|greater|less than)|at most \d+ completion tokens",
        "more is asked for than the model can write: lower max_output_tokens",
    ),
    (r"HTTP request (?:was )?(?:sent )?to (?:an? )?HTTPS", "it speaks TLS on this port: write https:// in base_url"),
    (r"No required SSL certificate", _CLIENT),
)

# It may be better in a while.
_PASSING = (
    (r"loading model|model is (?:currently |still )?(?:being )?load", "the server still loads the model: wait for it"),
)

_BY_STATUS = {
    401: _KEY,
    402: _CREDIT,
    403: f"{_KEY}, what it may use, and base_url",
    404: "check base_url, which often ends with /v1, and the model's name {model}",
    405: "base_url leads to something else: it often ends with /v1",
    407: "the proxy wants a user and a password: write them into proxy",
    408: "something on the way waits for less than timeout_s: raise its limit",
    409: "the endpoint is busy with something that this request conflicts with",
    429: "too much is asked at once with this API key: lower concurrent_requests, or raise the limit at the provider",
    499: "something on the way gave up: its limit is below timeout_s",
    500: "the endpoint failed: see its log",
    504: "something on the way waits for less than timeout_s: raise its limit",
    524: "something on the way waits for less than timeout_s: raise its limit",
}
_AWAY = "the server behind this address is away or overloaded: see that it runs, or set base_url to another"
_UNSUITABLE = "the request does not suit this endpoint: check base_url and the model's settings"

# Where a parameter of the request comes from another setting than one of its name.
_SETTINGS = {
    "max_tokens": "set max_tokens_name to max_completion_tokens",
    "max_completion_tokens": "set max_tokens_name to max_tokens",
    "stream": "set stream to false",
    "stream_options": "set stream to false",
    "tools": _NO_TOOLS,
}
_SET = frozenset(
    {
        "temperature",
        "top_p",
        "seed",
        "stop",
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
        "this machine does not trust who signed the certificate: set ca_file to that authority's certificate",
    ),
    (
        r"certificate (?:has expired|is not yet valid)",
        "renew the certificate there, check this machine's clock, or set base_url to another address",
    ),
    (r"mismatch, certificate", "the certificate is for another name: set base_url to that name"),
    (r"certificate.?required|handshake.?failure|bad.?certificate", _CLIENT),
    (r"wrong.?version.?number|record layer", "it does not speak TLS on this port: write http:// in base_url"),
    (
        r"name or service|name resolution|nodename|no address",
        "its name has no address: check base_url and this machine's DNS, or set proxy",
    ),
    (r"^407 ", "the proxy wants a user and a password: write them into proxy"),
    (r"^[45]\d\d ", "the proxy does not let this machine through: check proxy and base_url"),
    (r"^peer ", f"it hung up in the midst of its answer: {CUT_OFF}"),
    (r"attempts failed|refused|unreachable", "nothing answers there: check base_url, proxy, and that the server runs"),
    (
        r"illegal|malformed|^bad |too (?:many|long|large)|receive buffer|data received",
        "what answers there does not speak HTTP as it should: check base_url and proxy",
    ),
    (r"without sending", "it took the request and hung up: check http or https in base_url, and the server's log"),
)

_NO_CHAT = "that is no chat completion: check base_url, which often ends with /v1"
_ANSWERS = (
    (r"^an answer (?:with the content-encoding|that cannot be decompressed)", "check proxy, and what compresses there"),
    (r"of reasoning and no", "raise max_output_tokens, or check how the server separates reasoning and answer"),
    (r"^a tool call as text", "start the server with a parser for this model's tool calls, or set stream to false"),
    (
        r"^an empty answer",
        "the model said nothing, or the server lost it: set stream to false, or name to another model",
    ),
    (
        r"^an empty body|^a stream that ended",
        "the server may not stream with tools: see its log, or set stream to false",
    ),
    (r"^an answer without end", "the model repeats itself: lower max_output_tokens"),
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
        known = f"the endpoint wants another {named.group(named.lastgroup or 0)}: change it"
    if known is None and status is not None:
        known = _BY_STATUS.get(status) or (_AWAY if status > 500 else _UNSUITABLE)
    return known or "the endpoint failed in the midst of its answer: see its log"


def connection_meaning(cause: str) -> str:
    """Return what the failure of a connection usually means."""
    return _first(_CONNECTIONS, cause) or _DROPPED


def answer_meaning(what: str) -> str:
    """Return what it usually means that `what` came as an answer."""
    return _first(_ANSWERS, what) or _NO_CHAT


def _first(rows: Iterable[tuple[str, str]], words: str) -> str | None:
    return next((says for pattern, says in rows if re.search(pattern, words, re.IGNORECASE)), None)
