"""The records of __consumer_offsets against annotated bytes and the formatters of Apache Kafka."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.coordinator_runtime.coordinator_partition import java_string_hash, partition_for
from tidemill.groups.offset_records import (
    CommittedOffset,
    GroupMetadataValue,
    GroupRecord,
    MemberMetadata,
    OffsetRecord,
    decode_record,
)
from tidemill.model.errors import CorruptMessage

TOPIC_ID = bytes(range(16))


def bytes_of(text: str) -> bytes:
    """The bytes of hexadecimal digits, without the comments after #."""
    return bytes.fromhex("".join(line.split("#")[0] for line in text.splitlines()))


OFFSET_KEY = bytes_of(
    """
    0001                # version 1: a committed offset
    0003 677270         # group "grp"
    0005 746f706963     # topic "topic"
    00000007            # partition 7
    """
)
OFFSET_VALUES = {
    0: bytes_of("0000  000000000000002a  0002 6d64  0000018bcfe56800  # offset 42, metadata md, committed"),
    1: bytes_of(
        """
        0001                # version 1: an expiry of its own
        000000000000002a    # offset 42
        0002 6d64           # metadata "md"
        0000018bcfe56800    # commit timestamp 1700000000000
        0000018bcfe94e80    # expire timestamp 1700000255616
        """
    ),
    2: bytes_of("0002  000000000000002a  0002 6d64  0000018bcfe56800"),
    3: bytes_of(
        """
        0003                # version 3
        000000000000002a    # offset 42
        00000005            # leader epoch 5
        0002 6d64           # metadata "md"
        0000018bcfe56800    # commit timestamp
        """
    ),
    4: bytes_of(
        """
        0004                # version 4: flexible
        000000000000002a    # offset 42
        00000005            # leader epoch 5
        03 6d64             # metadata "md", compact
        0000018bcfe56800    # commit timestamp
        01 00 10            # one tagged field: tag 0, 16 bytes
        000102030405060708090a0b0c0d0e0f
        """
    ),
}
COMMITTED = 1_700_000_000_000
EXPIRES = 1_700_000_255_616
OFFSETS = {
    0: CommittedOffset(42, -1, "md", COMMITTED),
    1: CommittedOffset(42, -1, "md", COMMITTED, EXPIRES),
    2: CommittedOffset(42, -1, "md", COMMITTED),
    3: CommittedOffset(42, 5, "md", COMMITTED),
    4: CommittedOffset(42, 5, "md", COMMITTED, topic_id=TOPIC_ID),
}

GROUP_KEY = bytes_of("0002 0003 677270  # version 2: a group, 'grp'")
GROUP_VALUE_3 = bytes_of(
    """
    0003                        # version 3
    0008 636f6e73756d6572       # protocol type "consumer"
    00000009                    # generation 9
    0005 72616e6765             # protocol "range"
    0002 6d31                   # leader "m1"
    0000018bcfe56800            # timestamp of the last state change
    00000001                    # one member
      0002 6d31                 # member id "m1"
      0003 692d31               # instance id "i-1"
      0001 63                   # client id "c"
      000a 2f3132372e302e302e31 # client host "/127.0.0.1"
      0000ea60                  # rebalance timeout 60000
      0000afc8                  # session timeout 45000
      00000002 aabb             # subscription
      00000001 cc               # assignment
    """
)
GROUP_VALUE = GroupMetadataValue(
    protocol_type="consumer",
    generation=9,
    protocol="range",
    leader="m1",
    current_state_timestamp=COMMITTED,
    members=[
        MemberMetadata(
            member_id="m1",
            group_instance_id="i-1",
            client_id="c",
            client_host="/127.0.0.1",
            rebalance_timeout=60_000,
            session_timeout=45_000,
            subscription=b"\xaa\xbb",
            assignment=b"\xcc",
        )
    ],
)


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
def test_decodes_all_versions_of_an_offset(version: int) -> None:
    record = decode_record(OFFSET_KEY, OFFSET_VALUES[version])
    assert record == OffsetRecord("grp", "topic", 7, OFFSETS[version])


@pytest.mark.parametrize("version", [1, 3, 4])
def test_encodes_an_offset_in_the_version_that_its_fields_need(version: int) -> None:
    record = OffsetRecord("grp", "topic", 7, OFFSETS[version])
    assert (record.key_bytes(), record.value_bytes()) == (OFFSET_KEY, OFFSET_VALUES[version])


