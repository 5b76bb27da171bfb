"""The special timestamps and the special replica id of ListOffsets.

Source: ``org.apache.kafka.common.requests.ListOffsetsRequest``. They are apart from the message, which is
imported on first use.
"""

from __future__ import annotations

from typing import Final

LATEST: Final = -1
"""The log end offset; for consumers, up to the high watermark."""
EARLIEST: Final = -2
"""The log start offset."""
MAX_TIMESTAMP: Final = -3
"""The offset of the record with the largest timestamp."""
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6

FIRST_VERSION_OF: Final = {
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
"""The first version that supports each of these timestamps."""

DEBUGGING_REPLICA: Final = -2
"""A replica id with which any replica responds, up to its log end offset. Controllers use it before unclean
elections."""
