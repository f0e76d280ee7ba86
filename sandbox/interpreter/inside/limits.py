"""How much of one cell is sent. The gateway's end checks all of it (sandbox/interpreter/frames.py)."""

WINDOW_BYTES = 192 * 1024
"""How far frames may be ahead of the reader: the daemon keeps little more."""
OUTPUT_LIMIT_BYTES = 1024 * 1024
"""Of output; past it only the end is kept."""
TAIL_BYTES = 64 * 1024
OBJECTS_LIMIT = 32
"""Of objects that are shown; the next two are for all of them together."""
TEXTS_LIMIT_CHARS = 200_000
IMAGES_LIMIT_BYTES = 8 * 1024 * 1024
