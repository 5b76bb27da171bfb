"""What the records of one compressed batch may unpack to: one limit for all that unpack batches.

A broker, its worker processes and the tools that read its files (``tidemill log verify``, ``recover``,
``dump``) take it from the broker's configuration, clients take it from theirs, under the same key. So no
batch that a broker stored is too large for those that read it later, unless the limit was lowered between.
"""

from __future__ import annotations

from typing import Final

UNPACKED_KEY: Final = "tidemill.unpacked.batch.bytes.max"

UNPACKED_BYTES_MAX: Final = 64 * 1024 * 1024
"""The key's default. Producers bound a batch to a megabyte or so before compression, or estimate it; a
stranger's batch of a megabyte can claim a gigabyte, and a broker holds four batches unpacked at a time."""
