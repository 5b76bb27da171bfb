"""What went wrong inside Spark, in one line: errors of this package come back as Java stack traces."""

from __future__ import annotations

import re

OURS = re.compile(r"^tidemill\.[\w.]+: (.+)$", re.MULTILINE)


def explained(problem: BaseException) -> str:
    """The message of the tidemill error inside a failure of Spark, or Spark's own first line."""
    text = str(problem)
    found = OURS.findall(text)
    if found:
        message: str = found[-1]
        return message.strip()
    return text.strip().splitlines()[0] if text.strip() else type(problem).__name__
