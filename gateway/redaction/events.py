"""Events without secrets: in the arguments of calls, and in whatever else their payloads hold."""

from agent.events import Event, EventSink
from gateway.redaction.finders import RedactionFailed
from gateway.redaction.redactor import WITHHELD, Redactor


def redacted_events(redactor: Redactor, events: EventSink) -> EventSink:
    """Return a sink that redacts what it passes on. The pieces of a model's text are each redacted alone.

    A program's output has been through the filter of the redaction hook, which knows where its pieces were cut.
    """
    if redactor.idle:
        return events

    def emit(event: Event) -> None:
        if event.type == "tool_output":
            events(event)
            return
        try:
            payload = {key: redactor.json(value) for key, value in event.payload.items()}
        except RedactionFailed:
            payload = {key: value if _is_plain(value) else WITHHELD for key, value in event.payload.items()}
        events(Event(event.type, payload))

    return emit


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, int | float)
