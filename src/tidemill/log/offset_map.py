"""The last offset of every key, which compaction keeps in memory while it cleans a log.

An open-addressed table refers to entries in chunks of 64-bit words, and an entry holds the key itself:

==========  =====================================================================================
word        content
==========  =====================================================================================
table slot  27 bits of the key's hash, then 36 bits: the entry's first word + 1; 0 is an empty slot
entry 0     offset minus the map's first one (57 bits), length code (6 bits)
entry 1..   the key's bytes, little-endian, the last word filled up with zeros
==========  =====================================================================================

The length code is the key's length up to 32; a longer key is stored as its SHA-256, code 33. Two different
keys are therefore never confused, even with equal hashes: a map of hashes alone would lose one of them. A key
of 16 bytes takes 24 bytes and 12 to 24 bytes for its slot: the table is doubled at a load of two thirds, or
filled up to the load factor if there is no memory for that.

The hash is Python's, which has a random salt in every process: nobody can prepare keys with equal hashes.

The slot and the entry of a key are far from those of the previous key, and fetching them from memory takes
longer than everything else. Keys are therefore processed in groups: :meth:`OffsetMap.prepare` for each,
:meth:`OffsetMap.warm` to let the processor fetch all of them at once, then the puts or gets of the group.
"""

from __future__ import annotations

import hashlib
from typing import Final

from librt.strings import read_i64_le
from librt.vecs import vec
from mypy_extensions import i64

KEY_BYTES_MAX: Final = 32
"""The length of the longest key that is stored as it is."""

DIGEST_CODE: Final = KEY_BYTES_MAX + 1
CODE_BITS: Final = 6
CODE_MASK: Final = (1 << CODE_BITS) - 1
SPAN_MAX: Final = 1 << 56
"""The range of offsets that one map can represent."""

TAG_BITS: Final = 27
TAG_MASK: Final = (1 << TAG_BITS) - 1
ENTRY_BITS: Final = 36
ENTRY_MASK: Final = (1 << ENTRY_BITS) - 1

CHUNK_BITS: Final = 12
CHUNK_WORDS: Final = 1 << CHUNK_BITS
CHUNK_MASK: Final = CHUNK_WORDS - 1
CHUNK_BYTES: Final = CHUNK_WORDS * 8

GROUP: Final = 256
"""The maximum number of keys in a group: their slots and entries fit into the processor's nearest cache."""

SOFT_LOAD: Final = 2 / 3
"""Above this load a table is slow: it is doubled if there is memory."""

SLOTS_MIN: Final = 1024
SLOTS_MAX: Final = 1 << TAG_BITS

NOT_FOUND: Final = -1


