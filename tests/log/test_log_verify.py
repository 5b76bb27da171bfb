"""The findings of a check of a data directory, which changes nothing."""

from __future__ import annotations

import errno
import json
import os
import re
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from log_stage import MakeBatch, flip

from default_limits import Check, DirectoryCheck
from log_start import NOW, start_logs
from record_builders import build_batch
from tidemill.cli.main import command
from tidemill.log.checkpoint_files import write_offsets
from tidemill.log.log_config import LogConfig
from tidemill.log.log_manager import LogManager
from tidemill.log.system_files import SystemFiles
from tidemill.log_tools.dry_run import ScratchFiles
from tidemill.log_tools.verify import check_partition, log_bytes
from tidemill.model.types import TopicPartition
from tidemill.records.builder import build_end_marker

FILES = SystemFiles()
KEY = TopicPartition("t", 0)
Damage = Callable[[Path], None]


@pytest.fixture
def data(tmp_path: Path, batch: MakeBatch) -> Path:
    """A data directory after a clean shutdown: a partition of several segments, and an empty one."""
    manager = start_logs(FILES, [str(tmp_path / "data")], cluster_id="4L6g3nShT-eMCtK--X86sw")
    manager.dirs.mark_losses_handled()
    config = LogConfig(segment_bytes=4000, index_interval_bytes=300)
    log = manager.create(KEY, bytes(range(16)), config, NOW)
    manager.create(TopicPartition("empty", 0), bytes(range(1, 17)), config, NOW)
    for number in range(80):
        sequence = {"producer_id": 7, "producer_epoch": 1, "base_sequence": number * 2}
        log.append(
            batch(2, timestamp=NOW + number, step_ms=1, codec=number % 5, **sequence), number // 30, NOW
        )
    assert manager.close(NOW, {KEY: 160}) == []
    return tmp_path / "data"


def run(*arguments: object) -> Any:
    return CliRunner().invoke(
        command, ["log", *map(str, arguments)], prog_name="tidemill", standalone_mode=False
    )


def verified(path: Path) -> dict[str, Any]:
    outcome = run("verify", path, "--json")
    assert outcome.exception is None, outcome.exception
    document: dict[str, Any] = json.loads(outcome.output)
    assert outcome.return_value == (0 if document["sound"] else 1)
    return document


def texts(document: dict[str, Any], kind: str = "damage") -> list[str]:
    every = [*document["findings"], *(one for part in document["partitions"] for one in part["findings"])]
    return [f"{os.path.basename(one['path'])}: {one['text']}" for one in every if one["kind"] == kind]


def state_of(path: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(one.relative_to(path)): (one.stat().st_mtime_ns, one.read_bytes())
        for one in path.rglob("*")
        if one.is_file()
    }


def segments(data: Path) -> list[Path]:
    return sorted((data / "t-0").glob("*.log"))


def test_a_sound_directory_is_reported_as_sound(data: Path) -> None:
    before = state_of(data)
    document = verified(data)
    assert state_of(data) == before
    assert (texts(document), texts(document, "note")) == ([], [])
    assert (document["clean_shutdown"], document["broker_running"], document["node_id"]) == (True, False, 1)
    by_name = {os.path.basename(part["directory"]): part for part in document["partitions"]}
    full = by_name["t-0"]
    assert (full["records"], full["batches"], full["end_offset"]) == (160, 80, 160)
    assert full["segments"] == len(segments(data)) > 2
    assert "160 records" in run("verify", data).output
    assert run("verify", data / "t-0").return_value == 0


def middle(data: Path, suffix: str = ".log") -> Path:
    return segments(data)[1].with_suffix(suffix)


