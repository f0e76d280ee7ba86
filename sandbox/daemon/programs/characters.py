"""Counting characters in bytes without decoding them: every byte that is not a UTF-8 continuation begins one.

Invalid UTF-8 can hold arbitrarily many bytes and no character, so whoever counts also bounds bytes: valid text has four
bytes a character at most.
"""

BYTES_PER_CHARACTER = 4
_CONTINUATION = bytes(range(0x80, 0xC0))


def count_characters(data: bytes) -> int:
    """Return how many characters begin in `data`."""
    return len(data) if data.isascii() else len(data.translate(None, _CONTINUATION))


def prefix_length(data: bytes, characters: int) -> int:
    """Return the length in bytes of the first `characters` characters; a cut never splits one."""
    length = _prefix_length(data, characters)
    return min(length, BYTES_PER_CHARACTER * characters)


def _prefix_length(data: bytes, characters: int) -> int:
    if data.isascii():
        return min(characters, len(data))
    # The character after the last one wanted begins in [start, end); halve until it is one byte.
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
    """Return where the last `characters` characters begin."""
    excess = count_characters(data) - characters
    start = _prefix_length(data, excess) if excess > 0 else 0
    return max(start, len(data) - BYTES_PER_CHARACTER * characters)
