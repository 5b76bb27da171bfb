"""The limit on the unpacked size of a compressed batch, shared by all code that unpacks batches.

A broker, its worker processes and the tools that read its files (``tidemill log verify``, ``recover``,
``dump``, ``import``) use the value of the broker's configuration, clients the value of theirs, under the same
key. So no batch that a broker stored is too large for its later readers, unless the limit was lowered in
between. All functions that unpack batches require the limit. The default is in the tables of configuration
keys and in ``LogConfig``; tools without a configuration pass it.
"""

from __future__ import annotations

from typing import Final

UNPACKED_KEY: Final = "tidemill.unpacked.batch.bytes.max"

UNPACKED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Default of the key. Producers limit a batch to a megabyte or so before compression, or estimate it; a
malicious batch of a megabyte can expand to a gigabyte, and a broker holds four unpacked batches at a time."""
