"""The files of a dry run: a listing has the files that a start would have left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemill.log_tools.dry_run import ScratchFiles


@pytest.fixture
def files() -> Iterator[ScratchFiles]:
    one = ScratchFiles()
    yield one
    one.close()


def test_a_listing_has_created_and_renamed_files_and_no_removed_files(
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
