"""The map of latest offsets: equal to a dict, bounded, and complete when it is full."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.log import offset_map
from tidemill.log.offset_map import OffsetMap

MIB = 1024 * 1024

keys = st.one_of(st.binary(max_size=3), st.binary(max_size=40), st.binary(min_size=31, max_size=33))


@settings(max_examples=150, deadline=None)
@given(st.lists(keys, max_size=300), st.integers(0, 2**40))
def test_the_map_holds_the_latest_offset_of_each_key(items: list[bytes], first: int) -> None:
    held = OffsetMap(MIB, 0.9, first)
    model: dict[bytes, int] = {}
    for at, key in enumerate(items):
        data = b"xx" + key + b"yy"
        assert held.put(data, 2, len(key), first + at)
        model[key] = first + at
    assert held.count == len(model)
    for key, offset in model.items():
        assert held.get(key, 0, len(key)) == offset
        other = key + b"\0"
        assert held.get(other, 0, len(other)) == model.get(other, -1)


def test_keys_with_equal_hashes_are_distinguished(monkeypatch: pytest.MonkeyPatch) -> None:
    if offset_map.__file__.endswith(".so"):
        pytest.skip("compiled: the hash is not replaced")
    monkeypatch.setattr(offset_map, "hash", lambda key: 5, raising=False)
    held = OffsetMap(MIB, 0.9, 0)
    for number in range(1200):
        assert held.put(b"%d" % number, 0, len(b"%d" % number), number)
    assert [held.get(b"%d" % number, 0, len(b"%d" % number)) for number in range(1200)] == list(range(1200))
    assert held.get(b"other", 0, 5) == -1


@pytest.mark.parametrize("size", [8, 16, 32, 100])
def test_a_full_map_rejects_new_keys_and_keeps_its_entries(size: int) -> None:
    held = OffsetMap(256 * 1024, 0.9, 0)
    random = Random(size)
    stored: list[bytes] = []
    while True:
        key = random.randbytes(size)
        if not held.put(key, 0, size, len(stored)):
            break
        stored.append(key)
    assert held.memory_bytes <= 256 * 1024
    assert len(stored) > 256 * 1024 // (16 + 8 + min(size, 32)) // 2
    assert [held.get(key, 0, size) for key in stored] == list(range(len(stored)))
    assert held.put(stored[0], 0, size, 10_000_000)
    assert held.get(stored[0], 0, size) == 10_000_000


def test_the_smallest_map_holds_one_key() -> None:
    held = OffsetMap(0, 0.9, 7)
    assert held.put(b"key", 0, 3, 7)
    assert held.get(b"key", 0, 3) == 7
    assert held.utilization == 1.0, "for any size of memory"


def test_the_utilization_is_the_used_share_of_the_memory() -> None:
    held = OffsetMap(MIB, 0.9, 0)
    assert held.put(b"key", 0, 3, 7)
    assert held.utilization == held.memory_bytes / MIB
    assert 0 < held.utilization < 0.1


def test_an_offset_beyond_the_range_of_the_map_is_rejected() -> None:
    held = OffsetMap(MIB, 0.9, 0)
    assert not held.put(b"key", 0, 3, offset_map.SPAN_MAX)
    assert held.get(b"key", 0, 3) == -1
