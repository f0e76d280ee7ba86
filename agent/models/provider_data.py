"""What an endpoint wants back of its own answers, such as encrypted or signed reasoning.

It is kept with the message, opaque, and returned only to the endpoint and model that it came from. What is too long, or
what no store returns as it was, is left out: the message is complete without it.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agent.messages import Message, ProviderData

LIMIT_CHARS = 256 * 1024
"""For one message, as JSON."""

# The text of a block, which streams send in pieces.
_TEXTS = ("text", "thinking", "summary")


def kept(provider: str | None, data: Mapping[str, Any]) -> ProviderData | None:
    """Return the data as it is kept; None if there is none or it cannot be kept. `provider` None keeps nothing."""
    if provider is None or not data:
        return None
    try:
        return ProviderData(provider=provider, data=dict(data)) if json_chars(data) <= LIMIT_CHARS else None
    except ValueError:  # half of a surrogate pair, or nested too deeply
        return None


def json_chars(data: Any) -> float:
    """Return the length of a value as JSON; infinity for one that cannot be kept, with NaN or nested too deeply."""
    try:
        return len(json.dumps(data, allow_nan=False))
    except (ValueError, RecursionError):
        return math.inf


def kept_for(message: Message, provider: str | None) -> Mapping[str, Any]:
    """Return the data that `provider` gets back with a message, empty if that came from elsewhere."""
    kept_data = message.provider_data
    return kept_data.data if kept_data is not None and kept_data.provider == provider else {}


@dataclass
class Blocks:
    """Blocks of reasoning, such as OpenRouter's reasoning_details, put together from the pieces of a stream."""

    _blocks: list[tuple[dict[str, Any], dict[str, list[str]]]] = field(default_factory=list)
    _chars: float = 0

    def add(self, pieces: Any, *, whole: bool) -> str:
        """Add the pieces of a chunk, or the blocks of a `whole` answer; return their text."""
        said: list[str] = []
        for piece in pieces if isinstance(pieces, list) else ():
            if isinstance(piece, dict):
                texts = {name: text for name in _TEXTS if isinstance(text := piece.get(name), str)}
                said.extend(texts.values())
                self._chars += 1 + sum(map(len, texts.values()))
                if self._chars <= LIMIT_CHARS:
                    try:
                        self._add(piece, texts, whole=whole)
                    except RecursionError:  # it cannot be compared, nor kept
                        self._chars = math.inf
        return "".join(said)

    def _add(self, piece: dict[str, Any], texts: dict[str, str], *, whole: bool) -> None:
        if whole or not self._blocks or not _continues(self._blocks[-1][0], piece):
            self._blocks.append(({}, {}))
        known, written = self._blocks[-1]
        # Not what each piece repeats, such as its format.
        new = {name: value for name, value in piece.items() if name not in texts and known.get(name) != value}
        self._chars += json_chars(new)
        if self._chars > LIMIT_CHARS:
            self._blocks.clear()
            return
        # In the order of the endpoint's own keys. A later piece repeats or completes a value, and null says nothing.
        known.update({name: value for name, value in piece.items() if value is not None or name not in known})
        for name, text in texts.items():
            written.setdefault(name, []).append(text)

    def whole(self) -> list[dict[str, Any]]:
        """Return the blocks; none if they are too long to be kept."""
        if self._chars > LIMIT_CHARS:
            return []
        return [known | {name: "".join(texts) for name, texts in written.items()} for known, written in self._blocks]


def _continues(block: dict[str, Any], piece: dict[str, Any]) -> bool:
    """Return whether a piece belongs to a block: encrypted blocks come whole, and a signature ends a block."""
    same = all(block.get(name) == piece.get(name) for name in ("type", "index"))
    return same and "data" not in piece and not block.get("signature")
