"""The files of a rehearsal: what is listed there is what a start would have left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemill.log.dry_run import ScratchFiles


@pytest.fixture
def files() -> Iterator[ScratchFiles]:
    one = ScratchFiles()
    yield one
    one.close()


def test_a_listing_has_what_was_made_and_renamed_and_not_what_was_removed(
    files: ScratchFiles, tmp_path: Path
) -> None:
    for name in ("kept", "old", "removed"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "below").mkdir()
    files.replace(f"{tmp_path}/made", b"y")
    files.replace(f"{tmp_path}/below/elsewhere", b"y")
    files.rename(f"{tmp_path}/old", f"{tmp_path}/new")
    files.remove(f"{tmp_path}/removed")
    assert files.list(str(tmp_path)) == ["below", "kept", "made", "new"]
    assert files.list(f"{tmp_path}/below") == ["elsewhere"]
    assert sorted(one.name for one in tmp_path.iterdir()) == ["below", "kept", "old", "removed"]
