"""Kills and power cuts between any two file operations of a cleaning and of the recovery after it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from random import Random

import pytest
from compaction_stage import NOW, MortalFiles, Row, clean, end_transaction, opened, put, rows, values
from faulty_files import Killed

from tidemill.log.file_names import offset_of
from tidemill.log.log import Log

DIRECTORY = "/d/t-0"
INDEX = f"{DIRECTORY}/{0:020d}.txnindex"
SETTINGS = {"segment_bytes": 2600}


def prepared() -> tuple[MortalFiles, Log]:
    """A log of six closed segments in two groups, with all records synced."""
    files = MortalFiles()
    files.make_directory(DIRECTORY)
    files.sync_directory("/d")
    files.sync_directory("/")
    log = opened(files, DIRECTORY, settings=SETTINGS)
    for number in range(60):
        key = f"k{number % 9}" if number % 10 else f"only-{number}"
        put(log, (key, f"v{number}"), producer_id=3, producer_epoch=0, base_sequence=number)
        if number == 5:
            put(log, ("gone", "x"), producer_id=4, producer_epoch=0, base_sequence=0, transactional=True)
            end_transaction(log, 4, committed=False)
        if number % 10 == 9:
            log.roll(NOW)
    put(log, ("k1", "last"))
    log.flush(NOW)
    return files, log


def parts(found: list[Row]) -> list[list[Row]]:
    """Returns the rows by the two groups of the log."""
    return [[row for row in found if row[0] < 32], [row for row in found if row[0] >= 32]]


def count_operations() -> tuple[int, list[Row], list[Row]]:
    files, log = prepared()
    old = rows(log)
    files.left = 1_000_000
    clean(log)
    return 1_000_000 - files.left, old, rows(log)


OPERATIONS, OLD, NEW = count_operations()
ENDINGS: dict[str, Callable[[MortalFiles], None]] = {
    "killed": lambda files: files.kill(),
    "power cut": lambda files: files.power_cut(),
    "power cut with luck": lambda files: files.power_cut(Random(files.left)),
}


def interrupted(after: int) -> MortalFiles:
    files, log = prepared()
    files.left = after
    with pytest.raises(Killed):
        clean(log)
    files.left = -1
    return files


def check(files: MortalFiles) -> Log:
    """Checks that each group of the log is old or new, and that appends and cleaning work."""
    log = opened(files, DIRECTORY, settings=SETTINGS, recovery_point=62)
    found = rows(log)
    for part, old, new in zip(parts(found), parts(OLD), parts(NEW), strict=True):
        assert part in (old, new)
    assert log.end_offset == 63
    assert files.exists(INDEX)
    assert log.producer_state.entries[3].last_sequence == 59
    names = files.list(DIRECTORY)
    assert not [name for name in names if name.endswith((".cleaned", ".swap"))]
    bases = [offset_of(name, ".log") for name in names if name.endswith(".log")]
    assert [int(segment.base_offset) for segment in log.segments] == sorted(bases)
    for offset in range(63):
        part = log.read(offset, 1 << 20, 63, True)
        assert part is not None
    return log


def test_the_test_cleans_two_groups_in_many_operations() -> None:
    assert OPERATIONS > 100
    assert parts(NEW)[0] != parts(OLD)[0]
    assert parts(NEW)[1] != parts(OLD)[1]


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_crash_between_any_two_operations_leaves_the_old_or_the_new_segments(ending: str) -> None:
    for after in range(OPERATIONS):
        files = interrupted(after)
        ENDINGS[ending](files)
        log = check(files)
        assert values(log)["k1"] == "last"
        clean(log)
        assert rows(log) == NEW
        put(log, ("more", "1"))
        files.kill()
        assert values(opened(files, DIRECTORY, settings=SETTINGS)) == {
            row[2].decode(): row[3].decode() for row in NEW if row[2] and row[3]
        } | {"more": "1"}


@pytest.mark.parametrize("seed", range(3))
def test_a_crash_during_recovery_leaves_the_old_or_the_new_segments(seed: int) -> None:
    random = Random(seed)
    for after in range(seed, OPERATIONS, 3):
        files = interrupted(after)
        files.kill()
        for _ in range(3):
            files.left = random.randrange(1, 60)
            with contextlib.suppress(Killed):
                opened(files, DIRECTORY, settings=SETTINGS)
            files.left = -1
            ENDINGS[random.choice(list(ENDINGS))](files)
        check(files)