def test_the_first_key_version_names_the_same_offset() -> None:
    key = b"\x00\x00" + OFFSET_KEY[2:]
    assert decode_record(key, OFFSET_VALUES[0]) == OffsetRecord("grp", "topic", 7, OFFSETS[0])


def test_encodes_a_group_in_version_3() -> None:
    record = GroupRecord("grp", GROUP_VALUE)
    assert (record.key_bytes(), record.value_bytes()) == (GROUP_KEY, GROUP_VALUE_3)
    assert decode_record(GROUP_KEY, GROUP_VALUE_3) == record


@pytest.mark.parametrize(
    ("version", "timestamp", "instance_id", "rebalance_timeout"),
    [(0, -1, None, -1), (1, -1, None, 60_000), (2, COMMITTED, None, 60_000)],
)
def test_older_group_records_lack_later_fields(
    version: int, timestamp: int, instance_id: str | None, rebalance_timeout: int
) -> None:
    data = bytearray(GROUP_VALUE_3[2:27])  # up to the leader
    if version >= 2:
        data += COMMITTED.to_bytes(8, "big")
    data += bytes_of("00000001 00026d31 000163 000a2f3132372e302e302e31")
    if version >= 1:
        data += (60_000).to_bytes(4, "big")
    data += bytes_of("0000afc8 00000002aabb 00000001cc")
    record = decode_record(GROUP_KEY, version.to_bytes(2, "big") + data)
    assert isinstance(record, GroupRecord)
    assert record.value is not None
    member = record.value.members[0]
    assert record.value.current_state_timestamp == timestamp
    assert member.group_instance_id == instance_id
    assert member.rebalance_timeout == rebalance_timeout
    assert (member.session_timeout, member.subscription, member.assignment) == (45_000, b"\xaa\xbb", b"\xcc")


def test_tombstones_have_no_value() -> None:
    assert OffsetRecord("grp", "topic", 7, None).value_bytes() is None
    assert GroupRecord("grp", None).value_bytes() is None
    assert decode_record(OFFSET_KEY, None) == OffsetRecord("grp", "topic", 7, None)
    assert decode_record(GROUP_KEY, None) == GroupRecord("grp", None)


def test_ignores_records_of_other_coordinators() -> None:
    assert decode_record(b"\x00\x03" + b"\x00\x01g", b"\x00\x00\x00\x00\x00\x01") is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b""),
        (b"", None),
        (b"\x00", None),
        (OFFSET_KEY[:-1], None),
        (OFFSET_KEY + b"\x00", None),
        (OFFSET_KEY, b"\x00"),
        (OFFSET_KEY, OFFSET_VALUES[3][:-1]),
        (OFFSET_KEY, b"\x00\x05" + OFFSET_VALUES[3][2:]),
        (GROUP_KEY, GROUP_VALUE_3[:-1]),
        (GROUP_KEY, GROUP_VALUE_3[:38] + b"\x7f\xff\xff\xff"),
    ],
)
def test_rejects_invalid_records(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(CorruptMessage):
        decode_record(key, value)


@pytest.mark.parametrize(
    "others", [("b", "i"), ("a", "j"), ("a", None)], ids=["instance", "member", "dynamic"]
)
def test_rejects_a_group_that_contains_an_id_twice(others: tuple[str, str | None]) -> None:
    members = [
        MemberMetadata(
            member_id=member_id,
            group_instance_id=instance_id,
            client_id="c",
            client_host="h",
            session_timeout=1,
            subscription=b"",
            assignment=b"",
        )
        for member_id, instance_id in (("a", "i"), ("c", None), ("d", None), others)
    ]
    value = GroupMetadataValue(
        protocol_type="consumer", generation=1, protocol="range", leader="a", members=members
    )
    record = GroupRecord("g", value)
    with pytest.raises(CorruptMessage, match="two members"):
        decode_record(record.key_bytes(), record.value_bytes())
    members.pop()
    assert decode_record(record.key_bytes(), record.value_bytes()) is not None


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
offsets = st.builds(
    CommittedOffset,
    st.integers(-1, 2**63 - 1),
    st.integers(-1, 2**31 - 1),
    names,
    st.integers(0, 2**62),
    st.just(-1),
    st.binary(min_size=16, max_size=16),
)


@given(names, names, st.integers(0, 2**31 - 1), offsets)
def test_decodes_encoded_records(group: str, topic: str, partition: int, offset: CommittedOffset) -> None:
    record = OffsetRecord(group, topic, partition, offset)
    assert decode_record(record.key_bytes(), record.value_bytes()) == record


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("a", 97),
        ("KafkaConsumerDemo", -2_039_247_585),
        ("polygenelubricants", -(2**31)),
        ("😀", 1772899),
    ],
)
def test_the_hash_equals_that_of_java(text: str, value: int) -> None:
    assert java_string_hash(text) == value


