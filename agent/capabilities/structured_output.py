"""A final answer that is one JSON value and fits a schema; an invalid one is sent back with the errors.

The schema is a pydantic model class or a JSON Schema. The thread's metadata stores the value as the model wrote it; the
state's `output` is not stored. The hook is further in than self_critique: no critique is spent on an answer that does
not fit. The validators of a pydantic model run in a thread of this process: their author is responsible for the time
they take.
"""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, JsonValue, ValidationError

from agent.capabilities.final_json import MAX_VALUE_CHARS, json_in
from agent.capabilities.json_schema import MAX_ERRORS, checked, errors_of, short
from agent.hooks.hook import Hook
from agent.messages import Message
from agent.state import AgentState
from agent.tools.tool import Capability

VALUE = "structured_output.value"
"""The metadata key of the value."""

_RETRIES = "structured_output.retries"
_NAME = "structured_output"


class StructuredOutput(Hook):
    """Ends a run with an answer that fits, and asks `retries` times for one."""

    name = _NAME
    # Further in than flow, so that its reason for the stop comes first, and than self_critique, which reads it. At
    # before_inference it comes last: the schema is at the end of the system prompt.
    priority = -20
    timeout_s = 80.0  # the limits of errors_of come first

    def __init__(self, schema: Mapping[str, JsonValue], model: type[BaseModel] | None, retries: int) -> None:
        self.retries = retries
        self._schema = schema
        self._model = model
        self._instruction = (
            "Your final answer, the one message in which you call no tool, must be exactly one JSON value that fits "
            f"this JSON Schema, and nothing else: no text around it, no code fence.\n{json.dumps(schema)}"
        )

    async def execution_start(self, state: AgentState) -> AgentState:
        return _without_value(state)  # of an earlier run of the thread

    async def before_inference(self, state: AgentState) -> AgentState:
        return state.with_section(self._instruction).with_output_schema(self._schema)

    async def after_step(self, state: AgentState) -> AgentState:
        answer = state.current.final_answer
        if answer is None:
            return state
        value, output, errors = await self._judged(answer.message.content)
        if not errors:
            state = state.with_metadata(VALUE, value).with_(output=output)
            return state.allow_stop(self.name, "valid", "the answer fits the schema")
        # Another hook may have sent back an earlier answer that fitted: it is not this run's answer.
        state = _without_value(state)
        used = state.count(_RETRIES)
        if used >= self.retries:
            reason = f"{used + 1} answers did not fit the schema, {self.retries} retries are allowed; {errors[0]}"
            return state.forbid_continuation(self.name, "retries", reason)
        said = "\n".join(f"- {error}" for error in errors)
        request = f"Your answer does not fit the JSON Schema that it must fit:\n{said}\n"
        request += "Answer again with exactly one JSON value that fits, and nothing else."
        state = state.say(Message(role="user", content=request)).with_note(_RETRIES, used + 1)
        reason = f"the answer does not fit the schema, retry {used + 1} of {self.retries}: {errors[0]}"
        return state.request_continuation(self.name, "invalid", reason)

    async def _judged(self, answer: str) -> tuple[JsonValue, Any, list[str]]:
        """Return the value in an answer, the output and no errors, or the errors."""
        try:
            value = await asyncio.to_thread(json_in, answer)  # a large answer takes a while to read
            if len(json.dumps(value)) > MAX_VALUE_CHARS:
                raise ValueError(f"the value has more than {MAX_VALUE_CHARS} characters as JSON: make it shorter")
            if self._model is None:
                return value, value, await errors_of(self._schema, value)
            output, errors = await asyncio.to_thread(_read, self._model, value)  # other runs do not wait
        except ValueError as error:
            return None, None, [short(str(error))]
        return value, output, errors


def _without_value(state: AgentState) -> AgentState:
    return state.without_metadata(VALUE).with_(output=None)


def _read(model: type[BaseModel], value: JsonValue) -> tuple[Any, list[str]]:
    try:
        # As JSON, so that a strict model accepts types that JSON lacks, such as dates.
        return model.model_validate_json(json.dumps(value)), []
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)[:MAX_ERRORS]
        return None, [short(f"{'.'.join(map(str, one['loc'])) or 'the value'}: {one['msg']}") for one in found]
    except Exception as error:  # a validator that fails on an unexpected value
        return None, [short(f"the value was refused: {type(error).__name__}: {error}")]


def structured_output(schema: type[BaseModel] | Mapping[str, JsonValue], *, retries: int = 2) -> Capability:
    """Return the hook that checks the final answer. Raises ValueError for a bad schema and says where it is bad."""
    if retries < 0:
        raise ValueError(f"retries is {retries}; it must be 0 or more")
    if isinstance(schema, type):
        try:
            shown = schema.model_json_schema()
        except Exception as error:  # pydantic has several errors for types without a JSON Schema
            raise ValueError(f"{schema.__name__} has no JSON Schema: {error}") from error
        hook = StructuredOutput(shown, schema, retries)
    else:
        hook = StructuredOutput(checked(schema), None, retries)
    return Capability(_NAME, hooks=(hook,))
