"""Which topics are mirrored: the allow and deny lists of MirrorMaker.

A list is a regular expression for whole names. As in MirrorMaker, ``,`` separates alternatives like ``|``,
spaces and surrounding quotes are ignored, and ``*`` at the start of an alternative stands for any text.

Source: Apache Kafka 0.8.2, ``kafka.consumer.TopicFilter``; its documentation, "Mirroring data between
clusters".
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tidemill.model.errors import ConfigError

ALL = "*"

_COMMA = re.compile(r",(?![^{]*\})")
"""A comma outside of a quantifier such as ``{1,3}``."""
_STAR = re.compile(r"(^|[|(])\*")


class TopicFilter(NamedTuple):
    """The names that are allowed, without those that are denied."""

    allow: str = ALL
    deny: str = ""

    def check(self) -> None:
        """Raises ConfigError for an invalid list."""
        self.matches("")

    def matches(self, topic: str) -> bool:
        """Whether a topic is mirrored. Raises ConfigError for an invalid list."""
        allowed = pattern_of("the allow list", self.allow).fullmatch(topic)
        denied = pattern_of("the deny list", self.deny).fullmatch(topic) if self.deny else None
        return allowed is not None and denied is None


ALL_NAMES = TopicFilter()


def pattern_of(option: str, text: str) -> re.Pattern[str]:
    """Compiles a list. Raises ConfigError, which names ``option``, for an invalid one."""
    plain = re.sub(r"\s", "", text).strip("\"'")
    if not plain:
        raise ConfigError(f"{option} {text!r} is empty: name topics, as 'orders,payments-.*', or '*' for all")
    expression = _STAR.sub(r"\1.*", _COMMA.sub("|", plain))
    try:
        return re.compile(expression)
    except re.error as problem:
        raise ConfigError(
            f"{option} {text!r} is not a regular expression ({problem}): name topics, as "
            "'orders,payments-.*', or '*' for all"
        ) from None