def test_groups_have_the_partitions_of_kafka() -> None:
    assert partition_for("KafkaConsumerDemo", 50) == 35
    assert partition_for("polygenelubricants", 50) == 0
    assert partition_for("", 50) == 0


def test_keeps_no_group_id_that_a_client_asked_for() -> None:
    partition_for("warm up", 50)
    tracemalloc.start()
    try:
        for number in range(64):
            partition_for(f"{number}-".ljust(8_000, "x"), 50)
        assert tracemalloc.get_traced_memory()[0] < 64 * 1_000
    finally:
        tracemalloc.stop()


PRINT_JAVA = """
import java.nio.file.*; import java.util.*; import java.io.*;
import org.apache.kafka.clients.consumer.ConsumerRecord;
public class Print {
  public static void main(String[] args) throws Exception {
    var formatters = List.of(new org.apache.kafka.tools.consumer.OffsetsMessageFormatter(),
        new org.apache.kafka.tools.consumer.GroupMetadataMessageFormatter());
    for (String line : Files.readAllLines(Path.of(args[0]))) {
      String[] halves = line.split(" ");
      byte[] key = HexFormat.of().parseHex(halves[0]);
      byte[] value = halves[1].equals("null") ? null : HexFormat.of().parseHex(halves[1]);
      var record = new ConsumerRecord<byte[], byte[]>("__consumer_offsets", 0, 0L, key, value);
      for (var formatter : formatters) formatter.writeTo(record, System.out);
      System.out.println();
    }
  }
}
"""


@pytest.mark.clients
@pytest.mark.skipif("TIDEMILL_KAFKA_LIBS" not in os.environ, reason="TIDEMILL_KAFKA_LIBS names no jars")
def test_the_formatters_of_apache_kafka_print_the_records(tmp_path: Path) -> None:
    """TIDEMILL_KAFKA_LIBS is the directory of the jars of Apache Kafka, including kafka-tools."""
    java = shutil.which("java")
    assert java is not None
    records = [
        *(OffsetRecord("grp", "topic", 7, OFFSETS[version]) for version in (1, 3, 4)),
        OffsetRecord("grp", "topic", 7, None),
        GroupRecord("grp", GROUP_VALUE),
        GroupRecord("grp", None),
    ]
    lines = []
    for record in records:
        value = record.value_bytes()
        lines.append(f"{record.key_bytes().hex()} {'null' if value is None else value.hex()}")
    (tmp_path / "records").write_text("\n".join(lines))
    (tmp_path / "Print.java").write_text(PRINT_JAVA)
    done = subprocess.run(
        [java, "-cp", f"{os.environ['TIDEMILL_KAFKA_LIBS']}/*", "Print.java", "records"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    printed = [json.loads(line) for line in done.stdout.splitlines() if line.strip()]
    keys = [(one["key"]["type"], one["key"]["data"]) for one in printed]
    offset_key = ("1", {"group": "grp", "topic": "topic", "partition": 7})
    assert [(str(kind), data) for kind, data in keys] == [offset_key] * 4 + [("2", {"group": "grp"})] * 2
    values = [one["value"] for one in printed]
    assert [value and str(value["version"]) for value in values] == ["1", "3", "4", None, "3", None]
    assert values[0]["data"]["expireTimestamp"] == EXPIRES
    assert values[1]["data"] | {"offset": 42, "leaderEpoch": 5, "metadata": "md"} == values[1]["data"]
    assert values[4]["data"]["members"][0]["groupInstanceId"] == "i-1"
    assert values[4]["data"]["leader"] == "m1"
