"""The JSON objects of ``tidemill log dump --json``."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from click.testing import CliRunner

from record_builders import build_batch, build_message_set
from tidemill.cli.main import command
from tidemill.log.producer_state_manager import KeptBatch, ProducerEntry, ProducerStateManager
from tidemill.log.transaction_index import Aborted, encode_all
from tidemill.records.batch import GZIP
from tidemill.records.builder import build_end_marker

NOW = 1_700_000_000_000
LOG = "00000000000000000000.log"

BATCH = {
    "kind": "batch",
    "magic": 2,
    "base_offset": 0,
    "last_offset": 0,
    "count": 1,
    "base_sequence": 5,
    "last_sequence": 5,
    "producer_id": 7,
    "producer_epoch": 1,
    "leader_epoch": 3,
    "transactional": True,
    "control": False,
    "delete_horizon_ms": None,
    "position": 0,
    "timestamp_type": "CreateTime",
    "max_timestamp": NOW,
    "size": 74,
    "codec": "none",
    "crc": 2750971584,
    "valid": True,
}
COMMON = {"kind": "record", "offset": 0, "timestamp_type": "CreateTime", "timestamp": NOW, "magic": 2}
RECORD = {
    **COMMON,
    "key_size": 1,
    "value_size": 1,
    "sequence": 5,
    "headers": [{"key": "h", "value_base64": "/w=="}],
    "key": "k",
    "value_base64": "/w==",
    "control": False,
    "marker": None,
    "control_type": None,
    "coordinator_epoch": None,
}
MARKER_BATCH = {
    "base_sequence": -1,
    "last_sequence": -1,
    "leader_epoch": -1,
    "control": True,
    "size": 78,
    "crc": ANY,
}
MARKER = {
    "key_size": 4,
    "value_size": 6,
    "sequence": -1,
    "headers": [],
    "key": "\0\0\0\1",
    "control": True,
    "value": "\0\0\0\0\0\4",
    "marker": "COMMIT",
    "control_type": 1,
    "coordinator_epoch": 4,
}
NOT_BATCHES = {"count": 3, "position": 74, "fault": "only 3 bytes remain, too few for a batch"}
WRAPPER = {
    "kind": "batch",
    "magic": 1,
    "last_offset": 1,
    "position": 0,
    "timestamp_type": "CreateTime",
    "max_timestamp": NOW,
    "size": ANY,
    "codec": "gzip",
    "crc": ANY,
    "valid": True,
}
MESSAGE = {
    **COMMON,
    "magic": 1,
    "key_size": -1,
    "value_size": 1,
    "headers": [],
    "key": None,
    "value": "v",
    "control": False,
    "crc": 3244763845,
    "valid": True,
}
PRODUCER = {
    "kind": "producer",
    "producer_id": 7,
    "producer_epoch": 1,
    "coordinator_epoch": 2,
    "transaction_first_offset": None,
    "last_timestamp": NOW,
    "first_sequence": 3,
    "last_sequence": 5,
    "last_offset": 9,
    "offset_delta": 2,
    "known": True,
}


def marked_batch() -> bytes:
    records = [(NOW, b"k", b"\xff", [("h", b"\xff")])]
    fields = {"producer_id": 7, "producer_epoch": 1, "base_sequence": 5, "leader_epoch": 3}
    return build_batch(records, transactional=True, **fields)


def producer_snapshot() -> bytes:
    manager = ProducerStateManager("t-0")
    entry = manager.entries[7] = ProducerEntry(7, 1)
    entry.batches.append(KeptBatch(5, 9, 2, NOW))
    entry.last_timestamp, entry.coordinator_epoch = NOW, 2
    return manager.encode()


@pytest.mark.parametrize(
    ("name", "data", "objects"),
    [
        (LOG, marked_batch() + b"xyz", [BATCH, RECORD, {"kind": "invalid_bytes", **NOT_BATCHES}]),
        (
            LOG,
            build_message_set(1, [(NOW, None, b"v")] * 2, codec=GZIP),
            [WRAPPER, MESSAGE, {**MESSAGE, "offset": 1}],
        ),
        (
            LOG,
            build_end_marker(True, NOW, 7, 1, 4),
            [{**BATCH, **MARKER_BATCH}, {**COMMON, **MARKER}],
        ),
        (
            "00000000000000000005.index",
            struct.pack(">ii", 1, 5),
            [
                {"kind": "index_entry", "offset": 6, "position": 5},
                {"kind": "mismatch", "index_offset": 6, "log_offset": -1},
            ],
        ),
        (
            "00000000000000000005.timeindex",
            struct.pack(">qi", NOW, 1),
            [
                {"kind": "time_index_entry", "timestamp": NOW, "offset": 6},
                {
                    "kind": "problem",
                    "heading": "The following indexed offsets are not found in :{}",
                    "text": "Indexed offset: 6, found log offset: -1",
                },
            ],
        ),
        (
            "00000000000000000005.txnindex",
            encode_all([Aborted(0, 7, 1, 5, 6)]),
            [
                {
                    "kind": "aborted",
                    "version": 0,
                    "producer_id": 7,
                    "first_offset": 1,
                    "last_offset": 5,
                    "last_stable_offset": 6,
                }
            ],
        ),
        ("00000000000000000005.snapshot", producer_snapshot(), [PRODUCER]),
        ("leader-epoch-checkpoint", b"0\n1\n4 77\n", [{"kind": "epoch", "epoch": 4, "start_offset": 77}]),
        (
            "partition.metadata",
            b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw",
            [{"kind": "topic_id", "topic_id": bytes(range(16)).hex()}],
        ),
    ],
)
def test_entries_of_every_kind_are_objects_of_json(
    tmp_path: Path, name: str, data: bytes, objects: list[dict[str, Any]]
) -> None:
    (tmp_path / "00000000000000000005.log").write_bytes(b"")
    path = tmp_path / name
    path.write_bytes(data)
    arguments = ["log", "dump", str(path), "--records", "--json"]
    output = CliRunner().invoke(command, arguments, standalone_mode=False)
    shown = [json.loads(line) for line in output.stdout.splitlines()]
    assert shown == [{"file": str(path), **one} for one in objects]