class OffsetMap:
    """The latest offsets by key, in at most ``bytes_max`` bytes (at least one chunk and one table)."""

    def __init__(self, bytes_max: i64, load_factor: float, first_offset: i64) -> None:
        if not 0 < load_factor < 1:
            raise ValueError(f"the load factor is {load_factor}, but must be between 0 and 1")
        self.bytes_max: i64 = bytes_max
        self.load_factor: float = load_factor
        self.first_offset: i64 = first_offset
        self.count: i64 = 0
        """The number of keys."""
        self.latest_offset: i64 = first_offset - 1
        """The offset up to which the log has been read into the map."""
        self._slots: i64 = SLOTS_MIN
        self._table: vec[i64] = vec[i64]([0] * SLOTS_MIN)
        self._set_limits()
        self._chunks: list[vec[i64]] = []
        self._next: i64 = 0
        self._room: i64 = 0
        self._entry: i64 = -1
        self._keys: list[bytes] = [b""] * GROUP
        self._tags: vec[i64] = vec[i64]([0] * GROUP)
        self._codes: vec[i64] = vec[i64]([0] * GROUP)
        self._warmed: i64 = 0

    @property
    def memory_bytes(self) -> i64:
        """The size of table and entries."""
        return self._slots * 8 + i64(len(self._chunks)) * CHUNK_BYTES

    @property
    def utilization(self) -> float:
        """The used share of the memory: 0 to 1."""
        return min(float(self.memory_bytes) / float(max(self.bytes_max, 1)), 1.0)

    def put(self, data: bytes, position: i64, length: i64, offset: i64) -> bool:
        """Sets the offset of the key at ``position`` of ``data``, which is later than before.

        Returns False if the map is full, and then changes nothing. A known key always fits.
        """
        self.prepare(0, data, position, length)
        return self.put_prepared(0, offset)

    def get(self, data: bytes, position: i64, length: i64) -> i64:
        """The latest offset of the key at ``position`` of ``data``; -1 if it is unknown."""
        self.prepare(0, data, position, length)
        return self.get_prepared(0)

    def prepare(self, slot: i64, data: bytes, position: i64, length: i64) -> None:
        """Sets the key at ``position`` of ``data`` as number ``slot`` of the group."""
        key = data[position : position + length]
        if length > KEY_BYTES_MAX:
            key = hashlib.sha256(key).digest()
            length = DIGEST_CODE
        self._keys[slot] = key
        self._codes[slot] = length
        self._tags[slot] = i64(hash(key)) & TAG_MASK

    def warm(self, count: i64) -> None:
        """Prefetches the table slots and entries of the first ``count`` keys of the group."""
        table = self._table
        tags = self._tags
        mask: i64 = self._slots - 1
        total: i64 = 0
        at: i64 = 0
        while at < count:
            total += table[tags[at] & mask]
            at += 1
        at = 0
        while at < count:
            entry: i64 = (table[tags[at] & mask] & ENTRY_MASK) - 1
            if entry >= 0:
                total += self._chunks[entry >> CHUNK_BITS][entry & CHUNK_MASK]
            at += 1
        # Stored, so that a compiler does not remove the unused reads.
        self._warmed = total

    def put_prepared(self, slot: i64, offset: i64) -> bool:
        """Same as :meth:`put`, for a key of the group."""
        relative: i64 = offset - self.first_offset
        if relative < 0 or relative >= SPAN_MAX:
            return False
        key = self._keys[slot]
        tag: i64 = self._tags[slot]
        code: i64 = self._codes[slot]
        place: i64 = self._find(key, tag, code)
        if self._entry < 0:
            if self.count >= self._soft_max and not self._grow() and self.count >= self._keys_max:
                return False
            place = self._find(key, tag, code)
            entry: i64 = self._add(key)
            if entry < 0:
                return False
            self._table[place] = (tag << ENTRY_BITS) | (entry + 1)
            self._entry = entry
            self.count += 1
        chunk = self._chunks[self._entry >> CHUNK_BITS]
        chunk[self._entry & CHUNK_MASK] = (relative << CODE_BITS) | code
        return True

    def get_prepared(self, slot: i64) -> i64:
        """Same as :meth:`get`, for a key of the group."""
        self._find(self._keys[slot], self._tags[slot], self._codes[slot])
        if self._entry < 0:
            return NOT_FOUND
        chunk = self._chunks[self._entry >> CHUNK_BITS]
        return self.first_offset + (chunk[self._entry & CHUNK_MASK] >> CODE_BITS)

    def _find(self, key: bytes, tag: i64, code: i64) -> i64:
        """The slot of the key, with its entry in ``_entry``; or a free slot, and -1."""
        table = self._table
        mask: i64 = self._slots - 1
        slot: i64 = tag & mask
        while True:
            held: i64 = table[slot]
            if held == 0:
                self._entry = -1
                return slot
            if held >> ENTRY_BITS == tag:
                entry: i64 = (held & ENTRY_MASK) - 1
                if self._is_key(entry, key, code):
                    self._entry = entry
                    return slot
            slot = (slot + 1) & mask

    def _is_key(self, entry: i64, key: bytes, code: i64) -> bool:
        chunk = self._chunks[entry >> CHUNK_BITS]
        at: i64 = entry & CHUNK_MASK
        if chunk[at] & CODE_MASK != code:
            return False
        size: i64 = len(key)
        position: i64 = 0
        while position < size:
            at += 1
            if chunk[at] != _word(key, position, size):
                return False
            position += 8
        return True

    def _add(self, key: bytes) -> i64:
        """Adds an entry with the words of the key; -1 if there is no memory."""
        size: i64 = len(key)
        words: i64 = 1 + ((size + 7) >> 3)
        if words > self._room:
            if self._chunks and self.memory_bytes + CHUNK_BYTES > self.bytes_max:
                return -1
            self._next = i64(len(self._chunks)) << CHUNK_BITS
            self._chunks.append(vec[i64]([0] * CHUNK_WORDS))
            self._room = CHUNK_WORDS
        entry: i64 = self._next
        chunk = self._chunks[entry >> CHUNK_BITS]
        at: i64 = entry & CHUNK_MASK
        position: i64 = 0
        while position < size:
            at += 1
            chunk[at] = _word(key, position, size)
            position += 8
        self._next = entry + words
        self._room -= words
        return entry

    def _grow(self) -> bool:
        """Doubles the table, if memory and hash bits suffice."""
        slots: i64 = self._slots * 2
        if slots > SLOTS_MAX or self.memory_bytes + slots * 8 > self.bytes_max:
            return False
        table = vec[i64]([0] * int(slots))
        mask: i64 = slots - 1
        old = self._table
        at: i64 = 0
        while at < self._slots:
            held: i64 = old[at]
            if held != 0:
                slot: i64 = (held >> ENTRY_BITS) & mask
                while table[slot] != 0:
                    slot = (slot + 1) & mask
                table[slot] = held
            at += 1
        self._table = table
        self._slots = slots
        self._set_limits()
        return True

    def _set_limits(self) -> None:
        """Sets the number of keys at which the table is doubled, and the maximum."""
        slots = float(self._slots)
        self._keys_max: i64 = i64(int(slots * self.load_factor))
        self._soft_max: i64 = min(self._keys_max, i64(int(slots * SOFT_LOAD)))


def _word(key: bytes, position: i64, size: i64) -> i64:
    """Eight bytes of the key, or the rest of it."""
    if position + 8 <= size:
        return read_i64_le(key, position)
    word: i64 = 0
    shift: i64 = 0
    while position < size:
        word |= i64(key[position]) << shift
        shift += 8
        position += 1
    return word
