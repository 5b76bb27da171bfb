"""The last offset of every key: what compaction keeps in memory while it cleans a log.

An open-addressed table refers to entries in chunks of 64-bit words, and an entry holds the key itself:

=========  =====================================================================================
word       content
=========  =====================================================================================
table slot 27 bits of the key's hash, then 36 bits: the entry's first word + 1; 0 is an empty slot
entry 0    offset less the map's first one (57 bits), length code (6 bits)
entry 1..  the key's bytes, little-endian, the last word filled up with zeros
=========  =====================================================================================

The length code is the key's length up to 32; a longer key is kept as its SHA-256, code 33. So two keys are
never taken for one, whatever their hashes: a map of hashes alone would lose one of them for ever.
A key of 16 bytes takes 24 bytes and its slot 12 to 24: the table is doubled when two thirds are taken, and
filled up to the load factor where there is no memory for that.

The hash is Python's, which is salted anew in every process: nobody can prepare keys that share one.

A key's slot and entry are nowhere near those of the key before it, and fetching them from memory takes far
longer than everything else. So keys come in groups: :meth:`OffsetMap.prepare` for each, then
:meth:`OffsetMap.warm`, which lets the processor fetch what all of them need at once, then the group's puts or
gets.
"""

from __future__ import annotations

import hashlib
from typing import Final

from librt.strings import read_i64_le
from librt.vecs import vec
from mypy_extensions import i64

KEY_BYTES_MAX: Final = 32
"""The longest key that is kept as it is."""

DIGEST_CODE: Final = KEY_BYTES_MAX + 1
CODE_BITS: Final = 6
CODE_MASK: Final = (1 << CODE_BITS) - 1
SPAN_MAX: Final = 1 << 56
"""Offsets that one map can tell apart."""

TAG_BITS: Final = 27
TAG_MASK: Final = (1 << TAG_BITS) - 1
ENTRY_BITS: Final = 36
ENTRY_MASK: Final = (1 << ENTRY_BITS) - 1

CHUNK_BITS: Final = 12
CHUNK_WORDS: Final = 1 << CHUNK_BITS
CHUNK_MASK: Final = CHUNK_WORDS - 1
CHUNK_BYTES: Final = CHUNK_WORDS * 8

GROUP: Final = 256
"""Keys in a group at most: slots and entries of all of them fit into the processor's nearest cache."""

SOFT_LOAD: Final = 2 / 3
"""From here on a table is slow: it is doubled when there is room."""

SLOTS_MIN: Final = 1024
SLOTS_MAX: Final = 1 << TAG_BITS

NOT_FOUND: Final = -1


class OffsetMap:
    """Latest offsets by key, in at most ``bytes_max`` bytes (and never fewer than one chunk and table)."""

    def __init__(self, bytes_max: i64, load_factor: float, first_offset: i64) -> None:
        if not 0 < load_factor < 1:
            raise ValueError(f"the load factor is {load_factor}, it must be between 0 and 1")
        self.bytes_max: i64 = bytes_max
        self.load_factor: float = load_factor
        self.first_offset: i64 = first_offset
        self.count: i64 = 0
        """Keys in the map."""
        self.latest_offset: i64 = first_offset - 1
        """Up to here the log has been read into the map."""
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
        """What table and entries take."""
        return self._slots * 8 + i64(len(self._chunks)) * CHUNK_BYTES

    @property
    def utilization(self) -> float:
        """How full the memory is: 0 to 1."""
        return min(float(self.memory_bytes) / float(max(self.bytes_max, 1)), 1.0)

    def put(self, data: bytes, position: i64, length: i64, offset: i64) -> bool:
        """Notes that the key at ``position`` of ``data`` has ``offset``, later than before.

        False when the map is full: it is as before then. A key that is there always fits.
        """
        self.prepare(0, data, position, length)
        return self.put_prepared(0, offset)

    def get(self, data: bytes, position: i64, length: i64) -> i64:
        """The latest offset of the key at ``position`` of ``data``; -1 when it is not in the map."""
        self.prepare(0, data, position, length)
        return self.get_prepared(0)

    def prepare(self, slot: i64, data: bytes, position: i64, length: i64) -> None:
        """Takes the key at ``position`` of ``data`` as the one number ``slot`` of the group."""
        key = data[position : position + length]
        if length > KEY_BYTES_MAX:
            key = hashlib.sha256(key).digest()
            length = DIGEST_CODE
        self._keys[slot] = key
        self._codes[slot] = length
        self._tags[slot] = i64(hash(key)) & TAG_MASK

    def warm(self, count: i64) -> None:
        """Fetches what the first ``count`` keys of the group will need."""
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
        # Kept, or a compiler may find that nobody needs what was fetched.
        self._warmed = total

    def put_prepared(self, slot: i64, offset: i64) -> bool:
        """As :meth:`put`, for a key of the group."""
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
        """As :meth:`get`, for a key of the group."""
        self._find(self._keys[slot], self._tags[slot], self._codes[slot])
        if self._entry < 0:
            return NOT_FOUND
        chunk = self._chunks[self._entry >> CHUNK_BITS]
        return self.first_offset + (chunk[self._entry & CHUNK_MASK] >> CODE_BITS)

    def _find(self, key: bytes, tag: i64, code: i64) -> i64:
        """The slot of the key, its entry in ``_entry``; or the slot for it, and -1."""
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
        """A new entry with the key's words; -1 when there is no memory for it."""
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
        """A table twice as large, when memory and hash bits are there for it beside the old one."""
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
        """How many keys the table holds before it is doubled, and at most."""
        slots = float(self._slots)
        self._keys_max: i64 = i64(int(slots * self.load_factor))
        self._soft_max: i64 = min(self._keys_max, i64(int(slots * SOFT_LOAD)))


def _word(key: bytes, position: i64, size: i64) -> i64:
    """Eight bytes of the key, or what is left of it."""
    if position + 8 <= size:
        return read_i64_le(key, position)
    word: i64 = 0
    shift: i64 = 0
    while position < size:
        word |= i64(key[position]) << shift
        shift += 8
        position += 1
    return word
