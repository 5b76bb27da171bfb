from __future__ import annotations

import pytest

from tidemill.client.partitioners import (
    CONSISTENT,
    KINDS,
    MURMUR2,
    ROUND_ROBIN,
    STICKY,
    crc32_partition,
    kind_of,
    murmur2,
    murmur2_partition,
)
from tidemill.model.errors import ConfigError

JAVA = [
    (b"21", -973932308),
    (b"foobar", -790332482),
    (b"a-little-bit-long-string", -985981536),
    (b"a-little-bit-longer-string", -1486304829),
    (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
    (b"abc", 479470107),
]
"""Key and hash, from the Java client's own test of murmur2."""


@pytest.mark.parametrize(("key", "expected"), JAVA)
def test_murmur2_is_that_of_java(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected % 2**32


def test_the_partition_is_the_hash_without_its_sign() -> None:
    assert murmur2_partition(b"21", 7) == (-973932308 % 2**31) % 7


def test_the_empty_key_has_a_partition() -> None:
    assert 0 <= murmur2_partition(b"", 5) < 5


def test_carriers_over_six_partitions_leave_partition_one_empty() -> None:
    carriers = [
        "9E",
        "AA",
        "AS",
        "B6",
        "DL",
        "EV",
        "F9",
        "FL",
        "HA",
        "MQ",
        "OO",
        "UA",
        "US",
        "VX",
        "WN",
        "YV",
    ]
    assert {murmur2_partition(c.encode(), 6) for c in carriers} == {0, 2, 3, 4, 5}


def test_consistent_is_crc32() -> None:
    assert crc32_partition(b"123456789", 1000) == 0xCBF43926 % 1000


def test_partitioners_have_their_names() -> None:
    assert [kind_of(name) for name in KINDS] == [MURMUR2, CONSISTENT, ROUND_ROBIN, STICKY]
    assert kind_of("default") == MURMUR2
    assert kind_of("consistent_random") == CONSISTENT
    with pytest.raises(ConfigError, match=r"murmur2, consistent, roundrobin, sticky"):
        kind_of("modulo")
