"""Message formats v0 and v1: entries, one after the other, each with an offset.

========  ========  ==============  ==================================================================
v0 byte   v1 byte   field           notes
========  ========  ==============  ==================================================================
0         0         offset          int64; of a wrapper: that of its last message; not under the checksum
8         8         size            int32: bytes that follow this field
12        12        checksum        u32: CRC-32 of what follows it
16        16        magic           int8: 0 or 1
17        17        attributes      int8: bits 0-2 codec, in v1 bit 3 append time
-         18        timestamp       int64, ms; of a wrapper: the largest inside, or the broker's clock
18        26        key length      int32, -1: no key
22        30        key
...       ...       value length    int32, -1: no value (a tombstone)
...       ...       value           of a wrapper: a message set of the same format, compressed
========  ========  ==============  ==================================================================

All integers are big-endian. The smallest entries are 26 and 34 bytes. A set of messages is compressed as a
whole: it becomes the value of one message without a key, the wrapper, whose attributes hold the codec (1
gzip, 2 snappy, 3 lz4). Its messages are not compressed again. Their offsets are absolute in v0, so that a
broker must compress anew what it gives offsets; in v1 they count from 0, and the wrapper's tells the last::

    absolute offset = wrapper's offset + (offset inside - last offset inside)

With append time (bit 3 of the wrapper) the wrapper's timestamp is that of all its messages.

lz4 in v0 has a wrong checksum in its frame's header, which Kafka's first clients computed over the magic
number too; it is written so, and not looked at when it is read. In v1 it is the right one.

Source: Apache Kafka's documentation, "Old Message Format"; KIP-31 (relative offsets), KIP-32 (timestamps),
KIP-57 (lz4); ``LegacyRecord.java``, ``AbstractLegacyRecordBatch.java``, ``Lz4BlockInputStream.java``.
"""

from __future__ import annotations

from typing import Final

CRC: Final = 12
MAGIC: Final = 16
ATTRIBUTES: Final = 17
TIMESTAMP: Final = 18
"""Of v1; v0 has none."""
KEY_LENGTH_V0: Final = 18
KEY_LENGTH_V1: Final = 18 + 8

ENTRY_BYTES_MIN_V0: Final = 12 + 14
ENTRY_BYTES_MIN_V1: Final = 12 + 22
