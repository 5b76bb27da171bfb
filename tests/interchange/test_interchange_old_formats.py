"""Message formats v0, v1 and v2 with Apache Kafka 3.9.2, which still writes and converts all of them.

Both brokers get the same requests, in the versions that old clients use. Their files and responses are
compared field by field, and byte by byte without compression: two compressors never produce equal bytes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kafka_peer import Kafka, ZooKeeper
from old_sequences import Sent, keyless, odd, plain
from old_wire import Entry, OldPeer, Produced, take_apart

from tidemill.model.errors import ErrorCode
from tidemill.testing import Broker

ROOT = Path(__file__).parents[2]
START_TIMEOUT_S = 600
KAFKA_SETTINGS = "inter.broker.protocol.version=2.8\nlog.message.timestamp.difference.max.ms=3600000\n"
OUR_SETTINGS = {
    "log.message.timestamp.after.max.ms": "3600000",
    "log.message.timestamp.before.max.ms": "3600000",
}
FORMATS = {"0.9.0": 0, "0.10.2": 1, "2.8": 2}
CODECS = ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")
TIMES = ("CreateTime", "LogAppendTime")
CASES = [
    (version, codec, kind)
    for version in FORMATS
    for codec in CODECS
    for kind in TIMES
    if codec != "zstd" or version == "2.8"
]
ALL = 1 << 20
CLOCK_MS_MAX = 120_000

pytestmark = [
    pytest.mark.clients,
    pytest.mark.timeout(START_TIMEOUT_S),
    pytest.mark.xdist_group("old-formats"),
    pytest.mark.skipif(shutil.which("java") is None, reason="java is not installed"),
]

UNKNOWN = ErrorCode.UNKNOWN_SERVER_ERROR
UNSUPPORTED_CODEC = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
CORRUPT = ErrorCode.CORRUPT_MESSAGE
INVALID = ErrorCode.INVALID_RECORD

BETTER_TOLD = {
    # Kafka returns an unknown error for unexpected data.
    "wrapper of no codec": (UNKNOWN, UNSUPPORTED_CODEC),
    "wrapper of noise": (UNKNOWN, CORRUPT),
    "wrapper of zstd": (INVALID, UNSUPPORTED_CODEC),
    "cut": (ErrorCode.NONE, CORRUPT),  # Kafka drops an incomplete entry, and returns success.
    "one and one cut": (ErrorCode.NONE, CORRUPT),
}
"""Errors of Kafka and of the broker here, where they differ for a reason."""
DIFFERENCES = {
    **{f"v{magic} {name}": errors for magic in (0, 1) for name, errors in BETTER_TOLD.items()},
    "v2 cut": (INVALID, CORRUPT),
}
NEEDS_V2 = {
    "v2 headers": (UNKNOWN, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    "v2 headers gzip": (UNKNOWN, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
}
NO_ZSTD = {f"v2 zstd in {version}": (UNKNOWN, UNSUPPORTED_CODEC) for version in (7, 8)}
OWN_RULES = {
    # Only a broker may set it; Kafka clears it, and keeps the timestamps.
    "v1 append time said": (ErrorCode.NONE, ErrorCode.INVALID_TIMESTAMP),
    "v1 append time of a wrapper": (ErrorCode.NONE, ErrorCode.INVALID_TIMESTAMP),
}


class Pair(NamedTuple):
    """Both brokers."""

    kafka: str
    kafka_data: Path
    ours: str
    our_data: Path

    def logs(self, topic: str) -> tuple[bytes, bytes]:
        """Returns the content of partition 0 of both."""
        name = "00000000000000000000.log"
        first, second = (
            (data / f"{topic}-0" / name).read_bytes() for data in (self.kafka_data, self.our_data)
        )
        return first, second

    def make(self, topic: str, version: str, codec: str, kind: str, policy: str = "delete") -> None:
        """Creates a topic on both."""
        config = {
            "message.format.version": version,
            "compression.type": codec,
            "message.timestamp.type": kind,
            "cleanup.policy": policy,
        }
        for bootstrap in (self.kafka, self.ours):
            admin = AdminClient({"bootstrap.servers": bootstrap})
            for future in admin.create_topics([NewTopic(topic, 1, 1, config=config)]).values():
                future.result(30)


@pytest.fixture(scope="module")
def old_jars() -> str:
    """The class path of Apache Kafka 3.9.2."""
    if shutil.which("mvn") is None and not (ROOT / "build/kafka/3.9.2/.complete").exists():
        pytest.skip("mvn is not installed (Debian: apt-get install maven)")
    others = {key: value for key, value in os.environ.items() if key != "TIDEMILL_KAFKA_LIBS"}
    code = "from peers import kafka_jars; print(kafka_jars('3.9.2'))"
    told = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT / "bench",
        env=others,
        capture_output=True,
        text=True,
        check=True,
    )
    return f"{told.stdout.strip()}/*"


@pytest.fixture(scope="module")
def pair(old_jars: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    directory = tmp_path_factory.mktemp("kafka")
    zookeeper = ZooKeeper(old_jars, directory)
    kafka = Kafka(
        old_jars, directory, directory / "data", zookeeper=zookeeper.address, settings=KAFKA_SETTINGS
    )
    try:
        kafka.start()
        with Broker(OUR_SETTINGS) as broker:
            yield Pair(kafka.bootstrap, directory / "data", broker.bootstrap, Path(broker.data_dir))
            log = broker.log
        assert "Traceback" not in log, log
    finally:
        kafka.end()
        zookeeper.end()


# -- comparing


def alike(found: list[Entry], first_offset: int, now_ms: int) -> list[Entry]:
    """Returns the entries with offsets from 0 on, without the clock of their broker."""
    return [without_clock(one, first_offset, now_ms) for one in found]


def without_clock(one: Entry, first_offset: int, now_ms: int) -> Entry:
    times, rest = one.times, one.rest
    if one.attributes & 8:
        times = tuple("now" if abs(time - now_ms) < CLOCK_MS_MAX else time for time in times)
    if one.magic < 2 and one.attributes & 7:
        moved = first_offset if one.magic == 0 else 0
        rest = tuple(inside._replace(offset=inside.offset - moved) for inside in rest)
        if one.attributes & 8:
            # No client reads the count of the wrapper. Kafka rewrites it, Tidemill keeps it.
            rest = tuple(inside._replace(attributes=0, times=()) for inside in rest)
    return one._replace(offset=one.offset - first_offset, times=times, rest=rest)


class Side:
    """One of the brokers, and the position in its log."""

    def __init__(self, peer: OldPeer, topic: str, now_ms: int) -> None:
        self.peer = peer
        self.topic = topic
        self.now_ms = now_ms
        self.offset = 0
        self.position = 0

    def produce(self, sent: Sent) -> Produced:
        """Sends Produce; returns the response with offsets relative to the log end, ``now`` as 1."""
        answer = self.peer.produce(sent.version, self.topic, sent.records)
        errors = tuple((index, None) for index, _ in answer.record_errors)
        if answer.error:
            return Produced(answer.error, -1, -1, errors)
        base = answer.base_offset - self.offset if answer.base_offset >= 0 else -1
        return answer._replace(base_offset=base, append_time=1 if answer.append_time > 0 else -1)

    def stored(self, log: bytes) -> tuple[list[Entry], bytes]:
        """Returns the entries that were added to the log since the last call."""
        new = log[self.position :]
        entries, rest = take_apart(new)
        assert not rest
        found = alike(entries, self.offset, self.now_ms)
        self.position = len(log)
        self.offset = self.peer.offset_of_time(self.topic, -1)[2]
        return found, new


def known_differences(version: str, codec: str, kind: str) -> dict[str, tuple[int, int]]:
    """The errors of Kafka and of Tidemill, by name of the request."""
    known: dict[str, tuple[int, int]] = dict(DIFFERENCES)
    if FORMATS[version] < 2:
        known.update(NEEDS_V2)
        if codec == "producer":
            known.update(NO_ZSTD)
    if kind == "CreateTime":
        known.update(OWN_RULES)
    else:
        known["v1 time below -1"] = (UNKNOWN, ErrorCode.NONE)
    return known


def produce_all(
    pair: Pair, topic: str, kind: str, sequence: list[Sent], known: dict[str, tuple[int, int]]
) -> None:
    """Sends all requests to both brokers, and compares responses and files after each."""
    now_ms = int(time.time() * 1000)
    with OldPeer(pair.kafka) as first, OldPeer(pair.ours) as second:
        sides = Side(first, topic, now_ms), Side(second, topic, now_ms)
        for sent in sequence:
            theirs, ours = (side.produce(sent) for side in sides)
            (stored, raw), (our_stored, our_raw) = (
                side.stored(log) for side, log in zip(sides, pair.logs(topic), strict=True)
            )
            if (theirs.error, ours.error) == known.get(sent.name):
                continue
            assert ours == theirs, sent.name
            assert our_stored == stored, sent.name
            if sides[0].offset == sides[1].offset and not any(one.attributes & 15 for one in stored):
                assert our_raw == raw, sent.name


@pytest.mark.parametrize(("version", "codec", "kind"), CASES)
def test_kafka_and_tidemill_store_and_serve_the_same_bytes(
    pair: Pair, version: str, codec: str, kind: str
) -> None:
    topic = f"plain-{version}-{codec}-{kind}"
    pair.make(topic, version, codec, kind)
    now_ms = int(time.time() * 1000)
    produce_all(pair, topic, kind, list(plain(now_ms)), known_differences(version, codec, kind))
    serve_all(pair, topic, now_ms)


@pytest.mark.parametrize(("version", "codec", "kind"), CASES)
def test_kafka_and_tidemill_respond_equally_to_unusual_requests(
    pair: Pair, version: str, codec: str, kind: str
) -> None:
    topic = f"odd-{version}-{codec}-{kind}"
    pair.make(topic, version, codec, kind)
    now_ms = int(time.time() * 1000)
    produce_all(pair, topic, kind, list(odd(now_ms)), known_differences(version, codec, kind))


@pytest.mark.parametrize("version", FORMATS)
def test_kafka_and_tidemill_list_the_records_without_a_key(pair: Pair, version: str) -> None:
    topic = f"keyless-{version}"
    pair.make(topic, version, "producer", "CreateTime", "compact")
    now_ms = int(time.time() * 1000)
    produce_all(pair, topic, "CreateTime", list(keyless(now_ms)), {})


# -- serving


def magic_known(fetch_version: int) -> int:
    return 0 if fetch_version <= 1 else 1 if fetch_version <= 3 else 2


def serve_all(pair: Pair, topic: str, now_ms: int) -> None:
    """Fetches in every old version, from every offset, with limits of every size."""
    log, _ = take_apart(pair.logs(topic)[0])
    newest = max(one.magic for one in log)
    is_plain = not any(one.attributes & 15 for one in log)
    with OldPeer(pair.kafka) as first, OldPeer(pair.ours) as second:
        end = first.offset_of_time(topic, -1)[2]
        for version in range(5):
            as_stored = newest <= magic_known(version)
            for offset in (0, 2, 5, 17, 40, end - 1, end, end + 1):
                for bytes_max in (50, 300, 1000, ALL):
                    where = (version, offset, bytes_max)
                    theirs, ours = (peer.fetch(version, topic, offset, bytes_max) for peer in (first, second))
                    assert theirs[:2] == ours[:2], where
                    (expected, _), (found, rest) = take_apart(theirs.records), take_apart(ours.records)
                    compare_served(alike(expected, 0, now_ms), alike(found, 0, now_ms), bytes_max, where)
                    if version == 4:
                        assert not rest, where
                    elif as_stored:
                        assert version == 3 or len(ours.records) <= bytes_max, where
                        assert not is_plain or ours.records == theirs.records, where
        for at in (-1, -2, now_ms, now_ms + 1_000_000):
            assert first.segment_offsets(topic, at, 5) == second.segment_offsets(topic, at, 5)
        create_time = topic.endswith("CreateTime")
        for at in (-1, -2, now_ms, now_ms + 6, now_ms + 9, now_ms + 10) if create_time else (-1, -2):
            assert first.offset_of_time(topic, at) == second.offset_of_time(topic, at)


def compare_served(
    expected: list[Entry], found: list[Entry], bytes_max: int, where: tuple[int, int, int]
) -> None:
    """The position of a cut by a limit depends on the compression; the data before it does not. Without
    limits Kafka omits more: if the next part of a conversion begins with zstd, data after the first part.
    """
    common = min(len(expected), len(found))
    assert found[:common] == expected[:common], where
    if bytes_max == ALL:
        assert len(found) >= len(expected), where
    elif where[0] < 4 and len(expected) > 3:
        assert found, where
