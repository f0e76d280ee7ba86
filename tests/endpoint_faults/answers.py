"""Faults of answers that begin with HTTP 200: their JSON, their streams, their calls and their usage."""

from __future__ import annotations

import json
from typing import Any

from agent.errors import ContextLengthExceeded, ModelNonsense, ModelRefused, ModelUnavailable
from agent.messages import ToolCall
from tests.misbehaving_endpoint import ANSWER, SECRETS, Fault, answering, chunk, completion, events, streaming

_DONE = "data: [DONE]"
_SAID = chunk({"content": ANSWER})
_STOP = chunk({}, "stop")
_TOOL_CALL = '<tool_call>\n{"name": "ls", "arguments": {"path": "."}}\n</tool_call>'
_OVERFLOW = {
    "code": 400,
    "message": "the request exceeds the available context size",
    "type": "exceed_context_size_error",
}


def _odd(name: str, document: Any, says: str, *, setting: str = "base_url", stream: bool = False) -> Fault:
    play = streaming(document, _DONE) if stream else answering(document)
    return Fault(name=name, play=play, stream=stream, error=ModelNonsense, says=(says,), setting=setting)


def _called(*fragments: Any) -> Any:
    return streaming(*(chunk({"tool_calls": [fragment]}) for fragment in fragments), chunk({}, "tool_calls"), _DONE)


def _fragment(arguments: Any, *, name: Any = "ls", **rest: Any) -> dict[str, Any]:
    return {"function": {"name": name, "arguments": arguments}, **rest}


def _call(name: str = "ls", arguments: Any = None, raw: str = "") -> ToolCall:
    return ToolCall(id="", name=name, arguments=arguments, raw_arguments=raw)


ERRORS = (
    Fault(
        name="an error in a document",
        stream=False,
        play=answering({"error": {"message": f"upstream is down {SECRETS}", "code": 502}}),
        error=ModelUnavailable,
        says=("upstream is down", "down or overloaded"),
        setting="base_url",
    ),
    Fault(
        name="an error in a stream",
        play=streaming({"error": {"message": f"Overloaded {SECRETS}", "type": "overloaded_error"}}),
        error=ModelUnavailable,
        says=("Overloaded", "in the middle of its answer"),
    ),
    Fault(
        name="an error after text",
        play=streaming(_SAID, {"error": {"message": f"worker died {SECRETS}", "code": 500}}, _DONE),
        error=ModelUnavailable,
        says=("worker died",),
    ),
    Fault(
        name="an error in a choice",
        play=streaming({"choices": [{"index": 0, "error": {"message": f"provider gone {SECRETS}", "code": 502}}]}),
        error=ModelUnavailable,
        says=("provider gone",),
        setting="base_url",
    ),
    Fault(
        name="an error in a field of its own",
        play=streaming(_SAID, f"error: {json.dumps(_OVERFLOW)}"),
        error=ContextLengthExceeded,
        says=("exceeds the available context size",),
        setting="context_window_tokens",
    ),
    Fault(
        name="an error in an event of its own",
        play=streaming(_SAID, f"event: error\ndata: it broke {SECRETS}"),
        error=ModelUnavailable,
        says=("it broke",),
    ),
    Fault(
        name="a template's error in a stream",
        play=streaming("event: error\ndata: Error rendering prompt with jinja template: Cannot call ObjectValue"),
        error=ModelRefused,
        says=("jinja template", "chat template"),
        setting="name",
    ),
    Fault(
        name="plain text in the midst of a stream",
        play=streaming(_SAID, f"Internal Server Error\n{SECRETS}"),
        error=ModelNonsense,
        says=("ended with 'Internal Server Error",),
    ),
    Fault(
        name="finish reason error",
        play=streaming(_SAID, chunk({}, "error"), _DONE),
        error=ModelUnavailable,
        says=("it does not say which",),
    ),
)

SHAPES = (
    _odd("a document that is a number", 3, "JSON that is not an object"),
    _odd("a document that is a text", "null", "JSON that is not an object"),
    _odd("a document without choices", {"type": "message", "content": [{"text": "hi"}]}, "without choices"),
    _odd("choices that are an object", {"choices": {"0": {}}}, "without choices"),
    _odd("a choice that is a text", {"choices": ["hi"]}, "without choices"),
    _odd("a message that is a number", completion(3), "an empty answer", setting="stream"),
    _odd("a content that is a number", completion({"content": 3}), "an empty answer", setting="stream"),
    _odd(
        "a completion of another API",
        {"choices": [{"text": "hi", "finish_reason": "stop"}]},
        "an empty answer",
        setting="stream",
    ),
    _odd("pieces that are lists", [[]], "JSON that is not an object", stream=True),
    _odd(
        "deltas that are lists",
        {"choices": [{"delta": [3], "finish_reason": "stop"}]},
        "empty",
        setting="stream",
        stream=True,
    ),
    _odd("nothing but the end", _DONE, "ended with nothing", setting="stream", stream=True),
    _odd("JSON that is cut", '{"choices": [{"message": {"con', "not JSON"),
    _odd("a native stream of Ollama", '{"message":{"content":"h"},"done":false}\n{"done":true}', "not JSON"),
    _odd("JSON nested without end", "[" * 90_000, "not JSON"),
    _odd("JSON of too many values", json.dumps({"choices": [0] * 200_000}), "more than 100,000 values"),
    _odd("an empty body", "", "an empty body", setting="stream"),
    _odd("a text", f"upstream connect error {SECRETS}", "not JSON: 'upstream connect error"),
    Fault(
        name="a number where text may be", play=streaming(chunk({"content": ANSWER, "role": 7, "refusal": 3}), _STOP)
    ),
    Fault(
        name="content as a list of parts",
        stream=False,
        play=answering(completion({"content": [{"type": "text", "text": ANSWER}, {"type": "image"}, 3]})),
    ),
    Fault(
        name="numbers that are none",
        stream=False,
        play=answering(json.dumps(completion({"content": ANSWER, "x": float("nan")}, n=float("inf")))),
    ),
    Fault(
        name="half of a surrogate pair",
        play=streaming(chunk({"content": "caf\ud800"}), _STOP),
        answer="caf\ufffd",
    ),
    Fault(name="a null in each field", play=streaming(chunk({"content": None, "tool_calls": None}), _SAID, _STOP)),
)

