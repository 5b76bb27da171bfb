"""Power cuts: with ``flush.messages=1``, no acknowledged record is lost."""

from __future__ import annotations

import itertools
import threading
import time
from pathlib import Path
from random import Random

import pytest
from crash_machine import PATIENCE_S, Machine, NewMachine, batch_of
from faulty_files import FaultyFiles

from tidemill.model.errors import ErrorCode

PARTITIONS = 2
names = itertools.count()
RETRIED = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
)


class Pipeliner(threading.Thread):
    """Writes to one partition with several requests in flight until the machine stops."""

    def __init__(self, machine: Machine, partition: int, acks: int, codec: int, idempotent: bool) -> None:
        super().__init__(daemon=True)
        self.client = machine.client()
        self.partition = partition
        self.acks = acks
        self.codec = codec
        self.producer_id = self.client.producer_id() if idempotent else -1
        self.name_bytes = f"{next(names)} {partition} {acks} {codec}".encode()
        self.sent = 0
        self.acknowledged = 0
        self.problem: BaseException | None = None

    def run(self) -> None:
        try:
            while True:
                while self.sent - self.acknowledged < 4:
                    self.send()
                code, _ = self.client.produced()
                assert code == 0, code
                self.acknowledged += 1
        except (ConnectionError, BrokenPipeError):
            pass
        except BaseException as problem:  # noqa: BLE001 - raised by the test
            self.problem = problem
        finally:
            self.client.close()

    def send(self) -> None:
        """Sends one batch of two messages."""
        values = [b"%b: %d" % (self.name_bytes, 2 * self.sent + place) for place in range(2)]
        sequence = 2 * self.sent if self.producer_id >= 0 else -1
        batch = batch_of(*values, codec=self.codec, producer_id=self.producer_id, sequence=sequence)
        self.client.produce("t", self.partition, batch, self.acks)
        self.sent += 1

    def check(self, stored: list[bytes]) -> int:
        """Returns the number of acknowledged messages that are not in ``stored``."""
        mine = [
            int(value.rpartition(b" ")[2]) for value in stored if value.startswith(self.name_bytes + b":")
        ]
        assert mine == list(range(len(mine)))
        return max(0, 2 * self.acknowledged - len(mine))


class Committing(threading.Thread):
    """Commits increasing offsets until the machine stops."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(daemon=True)
        self.client = machine.client()
        self.committed = -1
        self.problem: BaseException | None = None

    def run(self) -> None:
        try:
            offset = 0
            assert self.client.coordinator("group") == 0
            while True:
                code = self.client.commit("group", "t", offset)
                assert code in (0, *RETRIED), code
                if code == 0:
                    self.committed = offset
                    offset += 1
                else:
                    time.sleep(0.01)
        except (ConnectionError, BrokenPipeError):
            pass
        except BaseException as problem:  # noqa: BLE001 - raised by the test
            self.problem = problem
        finally:
            self.client.close()


def run_and_cut(machine: Machine, chance: Random, luck: Random | None) -> tuple[list[Pipeliner], Committing]:
    """Writes for a while, then cuts the power."""
    writers = [
        Pipeliner(machine, 0, -1, 0, False),
        Pipeliner(machine, 1, 1, 4, False),
        Pipeliner(machine, 0, -1, 3, True),
        Pipeliner(machine, 1, -1, 0, True),
    ]
    committing = Committing(machine)
    threads: list[threading.Thread] = [*writers, committing]
    for one in threads:
        one.start()
    deadline = time.monotonic() + PATIENCE_S
    wanted = chance.randrange(2, 25)
    while any(writer.acknowledged < wanted for writer in writers) or committing.committed < 0:
        assert time.monotonic() < deadline
        assert not any(one.problem for one in (*writers, committing)), committing.problem
        time.sleep(0.002)
    machine.power_cut(luck)
    for one in threads:
        one.join(PATIENCE_S)
    for one in (*writers, committing):
        if one.problem is not None:
            raise one.problem
    return writers, committing


def after(machine: Machine, writers: list[Pipeliner], committing: Committing) -> tuple[int, int]:
    """Returns the numbers of lost acknowledged messages and of lost commits, as seen by a client."""
    machine.start()
    client = machine.client()
    assert client.has_topic("t")
    stored = [client.read("t", partition) for partition in range(PARTITIONS)]
    lost = sum(writer.check(stored[writer.partition]) for writer in writers)
    code, offset = client.committed("group", "t")
    deadline = time.monotonic() + PATIENCE_S
    while code in RETRIED and time.monotonic() < deadline:
        time.sleep(0.01)
        code, offset = client.committed("group", "t")
    assert code == 0, code
    return lost, max(0, committing.committed - offset)


@pytest.mark.parametrize("seed", range(8))
def test_no_acknowledged_record_is_lost_with_flush_messages_1(new_machine: NewMachine, seed: int) -> None:
    chance = Random(seed)
    luck = Random(seed) if seed % 2 else None
    machine = new_machine(FaultyFiles(), log_flush_interval_messages="1").start()
    client = machine.client()
    assert client.make_topic("t", PARTITIONS, segment_bytes="1048576") == 0
    for _ in range(2):
        accounts = run_and_cut(machine, chance, luck)
        assert after(machine, *accounts) == (0, 0)
    machine.stop()


def test_acknowledged_records_are_lost_without_flush_messages_1(new_machine: NewMachine) -> None:
    machine = new_machine(FaultyFiles()).start()
    client = machine.client()
    assert client.make_topic("t", PARTITIONS) == 0
    accounts = run_and_cut(machine, Random(1), None)
    lost, commits_lost = after(machine, *accounts)
    assert lost > 0
    assert commits_lost > 0
    machine.stop()


def test_a_failed_sync_is_an_error_and_takes_its_directory_offline(
    tmp_path: Path, new_machine: NewMachine
) -> None:
    files = FaultyFiles()
    directories = f"{tmp_path / 'data'},{tmp_path / 'more'}"
    machine = new_machine(files, log_flush_interval_messages="1", log_dirs=directories).start()
    client = machine.client()
    assert client.make_topic("t", 2) == 0
    client.produce("t", 0, batch_of(b"before"))
    assert client.produced() == (0, 0)
    machine.inside(lambda: files.fail("sync", "t-0/", times=1))
    client.produce("t", 0, batch_of(b"lost"))
    code, offset = client.produced()
    assert (code, offset) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
    # The content of that disk is unknown: it stays offline until the next start, the other stays online.
    client.produce("t", 0, batch_of(b"after"))
    assert client.produced() == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
    client.produce("t", 1, batch_of(b"beside"))
    assert client.produced() == (0, 0)
    machine.power_cut(None)
    machine.start()
    client = machine.client()
    assert client.read("t", 0)[:1] == [b"before"]
    assert client.read("t", 1) == [b"beside"]
    client.produce("t", 0, batch_of(b"again"))
    assert client.produced()[0] == 0
    machine.stop()
