"""Decodes bytes as Java does: for the output of Kafka's tools for keys and values that are not UTF-8.

Both Java and Python insert one U+FFFD for each sequence that could have started a character, with one
difference: the encoding of a surrogate (ED, then A0 to BF) is one such sequence for Java, even if it is
incomplete; Python replaces each of its bytes.

Source: OpenJDK 17, ``String.java`` (``decodeUTF8_UTF16``); compared with it on all relevant short sequences
of bytes.
"""

from __future__ import annotations

import re
from typing import Final

_SURROGATE: Final = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
_REPLACEMENT: Final = "\ufffd".encode()


def java_text(data: bytes) -> str:
    """Returns ``new String(data, UTF_8)`` of Java."""
    if b"\xed" in data:
        data = _SURROGATE.sub(_REPLACEMENT, data)
    return data.decode("utf-8", "replace")
