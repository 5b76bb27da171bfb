"""Repeated kills (SIGKILL) of the broker under the load of real clients."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
from crash_load import STYLES, Committer, Writer, check_accounts, make_topic, read_all, wait_for_progress

from tidemill.testing import Broker

KILLS = 20
PARTITIONS = 6
RESTART_S_MAX = 2.0
USED_S_MAX = 1.0


@pytest.mark.slow
def test_twenty_kills_lose_no_acknowledged_record(tmp_path: Path) -> None:
    seed = time.time_ns() % 1_000_000
    print(f"seed {seed}")
    chance = random.Random(seed)
    with Broker({"num.partitions": 1}, data_dir=tmp_path / "data") as broker:
        make_topic(broker, "t", PARTITIONS, segment_bytes="1048576")
        writers = [Writer(broker, "t", PARTITIONS, style) for style in STYLES]
        committer = Committer(broker, "t", PARTITIONS, "group")
        for one in (*writers, committer):
            one.start()
        starts = []
        for _ in range(KILLS):
            wait_for_progress(writers)
            time.sleep(chance.uniform(0, 0.3))
            broker.kill()
            broker.start()
            starts.append((broker.started_in_s, processor_s(broker.pid)))
            committer.check()
        for one in (*writers, committer):
            one.end()
        stored = read_all(broker, "t", PARTITIONS)
        twice = check_accounts(stored, writers)
        log = broker.log
    acknowledged = sum(writer.count for writer in writers)
    print(f"{acknowledged} messages, {twice} of them again, {committer.committed} commits")
    print(f"starts: {max(starts)[0]:.2f} s at most, {sum(one[0] for one in starts) / KILLS:.2f} s on average")
    assert acknowledged > 1000
    assert committer.committed > KILLS
    assert "Traceback" not in log, log
    # Beside other work on the machine it is the broker's own share of the time that counts.
    late = [(took_s, used_s) for took_s, used_s in starts if took_s >= RESTART_S_MAX and used_s >= USED_S_MAX]
    assert not late, starts


def processor_s(pid: int) -> float:
    """Returns the processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
