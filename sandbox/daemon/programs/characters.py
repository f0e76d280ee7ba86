"""Counts characters in bytes without decoding them: each byte that is not a UTF-8 continuation starts one.

Invalid UTF-8 may contain any number of bytes and no character, so callers must bound bytes too: valid text has at most
four bytes a character.
"""

BYTES_PER_CHARACTER = 4
_CONTINUATION = bytes(range(0x80, 0xC0))


def count_characters(data: bytes) -> int:
    """Return how many characters start in `data`."""
    return len(data) if data.isascii() else len(data.translate(None, _CONTINUATION))


def prefix_length(data: bytes, characters: int) -> int:
    """Return the length in bytes of the first `characters` characters, without splitting one."""
    length = _prefix_length(data, characters)
    return min(length, BYTES_PER_CHARACTER * characters)


def _prefix_length(data: bytes, characters: int) -> int:
    if data.isascii():
        return min(characters, len(data))
    # Bisect: the character after the last wanted one starts in [start, end).
    start, end, left = 0, len(data), characters
    if count_characters(data) <= characters:
        return len(data)
    while end - start > 1:
        middle = (start + end) // 2
        begun = count_characters(data[start:middle])
        if begun > left:
            end = middle
        else:
            start, left = middle, left - begun
    return start


def suffix_start(data: bytes, characters: int) -> int:
    """Return the offset of the last `characters` characters."""
    excess = count_characters(data) - characters
    start = _prefix_length(data, excess) if excess > 0 else 0
    return max(start, len(data) - BYTES_PER_CHARACTER * characters)