STREAMS = (
    Fault(name="no [DONE]", play=streaming(_SAID, _STOP)),
    Fault(name="no finish reason, and [DONE]", play=streaming(_SAID, _DONE)),
    Fault(
        name="neither finish reason nor [DONE]",
        play=streaming(_SAID),
        error=ModelUnavailable,
        says=("ended its stream before the answer was complete",),
    ),
    Fault(name="[DONE] again and again", play=streaming(_SAID, _STOP, *[_DONE] * 9)),
    Fault(name="a byte order mark", play=answering("\ufeff" + events(_SAID, _STOP, _DONE))),
    Fault(name="CRLF", play=streaming(_SAID, _STOP, _DONE, end="\r\n\r\n")),
    Fault(name="CR", play=streaming(_SAID, _STOP, _DONE, end="\r\r")),
    Fault(name="a document instead of a stream", play=answering(completion({"content": ANSWER}))),
    Fault(name="a stream instead of a document", play=streaming(_SAID, _STOP, _DONE), stream=False),
    Fault(name="an unknown finish reason", play=streaming(_SAID, chunk({}, "eos_token"), _DONE)),
    Fault(name="a finish reason that is a number", play=streaming(_SAID, chunk({}, 7), _DONE)),
    Fault(name="the length used up by nothing", play=streaming(chunk({}, "length"), _DONE), answer=""),
    Fault(
        name="an empty answer",
        play=streaming(chunk({"content": ""}), _STOP, _DONE),
        error=ModelNonsense,
        says=("an empty answer (finish reason stop)",),
        setting="stream",
    ),
    Fault(
        name="nothing but reasoning",
        play=streaming(chunk({"reasoning_content": "hm " * 100}), _STOP, _DONE),
        error=ModelNonsense,
        says=("300 characters of reasoning and no answer",),
        setting="max_output_tokens",
    ),
    Fault(
        name="a finish reason that repeats secrets",
        play=streaming(chunk({}, f"{SECRETS}\n{SECRETS}"), _DONE),
        error=ModelNonsense,
        setting="stream",
    ),
)

_LS = '{"path": "."}'
_LS_CALL = _call(arguments={"path": "."}, raw=_LS)

CALLS = (
    Fault(name="a call without an id", play=_called(_fragment(_LS, index=0)), answer="", calls=(_LS_CALL,)),
    Fault(name="a call without an index", play=_called(_fragment(_LS, id="1")), answer="", calls=(_LS_CALL,)),
    Fault(
        name="a call without a name",
        play=_called(_fragment(_LS, id="1", index=0, name=None)),
        answer="",
        calls=(_call(name="", arguments={"path": "."}, raw=_LS),),
    ),
    Fault(
        name="calls with one id",
        play=_called(_fragment(_LS, id="1", index=0), _fragment("{}", id="1", index=1, name="rm")),
        answer="",
        calls=(_LS_CALL, _call("rm", {}, "{}")),
    ),
    Fault(
        name="arguments as an object",
        play=_called(_fragment({"path": "."}, id="1", index=0)),
        answer="",
        calls=(_LS_CALL,),
    ),
    Fault(
        name="arguments that are cut",
        play=_called(_fragment('{"path": ', id="1", index=0)),
        answer="",
        calls=(_call(raw='{"path": '),),
    ),
    Fault(
        name="arguments with a number that is none",
        play=_called(_fragment('{"n": NaN}', id="1", index=0)),
        answer="",
        calls=(_call(raw='{"n": NaN}'),),
    ),
    Fault(
        name="arguments that are null",
        play=_called(_fragment(None, id="1", index=0)),
        answer="",
        calls=(_call(arguments={}),),
    ),
    Fault(
        name="calls without end",
        play=_called(*(_fragment("{}", id=str(number), index=number) for number in range(129))),
        error=ModelNonsense,
        says=("without end",),
    ),
    Fault(
        name="a call written as text",
        play=streaming(chunk({"content": _TOOL_CALL}), _STOP, _DONE),
        error=ModelNonsense,
        says=("a tool call as text", "<tool_call>"),
        setting="stream",
    ),
    Fault(
        name="a call written as text by Mistral",
        stream=False,
        play=answering(completion({"content": '[TOOL_CALLS][{"name": "ls", "arguments": {}}]'})),
        error=ModelNonsense,
        says=("a tool call as text", "[TOOL_CALLS]"),
        setting="stream",
    ),
)

USAGE = tuple(
    Fault(name=f"usage {name}", play=streaming(_SAID, {**_STOP, "usage": usage}, _DONE))
    for name, usage in (
        ("below zero", {"prompt_tokens": -5, "completion_tokens": -5}),
        ("beyond all bounds", {"prompt_tokens": 10**30, "completion_tokens": 10**30}),
        ("of texts", {"prompt_tokens": "many", "completion_tokens": "few"}),
        ("as a text", "many"),
        ("as a list", [1, 2]),
    )
)

ANSWERS = (*ERRORS, *SHAPES, *STREAMS, *CALLS, *USAGE)
