"""What set a value when a broker started, as DescribeConfigs carries it: at the end of the documentation.

The protocol has one number for all that a broker was started with (STATIC_BROKER_CONFIG): file, environment
and command line. The text tells them apart, and clients that do not know it show it as documentation::

    Data directories, with commas between them. [set by --set log.dirs]
"""

from __future__ import annotations

import re

_SET_BY = re.compile(r" \[set by (.*)\]$", re.DOTALL)


def with_provenance(documentation: str, provenance: str) -> str:
    """The documentation of a key whose value was set by ``provenance``."""
    return f"{documentation} [set by {provenance}]"


def provenance_in(documentation: str | None) -> str | None:
    """What the documentation says that set the value; None where it does not say."""
    found = _SET_BY.search(documentation or "")
    return found[1] if found else None
