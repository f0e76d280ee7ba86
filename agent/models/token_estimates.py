"""Tokens of messages, requests and attempts, estimated: no tokenizer fits every model."""

import json
from collections.abc import Iterable

from agent.hooks.hook import InferenceRequest
from agent.messages import Message, ToolSpec, Usage

CHARS_PER_TOKEN = 4
# Endpoints scale images down, and count a page of a PDF as its text and an image.
_IMAGE_TOKENS = 1_000
_PDF_BYTES_PER_TOKEN = 32
_PDF_TOKENS_LIMIT = 50_000


def text_tokens(chars: int) -> int:
    """Return the estimate for so many characters of text."""
    return -(-chars // CHARS_PER_TOKEN)


def message_tokens(message: Message) -> int:
    """Return the estimate for a message: its content, its tool calls, its attachments, and reasoning that is kept."""
    calls = sum(len(call.name) + len(json.dumps(call.arguments or {})) for call in message.tool_calls)
    kept = len(json.dumps(message.provider_data.data)) if message.provider_data is not None else 0
    shown = sum(file_tokens(one.media_type, one.size_bytes) for one in message.attachments)
    return text_tokens(len(message.content) + calls + kept) + shown


def file_tokens(media_type: str, size_bytes: int) -> int:
    """Return the estimate for a file that is shown: images cost about the same, a PDF as much as there is in it."""
    if media_type.startswith("image/"):
        return _IMAGE_TOKENS
    return min(max(size_bytes // _PDF_BYTES_PER_TOKEN, _IMAGE_TOKENS), _PDF_TOKENS_LIMIT)


def messages_tokens(messages: Iterable[Message]) -> int:
    """Return the estimate for messages."""
    return sum(message_tokens(message) for message in messages)


def request_tokens(request: InferenceRequest) -> int:
    """Return the estimate for all that is sent."""
    return messages_tokens(request.messages) + prompt_tokens(request.system_prompt, request.tools)


def prompt_tokens(system_prompt: str, tools: Iterable[ToolSpec]) -> int:
    """Return the estimate for what is sent besides the messages."""
    chars = sum(len(tool.name) + len(tool.description) + len(json.dumps(tool.parameters)) for tool in tools)
    return text_tokens(len(system_prompt) + chars)


def lost_usage(sent_tokens: int, received_chars: int) -> Usage:
    """Return the estimate for an attempt whose end is not known."""
    received = text_tokens(received_chars)
    return Usage(input_tokens=sent_tokens, output_tokens=received, estimated_tokens=sent_tokens + received)
