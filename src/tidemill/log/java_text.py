"""Bytes as text, as Java reads them: what Kafka's tools print of keys and values that are no UTF-8.

Both Java and Python put one U+FFFD for each piece that could have begun a character, with one difference: the
encoding of a surrogate (ED, then A0 to BF) is one such piece for Java, however much of it is there; Python
counts its bytes.

Source: OpenJDK 17, ``String.java`` (``decodeUTF8_UTF16``); compared with it on all short sequences of bytes
that matter.
"""

from __future__ import annotations

import re
from typing import Final

_SURROGATE: Final = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
_REPLACEMENT: Final = "\ufffd".encode()


def java_text(data: bytes) -> str:
    """What ``new String(data, UTF_8)`` is in Java."""
    if b"\xed" in data:
        data = _SURROGATE.sub(_REPLACEMENT, data)
    return data.decode("utf-8", "replace")
