"""The checkers detect logs whose state in memory is wrong, and uncovered commits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from committed_promise import DOUBT_S, CheckedBroker, synced_end
from log_inspection import end_on_disk
from log_state_promise import LogStatePromise
from promises import TopicSettings
from simulated_compaction import CleaningCheck
from simulated_disk import SimulatedFiles
from simulated_loop import SimulatedLoop
from test_promise_checkers import ID, TP, Checked

from record_builders import build_batch
from tidemill.log.checkpoint_files import render_checkpoint
from tidemill.log.delayed_file_removal import DelayedFileRemoval
from tidemill.log.file_names import CLEANED, DELETED, LOG, MOVED_TO, RECOVERY_POINTS, SWAP, offset_name
from tidemill.log.log import Log
from tidemill.log.log_config import LogConfig
from tidemill.log.log_directories import DataDirectories
from tidemill.log.log_loader import LogLoader
from tidemill.model.types import TopicPartition
from tidemill.records.batch import parse_batch
from tidemill.replication.partition import Partition

NOW = 1_700_000_000_000
PRODUCER = 7


class Kept:
    """A log on a simulated disk: batches of one record in the epochs 0, 0, 3, 3, 5, without errors."""

    def __init__(self) -> None:
        self.broken: list[str] = []
        self.excuses: Counter[str] = Counter()
        self.promise = LogStatePromise(lambda name, text: self.broken.append(f"{name}: {text}"), self._excuse)
        clock = SimpleNamespace(time=lambda: 0.0, is_in_job=False)
        self.files = SimulatedFiles(cast(SimulatedLoop, clock))
        for directory in ("/data", "/data/t-0"):
            self.files.make_directory(directory)
        self.log = self.open()
        for sequence, epoch in enumerate((0, 0, 3, 3, 5)):
            self.append(sequence, epoch)

    def open(self) -> Log:
        key = TopicPartition("t", 0)
        opening = LogLoader(
            self.files, "/data/t-0", key, LogConfig(), removals=DelayedFileRemoval(), now_ms=NOW
        )
        return opening.open()

    def append(self, sequence: int, epoch: int, value: bytes | None = b"v") -> None:
        data = build_batch(
            [(NOW, b"k", value, None)], producer_id=PRODUCER, producer_epoch=0, base_sequence=sequence
        )
        self.log.append(parse_batch(data, 0, len(data)), epoch, NOW)

    def sync(self) -> None:
        """The log is on the disk."""
        self.log.flush(NOW)
        self.files.sync_directory("/data")

    def _excuse(self, excuse: str) -> bool:
        self.excuses[excuse] += 1
        return True

    def look(self, led_in: int = -1, *, is_refused: bool = False, **said: int) -> None:
        """Checks the replica, which may lead; ``said`` is the content of the checkpoints.

        ``is_refused``: the disk was full when they were last written.
        """
        directory = SimpleNamespace(
            **{
                name: SimpleNamespace(
                    path=name, _is_known=not is_refused, max_offset=lambda key, name=name: said.get(name, 0)
                )
                for name in ("recovery_points", "start_offsets", "cleaner_offsets")
            }
        )
        one = SimpleNamespace(log=self.log, is_leader=led_in >= 0, leader_epoch=led_in, is_offline=False)
        directories = SimpleNamespace(directory_of=lambda log: directory)
        self.promise.look("broker-1", [cast(Partition, one)], cast(DataDirectories, directories))

    def found(self) -> list[str]:
        """The promises that are broken."""
        self.promise.check("broker-1", self.log)
        return [one.partition(":")[0] for one in self.broken]


def test_a_consistent_log_breaks_no_promise() -> None:
    kept = Kept()
    assert kept.found() == []
    kept.sync()
    kept.log.truncate_to(3, NOW)
    kept.append(3, 6)
    assert kept.found() == []


def test_the_future_log_of_a_move_is_checked_after_its_rename() -> None:
    kept, longer = Kept(), Kept()
    kept.sync()
    longer.append(5, 5)
    files = kept.files
    ends = [(end_on_disk(files, "t-0"), synced_end(files, "t-0"))]
    files.make_directory("/data2/t-0-future")
    segment = "00000000000000000000.log"
    copy = files.open(f"/data2/t-0-future/{segment}", create=True)
    copy.append([longer.files.read(f"/data/t-0/{segment}")])
    copy.sync()
    files.replace(f"/data/t-0/{MOVED_TO}", b"/data2\n")
    for directory in ("/data", "/data/t-0", "/data2", "/data2/t-0-future"):
        files.sync_directory(directory)
    ends.append((end_on_disk(files, "t-0"), synced_end(files, "t-0")))
    files.rename("/data2/t-0-future", "/data2/t-0")
    ends.append((end_on_disk(files, "t-0"), synced_end(files, "t-0")))
    files.sync_directory("/data2")
    ends.append((end_on_disk(files, "t-0"), synced_end(files, "t-0")))
    assert ends == [(5, 5), (5, 5), (6, 5), (6, 6)]


@pytest.mark.parametrize("is_same_process", [True, False])
def test_a_cleaning_does_not_apply_to_the_log_of_the_next_process(is_same_process: bool) -> None:
    """A cut renames segments, as an exchange does, and what it takes is not lost."""
    kept, checked = Kept(), Checked()
    partition = SimpleNamespace(log=kept.log, high_watermark=5)
    node = SimpleNamespace(name="broker-1", files=kept.files, all_partitions=[partition])
    job = SimpleNamespace(name="t-0", directory="/data/t-0", segments=[], upper_bound=0)
    world = SimpleNamespace(promises=checked.promises, cleaning_begins=lambda *of: None)
    check = CleaningCheck(cast(Any, world), cast(Any, node), cast(Any, job))
    segment = "/data/t-0/" + offset_name(0, LOG)
    cleaned = kept.files.open(segment + CLEANED, create=True)
    cleaned.append([kept.files.read(segment)])
    check.watch(cast(Any, SimpleNamespace(old=(0,))))
    kept.files.remove(segment + CLEANED)
    if not is_same_process:
        partition.log = kept.open()
        partition.log.durability.truncations = kept.log.truncations
    kept.files.rename(segment, segment + DELETED)
    assert bool(checked.broken) is is_same_process


def test_tombstones_are_removed_when_a_start_would_complete_their_swap() -> None:
    kept, checked = Kept(), Checked()
    checked.written(1)
    segment = "/data/t-0/" + offset_name(0, LOG)
    cleaned = kept.files.open(segment + CLEANED, create=True)
    cleaned.append([kept.files.read(segment)])
    kept.append(5, 5, None)
    partition = SimpleNamespace(log=kept.log, high_watermark=6)
    node = SimpleNamespace(name="broker-1", files=kept.files, all_partitions=[partition])
    one = SimpleNamespace(base_offset=0)
    job = SimpleNamespace(name="t-0", directory="/data/t-0", segments=[one], upper_bound=0)
    world = SimpleNamespace(
        promises=checked.promises, node=lambda broker: node, cleaning_begins=lambda *of: None
    )
    check = CleaningCheck(cast(Any, world), cast(Any, node), cast(Any, job))
    check.watch(cast(Any, SimpleNamespace(old=(0,))))
    removed = checked.promises.compaction._removed
    assert not removed[TP]
    kept.files.rename(segment + CLEANED, segment + SWAP)
    assert removed[TP] == {5: b"k"}


def forget_an_epoch(log: Log) -> None:
    del log.leader_epochs.epochs[1], log.leader_epochs.starts[1]


def begin_an_epoch_late(log: Log) -> None:
    log.leader_epochs.starts[1] = 3


def know_an_epoch_behind_the_end(log: Log) -> None:
    log.leader_epochs.epochs.append(9)
    log.leader_epochs.starts.append(8)


def know_an_epoch_without_batches(log: Log) -> None:
    log.leader_epochs.epochs.insert(1, 2)
    log.leader_epochs.starts.insert(1, 1)


def forget_a_producer(log: Log) -> None:
    log.producer_state.entries.clear()


def know_a_later_sequence(log: Log) -> None:
    log.producer_state.entries[PRODUCER].batches[-1].last_sequence = 9


def know_another_producer(log: Log) -> None:
    data = build_batch([(NOW, None, b"v", None)], producer_id=8, producer_epoch=0, base_sequence=0)
    log.producer_state.apply(parse_batch(data, 0, len(data)), None, 4, NOW, NOW)


def treat_all_as_synced(log: Log) -> None:
    log.durability.recovery_point = log.end_offset


def be_longer_than_the_last_batch(log: Log) -> None:
    log.end_offset += 1


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        (be_longer_than_the_last_batch, "no-hole"),
        (know_a_later_sequence, "producers"),
    ],
)
@pytest.mark.parametrize("is_compacted", [True, False])
def test_state_that_compaction_may_have_removed_is_excused(
    fault: Callable[[Log], None], name: str, is_compacted: bool
) -> None:
    kept = Kept()
    if is_compacted:
        kept.log.set_config(LogConfig(cleanup_policy=("compact",)))
    assert (kept.found(), kept.excuses) == ([], {})
    fault(kept.log)
    assert kept.found() == [name] * (not is_compacted)
    assert kept.excuses["compacted"] == is_compacted


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        (forget_an_epoch, "epochs"),
        (begin_an_epoch_late, "epochs"),
        (know_an_epoch_behind_the_end, "epochs"),
        (know_an_epoch_without_batches, "epochs"),
        (forget_a_producer, "producers"),
        (know_a_later_sequence, "producers"),
        (know_another_producer, "producers"),
        (treat_all_as_synced, "recovery-point"),
    ],
)
def test_log_state_that_differs_from_the_segments_is_found(fault: Callable[[Log], None], found: str) -> None:
    kept = Kept()
    fault(kept.log)
    assert kept.found() == [found]


def test_a_truncation_and_a_new_recovery_point_are_checked() -> None:
    kept = Kept()
    kept.look()
    forget_a_producer(kept.log)
    kept.look()
    assert kept.broken == [], "nothing has happened to the log"
    treat_all_as_synced(kept.log)
    kept.look()
    assert [one.partition(":")[0] for one in kept.broken] == ["recovery-point"]
    kept.broken.clear()
    kept.log.durability.recovery_point = 0
    kept.log.truncate_to(4, NOW)
    forget_a_producer(kept.log)
    kept.look()
    assert [one.partition(":")[0] for one in kept.broken] == ["producers"]


@pytest.mark.parametrize("checkpoint", ["recovery_points", "start_offsets", "cleaner_offsets"])
@pytest.mark.parametrize(("said", "is_broken"), [(0, False), (1, True)])
def test_checkpoints_beyond_the_log_are_found_before_it_continues(
    checkpoint: str, said: int, is_broken: bool
) -> None:
    kept = Kept()
    kept.look(**{checkpoint: said})
    assert kept.broken == [], "nothing was appended"
    kept.append(5, 5)
    kept.look(**{checkpoint: said})
    assert [one.partition(":")[0] for one in kept.broken] == ["checkpoints"] * is_broken


def test_a_restarted_log_continues_with_its_first_record() -> None:
    kept = Kept()
    kept.look()
    kept.log.truncate_to(2, NOW)
    kept.look(recovery_points=5)
    kept.log.truncate_fully_and_start_at(4, NOW)
    kept.look(recovery_points=5)
    assert kept.broken == [], "nothing was appended"
    kept.append(4, 6)
    kept.look(recovery_points=5)
    assert [one.partition(":")[0] for one in kept.broken] == ["checkpoints"]


def test_a_checkpoint_that_a_full_disk_rejected_is_excused() -> None:
    kept = Kept()
    kept.look()
    kept.append(5, 5)
    kept.look(is_refused=True, recovery_points=1)
    assert (kept.broken, kept.excuses) == ([], {"full-disk": 1})


@pytest.mark.parametrize("known", ["recovery_point", "clean_end", "start_offset"])
def test_state_beyond_the_log_end_offset_is_found(known: str) -> None:
    kept = Kept()
    setattr(kept.log.durability if known == "recovery_point" else kept.log, known, 6)
    kept.look()
    assert [one.partition(":")[0] for one in kept.broken] == ["checkpoints"]


@pytest.mark.parametrize(("epoch", "is_broken"), [(5, False), (6, True)])
def test_a_leader_knows_its_epoch_before_its_first_write(epoch: int, is_broken: bool) -> None:
    kept = Kept()
    kept.look(led_in=epoch)
    assert [one.partition(":")[0] for one in kept.broken] == ["epochs"] * is_broken


def test_an_epoch_without_records_after_a_truncation_is_found() -> None:
    kept = Kept()
    kept.log.truncate_to(3, NOW)
    kept.promise.cut("broker-1", kept.log)
    assert kept.broken == []
    kept.log.leader_epochs.assign(7, 3)
    kept.promise.cut("broker-1", kept.log)
    assert [one.partition(":")[0] for one in kept.broken] == ["epochs"]


@pytest.mark.parametrize("offset", [4, 6])
def test_a_gap_an_overlap_and_an_end_without_a_batch_are_found(offset: int) -> None:
    kept = Kept()
    kept.log.end_offset = offset
    kept.append(5, 5)
    assert kept.found()[0] == "no-hole"
    kept = Kept()
    kept.log.end_offset = 6
    assert kept.found() == ["no-hole"]


@pytest.mark.parametrize("is_compacted", [True, False])
def test_compaction_leaves_gaps_and_no_overlap(is_compacted: bool) -> None:
    kept = Kept()
    if is_compacted:
        kept.log.set_config(LogConfig(cleanup_policy=("compact",)))
    kept.log.end_offset = 7
    kept.append(5, 5)
    assert kept.found() == ["no-hole"] * (not is_compacted)
    kept.broken.clear()
    kept.log.end_offset = 7
    kept.append(6, 5)
    assert kept.found()[0] == "no-hole"


@pytest.mark.parametrize(("begin", "is_broken"), [(5, False), (6, True)])
def test_an_epoch_in_a_copy_of_a_compacted_log_starts_at_the_former_log_end(
    begin: int, is_broken: bool
) -> None:
    kept = Kept()
    kept.log.set_config(LogConfig(cleanup_policy=("compact",)))
    kept.look()
    kept.log.end_offset = 6
    kept.append(5, 7)
    kept.log.leader_epochs.starts[-1] = begin
    kept.look()
    assert [one.partition(":")[0] for one in kept.broken] == ["epochs"] * is_broken


@pytest.mark.parametrize(("begin", "is_broken"), [(6, False), (7, True)])
@pytest.mark.parametrize("is_cut", [True, False])
def test_an_epoch_after_the_last_batch_of_a_compacted_log_starts_at_an_open_or_truncation(
    begin: int, is_broken: bool, is_cut: bool
) -> None:
    kept = Kept()
    kept.log.set_config(LogConfig(cleanup_policy=("compact",)))
    kept.look()
    kept.log.durability.truncations += 1
    kept.log.end_offset = 6
    if is_cut:
        kept.promise.cut("broker-1", kept.log)
    else:
        kept.promise.opened("broker-1", kept.log)
    kept.log.end_offset = 7
    kept.append(5, 7)
    kept.log.leader_epochs.starts[-1] = begin
    kept.broken.clear()
    kept.excuses.clear()
    kept.look()
    assert [one.partition(":")[0] for one in kept.broken] == ["epochs"] * is_broken
    assert kept.excuses["unflushed-truncation"] == (not is_broken)


def test_a_repeated_sequence_in_a_producer_state_is_found() -> None:
    kept = Kept()
    kept.append(5, 5)
    batches = kept.log.producer_state.entries[PRODUCER].batches
    assert kept.found() == []
    batches[-2].last_sequence = batches[-1].last_sequence
    assert kept.found() == ["producers"]


@pytest.mark.parametrize("is_compacted", [True, False])
@pytest.mark.parametrize("is_synced", [True, False])
def test_a_recovery_point_checkpoint_beyond_the_disk_is_found(is_synced: bool, is_compacted: bool) -> None:
    kept = Kept()
    if is_synced:
        kept.sync()
    path = f"/data/{RECOVERY_POINTS}"
    file = kept.files.open(path, create=True)
    file.append([render_checkpoint([f"t 0 {kept.log.end_offset}"])])
    file.sync()
    kept.files.sync_directory("/data")
    kept.promise.process_ends("broker-1", kept.files, lambda topic: is_compacted)
    assert [one.partition(":")[0] for one in kept.broken] == ["recovery-point"] * (not is_synced)


def test_the_recovery_point_of_a_future_log_is_checked_after_its_rename_is_flushed() -> None:
    kept = Kept()
    kept.sync()
    kept.files.make_directory("/data2")
    for path in ("/data", "/data2"):
        file = kept.files.open(f"{path}/{RECOVERY_POINTS}", create=True)
        file.append([render_checkpoint([f"t 0 {kept.log.end_offset}"])])
        file.sync()
    kept.files.rename("/data/t-0", "/data2/t-0")
    for path in ("/data", "/data2"):
        kept.files.sync_directory(path)
    kept.files.make_directory("/data/t-0")
    kept.files.open("/data/t-0/00000000000000000000.log", create=True).append(
        [kept.files.read("/data2/t-0/00000000000000000000.log")]
    )
    kept.files.replace(f"/data2/t-0/{MOVED_TO}", b"/data\n")
    assert kept.found() == []
    kept.promise.process_ends("broker-1", kept.files, lambda topic: False)
    assert kept.broken == []


@pytest.mark.parametrize("is_compacted", [True, False])
def test_the_recovery_point_of_a_compacted_log_is_checked(is_compacted: bool) -> None:
    kept = Kept()
    if is_compacted:
        kept.log.set_config(LogConfig(cleanup_policy=("compact",)))
    treat_all_as_synced(kept.log)
    assert kept.found() == ["recovery-point"]


@pytest.mark.parametrize("base", [0, 7])
def test_replaced_segments_are_on_the_disk_during_a_swap(base: int) -> None:
    kept = Kept()
    kept.sync()
    kept.log.set_config(LogConfig(cleanup_policy=("compact",)))
    path = "/data/t-0/00000000000000000000.log"
    files = kept.files
    cleaned = files.open(path + CLEANED, create=True)
    cleaned.append([build_batch([(NOW, b"k", b"kept", None)], base_offset=base)])
    cleaned.sync()
    files.rename(path + CLEANED, path)
    assert not files.is_synced(path)
    kept.promise.check_synced("broker-1", kept.log, 8, "its recovery point")
    assert [one.partition(":")[0] for one in kept.broken] == ["recovery-point"] * (base == 7)
    files.sync_directory("/data/t-0")
    kept.broken.clear()
    kept.promise.check_synced("broker-1", kept.log, 8, "its recovery point")
    assert kept.broken == []


@pytest.mark.parametrize(("begin", "excused"), [(5, 2), (6, 1)])
def test_an_epoch_whose_first_batches_were_compacted_is_excused(begin: int, excused: int) -> None:
    kept = Kept()
    kept.log.set_config(LogConfig(cleanup_policy=("compact",)))
    kept.log.end_offset = 6
    kept.append(5, 7)
    kept.log.leader_epochs.starts[-1] = begin
    assert (kept.found(), kept.excuses["compacted"]) == ([], excused)


def test_another_batch_of_the_same_epoch_in_a_compacted_log_is_excused() -> None:
    one, other = Kept(), Kept()
    for kept, value in ((one, b"one"), (other, b"other")):
        kept.log.set_config(LogConfig(cleanup_policy=("compact",)))
        kept.append(5, 6, value)
        one.promise.check("broker", kept.log)
    assert (one.broken, one.excuses["compacted"]) == ([], 1)


@pytest.mark.parametrize("is_same_epoch", [True, False])
def test_different_batches_of_two_replicas_in_one_epoch_are_found(is_same_epoch: bool) -> None:
    one, other = Kept(), Kept()
    other.promise = one.promise
    one.append(5, 6, b"one")
    other.append(5, 6 if is_same_epoch else 7, b"other")
    for broker, kept in (("broker-1", one), ("broker-2", other)):
        one.promise.check(broker, kept.log)
    assert [text.partition(":")[0] for text in one.broken] == ["one-batch"] * is_same_epoch


def replica(mark: int, *, end: int = 10, start: int = 0, is_leader: bool = False) -> Partition:
    """A partition as a broker has it."""
    log = SimpleNamespace(topic_id=ID, start_offset=start, end_offset=end)
    known: dict[str, Any] = {"topic": "t", "index": 0, "log": log, "leader_epoch": 1}
    return cast(Partition, SimpleNamespace(high_watermark=mark, is_leader=is_leader, **known))


def looked_at(checked: Checked, **replicas: Partition) -> list[str]:
    """Returns the broken promises after a check of brokers with a replica each."""
    brokers = [CheckedBroker(int(name[1:]), [one]) for name, one in replicas.items()]
    checked.promises.commits.look(brokers)
    return [one.partition(":")[0] for one in checked.broken]


def test_a_commit_without_the_isr_or_without_its_flush_is_found() -> None:
    checked = Checked()
    assert looked_at(checked, b1=replica(10, is_leader=True), b2=replica(8)) == []
    checked.ends = {1: 12, 2: 12, 3: 11}
    assert looked_at(checked, b1=replica(12, end=12, is_leader=True)) == ["committed"]
    checked = Checked()
    checked.promises.settings["t"] = TopicSettings(flush_each=True)
    checked.promises.synced_end = lambda tp, broker: 10 if broker == 1 else 9
    checked.promises.started_s = lambda broker: 1.0
    assert looked_at(checked, b1=replica(9, is_leader=True)) == []
    assert looked_at(checked, b1=replica(10, is_leader=True)) == ["committed"]


def test_a_high_watermark_beyond_the_log_or_the_leader_is_found() -> None:
    checked = Checked()
    assert looked_at(checked, b1=replica(5, is_leader=True), b2=replica(6, end=5)) == ["committed"]
    leader = replica(5, is_leader=True)
    checked = Checked()
    looked_at(checked, b1=leader)
    assert looked_at(checked, b1=leader, b2=replica(6)) == [], "the leader may be looked at late"
    checked.now += DOUBT_S + 0.1
    assert looked_at(checked, b1=leader, b2=replica(6)) == ["committed"]


@pytest.mark.parametrize("later", [replica(6, is_leader=True), replica(6), None])
def test_a_leader_may_have_sent_a_high_watermark_between_two_checks(later: Partition | None) -> None:
    checked = Checked()
    looked_at(checked, b1=replica(5, is_leader=True))
    follower = replica(6)
    looked_at(checked, b1=replica(5, is_leader=True), b2=follower)
    checked.now += DOUBT_S + 0.1
    assert looked_at(checked, b2=follower, **({} if later is None else {"b1": later})) == []


def test_a_former_leader_may_have_sent_a_higher_high_watermark_than_its_successor() -> None:
    checked = Checked()
    looked_at(checked, b1=replica(5, is_leader=True), b2=replica(5), b3=replica(5))
    looked_at(checked, b2=replica(5), b3=replica(5))
    looked_at(checked, b2=replica(5), b3=replica(6))
    for end in (11, 12):
        looked_at(checked, b2=replica(5, is_leader=True), b3=replica(6, end=end))
        checked.now += DOUBT_S + 0.1
    assert looked_at(checked, b2=replica(5, is_leader=True), b3=replica(6, end=12)) == []
    looked_at(checked, b2=replica(5, is_leader=True), b3=replica(7, end=12))
    checked.now += DOUBT_S + 0.1
    assert looked_at(checked, b2=replica(5, is_leader=True), b3=replica(7, end=12)) == ["committed"]


def test_a_log_start_offset_above_the_high_watermark_is_found() -> None:
    checked = Checked()
    assert looked_at(checked, b1=replica(5, start=5, is_leader=True)) == []
    assert looked_at(checked, b1=replica(5, start=6, is_leader=True)) == ["committed"]


@pytest.mark.parametrize(("in_sync", "is_broken"), [((1, 2), True), ((1,), False)])
def test_an_eligible_replica_with_enough_in_sync_replicas_is_found(
    in_sync: tuple[int, ...], is_broken: bool
) -> None:
    checked = Checked()
    checked.promises.min_isr_written("t", 2)
    checked.written(*in_sync)
    checked.promises.eligible_written(TP, [3])
    assert [one.partition(":")[0] for one in checked.broken] == ["eligible"] * is_broken


def test_the_latest_epoch_after_a_truncation_may_start_after_the_compacted_batches() -> None:
    kept = Kept()
    kept.log.set_config(LogConfig(cleanup_policy=("compact",)))
    kept.look()
    kept.log.truncate_to(4, NOW)
    checked: list[Log] = []
    kept.promise._check_begin = lambda broker, log: checked.append(log)  # type: ignore[method-assign]
    kept.look()
    assert checked == []
    kept.append(4, 7)
    kept.look()
    assert checked == [kept.log]


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_an_emptied_log_without_the_epoch_of_its_last_record_is_found(is_forgotten: bool) -> None:
    kept = Kept()
    kept.look()
    kept.log.advance_start(5)
    if is_forgotten:
        kept.log.leader_epochs.truncate_from_end(-1)
    kept.look(log_start_offset=5)
    text = "broker-1 has deleted all of t-0, whose last record was of epoch 5, and knows {}"
    assert kept.broken == ([f"epochs: {text}"] if is_forgotten else [])


def test_a_restarted_log_has_another_last_record() -> None:
    kept = Kept()
    kept.look()
    kept.promise.forget_last_epoch("broker-1", kept.log.directory)
    kept.log.truncate_fully_and_start_at(5, NOW)
    kept.look()
    assert kept.broken == []