def put(path: Path, content: str | bytes) -> None:
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def swap_leader_epochs(data: Path) -> None:
    (data / "t-0" / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n1 3\n")


DAMAGES: dict[str, tuple[Damage, str]] = {
    "a flipped bit in a record": (lambda d: flip(middle(d), 70), "checksum"),
    "a flipped bit in an offset": (
        lambda d: flip(middle(d), 5),
        "not a batch|comes where|points|beyond|before this|no batch",
    ),
    "a length that claims gigabytes": (lambda d: flip(middle(d), 8, 0x7F), "not a batch: the batch length"),
    "an unknown magic byte": (lambda d: flip(middle(d), 16, 0x60), "magic byte"),
    "a truncated segment": (
        lambda d: os.truncate(middle(d), middle(d).stat().st_size - 9),
        "are not a batch",
    ),
    "zeros at the end of a log": (
        lambda d: os.truncate(segments(d)[-1], segments(d)[-1].stat().st_size + 5000),
        "only zeros follow",
    ),
    "an index that leads between batches": (
        lambda d: flip(middle(d, ".index"), 7, 1),
        "where no batch starts",
    ),
    "an index that does not grow": (lambda d: flip(middle(d, ".index"), 0, 0x40), "does not follow|points"),
    "an index of half an entry": (lambda d: os.truncate(middle(d, ".index"), 13), "is not a multiple of 8"),
    "a time index that claims a time too early": (
        lambda d: flip(middle(d, ".timeindex"), 2, 1),
        "largest timestamp|follow",
    ),
    "a time index of half an entry": (
        lambda d: os.truncate(middle(d, ".timeindex"), 13),
        "is not a multiple of 12",
    ),
    "a snapshot with a flipped bit": (
        lambda d: flip(next((d / "t-0").glob("*160.snapshot")), 20),
        "checksum .* the next start reads the producers from the log",
    ),
    "an empty snapshot": (lambda d: os.truncate(next((d / "t-0").glob("*160.snapshot")), 0), "too few"),
    "epochs that are not those of the batches": (swap_leader_epochs, "a follower would truncate"),
    "epochs that are no text": (
        lambda d: put(d / "t-0" / "leader-epoch-checkpoint", b"\xff\xfe"),
        "the next start reads the epochs from the log",
    ),
    "a topic id that is none": (
        lambda d: put(d / "t-0" / "partition.metadata", "version: 0\ntopic_id: x"),
        "is not a partition.metadata",
    ),
    "a checkpoint beyond the end": (
        lambda d: write_offsets(FILES, str(d / "replication-offset-checkpoint"), {KEY: 500}),
        "was acknowledged up to offset 500; the log end offset is 160",
    ),
    "a checkpoint that is no text": (
        lambda d: put(d / "recovery-point-offset-checkpoint", b"0\n-1\n"),
        "a start ignores it",
    ),
    "a segment that is gone": (lambda d: segments(d)[-1].unlink(), "t-0|acknowledged|log end offset"),
    "all segments of a log that held records": (
        lambda d: [one.unlink() for one in segments(d)],
        "t-0 was acknowledged up to offset 160; the log end offset is 0",
    ),
    "all segments, and the checkpoints": (
        lambda d: [one.unlink() for one in (*segments(d), *d.glob("*-offset-checkpoint"))],
        "160.snapshot: is for offset 160, the log end offset is 0",
    ),
    "all files of a partition": (
        lambda d: [one.unlink() for one in (d / "t-0").iterdir()],
        "t-0 was flushed up to offset 160; the log end offset is 0",
    ),
    "meta.properties with an unknown version": (
        lambda d: put(d / "meta.properties", "version=7\n"),
        "version=7 is unknown",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_found_and_reported(data: Path, name: str) -> None:
    damage, expected = DAMAGES[name]
    damage(data)
    before = state_of(data)
    document = verified(data)
    found = texts(document)
    assert found, texts(document, "note")
    assert any(re.search(expected, text) for text in found), found
    assert run("verify", data).return_value == 1
    assert state_of(data) == before


@pytest.mark.parametrize(
    "pattern",
    [
        "t-0/partition.metadata",
        "t-0/leader-epoch-checkpoint",
        "t-0/*160.snapshot",
        "replication-offset-checkpoint",
        "meta.properties",
    ],
)
def test_an_unreadable_file_is_damage_and_every_other_file_is_checked(data: Path, pattern: str) -> None:
    (path,) = data.glob(pattern)
    path.unlink()
    path.mkdir()
    document = verified(data)
    assert texts(document) == [f"{path.name}: cannot be read: Is a directory"]
    assert sum(part["records"] for part in document["partitions"]) == 160


def test_an_unreadable_directory_is_damage_and_every_other_directory_is_checked(data: Path) -> None:
    class OneUnreadable:
        def __getattr__(self, name: str) -> Any:
            return getattr(SystemFiles(), name)

        def list(self, directory: str) -> list[str]:
            if directory.endswith("empty-0"):
                raise OSError(errno.EIO, os.strerror(errno.EIO), directory)
            return SystemFiles().list(directory)

    files: Any = OneUnreadable()
    directory = DirectoryCheck(files, str(data))
    assert log_bytes(directory.files, directory.partitions.values()) > 0
    empty, full = directory.run()
    assert [str(one) for one in empty.findings] == [f"{data}/empty-0: cannot be read: Input/output error"]
    assert (full.records, full.damages) == (160, 0)


@pytest.mark.parametrize(
    ("suffix", "layout", "slot", "column", "step", "reported"),
    [
        (".index", ">ii", 0, 0, None, r"entry 0 \(-1, \d+\) cannot be the first"),
        (".index", ">ii", 0, 1, None, r"entry 0 \(\d+, -1\) cannot be the first"),
        (".index", ">ii", 2, 0, 0, "entry 2 .* does not follow"),
        (".index", ">ii", 2, 0, -1, "entry 2 .* does not follow"),
        (".index", ">ii", 2, 1, 0, "entry 2 .* does not follow"),
        (".index", ">ii", 2, 1, -1, "entry 2 .* does not follow"),
        (".timeindex", ">qi", 0, 1, None, r"entry 0 \(\d+, -1\) cannot be the first"),
        (".timeindex", ">qi", 2, 0, 0, "entry 2 .* does not follow"),
        (".timeindex", ">qi", 2, 0, -1, "entry 2 .* does not follow"),
        (".timeindex", ">qi", 2, 1, -1, "entry 2 .* does not follow"),
    ],
)
def test_both_columns_of_an_index_must_increase(
    data: Path, suffix: str, layout: str, slot: int, column: int, step: int | None, reported: str
) -> None:
    path = middle(data, suffix)
    rows = [list(row) for row in struct.iter_unpack(layout, path.read_bytes())]
    rows[slot][column] = -1 if step is None else rows[slot - 1][column] + step
    path.write_bytes(b"".join(struct.pack(layout, *row) for row in rows))
    assert any(re.search(reported, text) for text in texts(verified(data))), texts(verified(data))


def test_leftover_files_are_reported_and_are_not_damage(data: Path) -> None:
    for name in (
        "00000000000000000000.log.deleted",
        "00000000000000000009.log.cleaned",
        "00000000000000000009.index",
        "records-lost",
        "x",
    ):
        (data / "t-0" / name).touch()
    (data / f"gone-0.{'0' * 32}-delete").mkdir()
    (data / ".kafka_cleanshutdown").unlink()
    document = verified(data)
    assert document["sound"]
    notes = texts(document, "note")
    assert len(notes) == 7
    assert any(note.startswith("records-lost: a start found records lost") for note in notes)
    assert any("was not stopped cleanly" in note for note in notes)
    assert any(note.startswith("00000000000000000009.index: has no log file") for note in notes)


def test_a_running_broker_removes_its_renamed_files(data: Path) -> None:
    (data / "t-0" / "00000000000000000000.log.deleted").touch()
    for running, reported in (
        (True, "the running broker does that"),
        (False, "the next start does that"),
    ):
        check = Check(FILES, str(data / "t-0"), running=running)
        check_partition(check)
        (found,) = [one.text for one in check.findings if one.path.endswith(".deleted")]
        assert reported in found


def test_an_abort_missing_from_its_index_is_damage(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    directory.mkdir()
    written = build_batch(
        [(NOW, b"k", b"v", None)], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True
    )
    marker = build_end_marker(False, NOW, 7, 0, 3, base_offset=1)
    (directory / "00000000000000000000.log").write_bytes(written + marker)
    index = directory / "00000000000000000000.txnindex"
    index.write_bytes(struct.pack(">hqqqq", 0, 7, 0, 1, 2))
    assert verified_partition(directory)["sound"]
    index.unlink()
    (found,) = verified_partition(directory)["partitions"][0]["findings"][-1:]
    assert "the transaction of producer 7 from offset 0 is aborted at 1" in found["text"]


def test_an_abort_of_a_transaction_with_a_deleted_start_needs_no_entry(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    directory.mkdir()
    marker = build_end_marker(False, NOW, 7, 0, 3, base_offset=10)
    (directory / "00000000000000000010.log").write_bytes(marker)
    assert verified_partition(directory)["sound"]


def verified_partition(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(run("verify", path, "--json").output)
    return document


def test_a_batch_truncated_during_the_check_is_damage(tmp_path: Path, batch: MakeBatch) -> None:
    first = batch(1).to_bytes()
    second = bytearray(batch(1, base_offset=1).to_bytes())
    second[17:21] = (1).to_bytes(4, "big")
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(first + second)

    def cut(_: int) -> None:
        os.truncate(path, len(first) + 21)

    check = Check(FILES, str(tmp_path), on_bytes=cut)
    check_partition(check)
    assert any(
        one.damage and one.position == len(first) and "its header has 1" in one.text for one in check.findings
    )


def test_dangling_links_are_reported(data: Path) -> None:
    (data / "backup-1").symlink_to("/gone/backup")
    outcome = run("verify", data)
    assert not outcome.return_value
    assert f"note   {data}/backup-1: is a link to a missing file: it is ignored" in outcome.output
    (data / "t-0").rename(data.parent / "moved")
    (data / "t-0").symlink_to("/gone/t-0")
    outcome = run("verify", data)
    assert outcome.return_value == 1
    damage = f"damage {data}/t-0: is a link to a missing file: "
    assert f"{damage}a start leaves t-0 offline until the target is back" in outcome.output
    outcome = run("recover", "--dry-run", data)
    assert outcome.exception is None
    assert f"{data}/t-0 is a link to a missing file: the partition t-0 stays offline" in outcome.output


def test_a_directory_without_logs_is_a_usage_error(tmp_path: Path) -> None:
    outcome = run("verify", tmp_path)
    assert "is neither a data directory nor the directory of a partition" in str(outcome.exception)
    assert run("verify", tmp_path / "nowhere").exception is not None


def test_a_dry_run_reports_the_actions_of_a_start_and_changes_nothing(data: Path) -> None:
    last = segments(data)[-1]
    good = last.stat().st_size
    with last.open("ab") as file:
        file.write(b"half a batch")
    flip(middle(data, ".index"), 7, 1)
    (data / ".kafka_cleanshutdown").unlink()
    before = state_of(data)
    document = json.loads(run("recover", "--dry-run", data, "--json").output)
    assert state_of(data) == before
    assert document["cut"] == [{"path": str(last), "size": good, "lost": 12}]
    assert any("truncation at byte" in text for text in document["messages"])

    outcome = run("recover", data, "--json")
    assert outcome.exception is None
    assert json.loads(outcome.output)["messages"] == document["messages"]
    assert last.stat().st_size == good
    assert (data / ".kafka_cleanshutdown").exists()


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("truncate"), st.integers(0, 20)),
            st.tuples(st.just("append"), st.binary(max_size=6)),
            st.tuples(st.just("write"), st.integers(0, 12), st.binary(min_size=1, max_size=4)),
        ),
        max_size=8,
    )
)
def test_a_dry_run_reads_its_own_writes_and_leaves_the_file_unchanged(
    changes: list[tuple[Any, ...]],
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        real = Path(directory, "file")
        real.write_bytes(b"0123456789")
        scratch, copy = ScratchFiles(), Path(directory, "copy")
        copy.write_bytes(b"0123456789")
        pairs = [(scratch, str(real)), (FILES, str(copy))]
        for name, *values in changes:
            for files, path in pairs:
                file = files.open(path)
                if name == "truncate":
                    file.truncate(values[0])
                elif name == "append":
                    file.append([values[0]])
                else:
                    file.write_at(*values)
                file.close()
            expected = copy.read_bytes()
            assert (scratch.read(str(real)), scratch.size(str(real))) == (expected, len(expected))
        scratch.close()
        assert real.read_bytes() == b"0123456789"


def test_a_directory_in_use_is_not_recovered(data: Path) -> None:
    manager = LogManager(FILES, [str(data)])
    manager.dirs.lock()
    assert "is in use by another broker" in str(run("recover", data).exception)
    manager.dirs.unlock()
