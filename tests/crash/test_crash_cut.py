"""A log that ends in the middle of a batch, read by a real client after the start."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from confluent_kafka import Producer
from crash_load import QUIET, make_topic, read_all

from tidemill.testing import Broker

MESSAGES = 12
"""The number of messages, each in its own batch."""


def write(broker: Broker, count: int, codec: str = "none") -> list[bytes]:
    """Writes messages one by one; returns their values."""
    config = {"bootstrap.servers": broker.bootstrap, "compression.type": codec, "enable.idempotence": True}
    producer = Producer({**config, **QUIET})
    values = []
    for number in range(count):
        values.append(b"%04d " % number + bytes(range(256)) * 2)
        producer.produce("t", values[-1], partition=0)
        assert producer.flush(20) == 0
    return values


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_log_cut_within_its_last_two_batches_serves_complete_batches(tmp_path: Path, codec: str) -> None:
    with Broker(data_dir=tmp_path / "data") as broker:
        make_topic(broker, "t", 1)
        values = write(broker, MESSAGES, codec)
        broker.kill()
        path = tmp_path / "data" / "t-0" / (20 * "0" + ".log")
        whole = path.read_bytes()
        ends = batch_ends(whole)
        assert len(ends) == MESSAGES
        first = ends[-3]
        chance = random.Random(codec)
        cuts = {
            first,
            first + 1,
            first + 60,
            first + 61,
            ends[-2] - 1,
            ends[-2],
            ends[-2] + 8,
            len(whole) - 1,
        }
        cuts |= {chance.randrange(first, len(whole)) for _ in range(2)}
        for cut in sorted(cuts, reverse=True):
            path.write_bytes(whole[:cut])
            broker.start()
            stored = [value for _, value in read_all(broker, "t", 1)[0]]
            assert stored == values[: sum(end <= cut for end in ends)], f"cut at {cut} of {len(whole)}"
            broker.kill()
            assert path.stat().st_size == max(end for end in ends if end <= cut)
        broker.start()
        kept = [value for _, value in read_all(broker, "t", 1)[0]]
        more = write(broker, 3)
        assert [value for _, value in read_all(broker, "t", 1)[0]] == kept + more


def test_a_damaged_byte_ends_the_log_before_its_batch(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path / "data") as broker:
        make_topic(broker, "t", 1)
        values = write(broker, MESSAGES)
        broker.kill()
        path = tmp_path / "data" / "t-0" / (20 * "0" + ".log")
        whole = bytearray(path.read_bytes())
        ends = batch_ends(bytes(whole))
        whole[ends[-2] - 20] ^= 0x10
        path.write_bytes(whole)
        broker.start()
        assert [value for _, value in read_all(broker, "t", 1)[0]] == values[:-2]
        log = broker.log
    assert "t-0" in log  # The log reports the truncation.
    assert "Traceback" not in log, log


def batch_ends(data: bytes) -> list[int]:
    """Returns the end position of each batch."""
    ends = []
    position = 0
    while position < len(data):
        position += 12 + int.from_bytes(data[position + 8 : position + 12], "big")
        ends.append(position)
    return ends
