"""The source of a start-up value, which DescribeConfigs carries at the end of the documentation.

The protocol has one number for all sources at the start of a broker (STATIC_BROKER_CONFIG): file, environment
and command line. The text distinguishes them, and other clients show it as documentation::

    Data directories, with commas between them. [set by --set log.dirs]
"""

from __future__ import annotations

import re

_SET_BY = re.compile(r" \[set by (.*)\]$", re.DOTALL)


def with_provenance(documentation: str, provenance: str) -> str:
    """Returns the documentation of a key, with the source of its value appended."""
    return f"{documentation} [set by {provenance}]"


def provenance_in(documentation: str | None) -> str | None:
    """Returns the source of the value in the documentation; None where it has none."""
    found = _SET_BY.search(documentation or "")
    return found[1] if found else None
