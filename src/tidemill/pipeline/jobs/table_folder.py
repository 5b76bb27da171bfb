"""The folder of a loaded table, in which a micro-batch becomes visible exactly once, for every reader.

Spark writes the files of a micro-batch into a staging folder of the checkpoint. Then, in this order:

====  ===========================================================  ==========================================
step  action                                                       state after a kill before it
====  ===========================================================  ==========================================
1     sync the plan, then the staged files and their folders       a staging folder that the next run removes
2     write the manifest that lists them, durably                  the same; Spark runs the batch again
3     move each file to its final name, which has the batch        moves that the next run completes
4     sync the folders with new files                              the same
5     remove the staging folder                                    an empty folder that the next run removes
6     Spark commits the batch (not here)                           a batch that Spark runs again, and that the
                                                                   manifest has
====  ===========================================================  ==========================================

A file with a final name is valid and complete. Readers need no list: Spark, pandas, Arrow and DuckDB see the
same files. During step 3 they see a part of the micro-batch.

One process at a time loads into a folder. It holds a lock, which the system releases however the process
ends. Not promised: anything after another program has renamed or removed files of a micro-batch whose moves
are not complete.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

from tidemill.log.log_directories import make_durable_directory
from tidemill.model.errors import ConfigError, TidemillError
from tidemill.model.system_interfaces import Files
from tidemill.pipeline.jobs.load_manifest import (
    FOLDER,
    LOCK,
    MANIFEST,
    OWNER,
    STAGING,
    LoadedFile,
    Manifest,
    decode_manifest,
    encode_manifest,
)

PARTITION = "event_date="
"""The prefix of the names of the table's folders."""
SUFFIX = ".parquet"
COPY_BYTES = 4 * 1024 * 1024
SYNCS_AT_ONCE = 8
"""A file system combines concurrent syncs; a load of a year has 365 files per batch."""


class UnderWay(TidemillError):
    """Another process is loading into the folder."""


class LoadStopped(TidemillError):
    """The load was stopped while it wrote a micro-batch."""


class FilesMissing(TidemillError):
    """Files of a micro-batch are missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The number of rows in a staging folder, as Spark counted them; ``raw`` by reason."""

    rows: int
    raw: Mapping[str, int] = field(default_factory=dict)


class TableFolder:
    """The folder of a table, locked by one load; created by :func:`open_table`."""

    def __init__(
        self, files: Files, output: str, checkpoint: str, rows_of: Callable[[str], int], lock: Any
    ) -> None:
        self._files = files
        self._output = output
        self._checkpoint = checkpoint
        self._staging = f"{checkpoint}/{STAGING}"
        self._rows_of = rows_of
        self._lock = lock
        self._mutex = threading.Lock()
        self._closed = False
        self.manifest = read_manifest(files, output)

    def close(self) -> None:
        """Ends the load and unlocks the folder, after the moves of a micro-batch in progress."""
        self._closed = True
        with self._mutex:
            self._lock.close()

    def recover(self) -> None:
        """Completes the moves of a killed run, and removes its other staged files."""
        with self._mutex:
            if self.manifest is not None:
                self._finish(self.manifest)
            if self._files.exists(self._staging):
                remove_tree(self._files, self._staging)

    def commit(self, batch: int, write: Callable[[str], Written]) -> Manifest:
        """Adds micro-batch ``batch`` to the table, and returns when it is durable.

        ``write`` is called with the path of a staging folder and writes files to it:
        ``event_date=D/NAME.parquet``. It is not called for the batch that the manifest has: Spark runs a
        batch again if it was killed between the moves and its own commit. Raises ConfigError if the batch is
        not the next one, FilesMissing if files or rows are missing, LoadStopped after :meth:`close`.
        """
        query, offsets = query_of(self._files, self._checkpoint), self._offsets_of(batch)
        with self._mutex:
            last = self.manifest
            if last is not None and last.batch == batch:
                self._check_same(last, offsets)
                self._finish(last)
                return last
            self._check_follows(batch)
        self._sync_plan(batch)
        name = f"batch-{batch}-{uuid.uuid4().hex[:8]}"
        staging = f"{self._staging}/{name}"
        make_durable_directory(self._files, self._staging)
        written = write(staging)
        with self._mutex:
            if self._closed:
                raise LoadStopped(f"micro-batch {batch} was not loaded: the load was stopped")
            manifest = Manifest(
                query=query,
                batch=batch,
                offsets=offsets,
                staging=name,
                rows=written.rows,
                raw=written.raw,
                files=self._staged_files(staging, batch, query),
            )
            self._check_rows(manifest)
            self._sync_staged(manifest, staging)
            self._write_manifest(manifest)
            self._finish(manifest)
        return manifest

    def adopt(self, query: str, batch: int | None) -> None:
        """Adopts a table that another sink has written up to ``batch``."""
        self._write_manifest(Manifest(query=query, batch=batch))

    def _write_manifest(self, manifest: Manifest) -> None:
        self._files.replace(f"{self._output}/{FOLDER}/{MANIFEST}", encode_manifest(manifest))
        self.manifest = manifest

    def _offsets_of(self, batch: int) -> str:
        return hashlib.sha256(self._files.read(f"{self._checkpoint}/offsets/{batch}")).hexdigest()

    def _check_same(self, last: Manifest, offsets: str) -> None:
        if last.offsets is not None and last.offsets != offsets:
            raise ConfigError(
                f"micro-batch {last.batch} is in {self._output} with other offsets than the checkpoint "
                f"{self._checkpoint} has: the checkpoint was changed, or is an older copy. Load into a new "
                "output with a new checkpoint"
            )

    def _check_follows(self, batch: int) -> None:
        last = self.manifest
        if last is None or last.batch is None or batch == last.batch + 1:
            return
        raise ConfigError(
            f"the output {self._output} has micro-batch {last.batch}, and the checkpoint {self._checkpoint} "
            f"continues with {batch}: one of them is an older copy. Restore the one that belongs to the "
            "other, or load into a new output with a new checkpoint"
        )

    def _staged_files(self, staging: str, batch: int, query: str) -> tuple[LoadedFile, ...]:
        """Returns the files that Spark has staged, with their final names; omits files without rows."""
        found: list[LoadedFile] = []
        for folder in self._list(staging):
            if not folder.startswith(PARTITION):
                continue
            for name in self._files.list(f"{staging}/{folder}"):
                if name.startswith((".", "_")) or not name.endswith(SUFFIX):
                    continue
                path = f"{staging}/{folder}/{name}"
                rows = self._rows_of(path)
                if not rows:
                    continue
                codec = name.split(".")[-2] if name.count(".") > 1 else ""
                final = f"batch-{batch:09d}-{query[:8]}-{len(found):05d}{codec and '.' + codec}{SUFFIX}"
                found.append(
                    LoadedFile(
                        name=f"{folder}/{final}",
                        staged=f"{folder}/{name}",
                        size_bytes=self._files.size(path),
                        rows=rows,
                    )
                )
        return tuple(found)

    def _check_rows(self, manifest: Manifest) -> None:
        found = sum(file.rows for file in manifest.files)
        if found != manifest.rows:
            raise FilesMissing(
                f"Spark wrote {manifest.rows} rows of micro-batch {manifest.batch}, and {self._staging} has "
                f"{found}: use an output and a checkpoint on storage that all of Spark's machines and this "
                "one share"
            )

    def _sync_plan(self, batch: int) -> None:
        """Syncs the plan of the batch.

        If the manifest survived a crash and the offsets did not, the next plan of the batch could have more
        messages, and the manifest would skip it.
        """
        sync_plan(self._files, self._checkpoint, batch, is_first=self.manifest is None)

    def _sync_staged(self, manifest: Manifest, staging: str) -> None:
        """Syncs the files and folders that the manifest will list."""
        folders = {f"{staging}/{os.path.dirname(file.staged)}" for file in manifest.files}
        self._run_parallel(
            partial(_sync_file, self._files), [f"{staging}/{file.staged}" for file in manifest.files]
        )
        self._run_parallel(self._files.sync_directory, sorted(folders))
        for folder in (staging, self._staging):
            self._files.sync_directory(folder)

    def _run_parallel(self, work: Callable[[str], None], paths: Iterable[str]) -> None:
        with ThreadPoolExecutor(SYNCS_AT_ONCE) as pool:
            for _ in pool.map(work, paths):
                pass

    def _finish(self, manifest: Manifest) -> None:
        """Moves staged files to their final names; no-op once the staging folder is removed."""
        if manifest.staging is None:
            return
        staging = f"{self._staging}/{manifest.staging}"
        if not self._files.exists(staging):
            return
        folders = sorted({os.path.dirname(file.name) for file in manifest.files})
        for folder in folders:
            self._files.make_directory(f"{self._output}/{folder}")
        if folders:
            self._files.sync_directory(self._output)
        for file in manifest.files:
            self._move(f"{staging}/{file.staged}", f"{self._output}/{file.name}", file)
        self._run_parallel(self._files.sync_directory, [f"{self._output}/{folder}" for folder in folders])
        remove_tree(self._files, staging)

    def _move(self, staged: str, final: str, file: LoadedFile) -> None:
        files = self._files
        if files.exists(final) and files.size(final) == file.size_bytes:
            return
        if not files.exists(staged):
            raise FilesMissing(
                f"{final} exists neither there nor at {staged}: it was moved or removed. Restore it, or "
                "load into a new output with a new checkpoint"
            )
        try:
            files.rename(staged, final)
        except OSError as problem:
            if problem.errno != errno.EXDEV:
                raise
            self._copy(staged, final)

    def _copy(self, staged: str, final: str) -> None:
        """Moves a file to another file system; readers see it when it is complete."""
        folder, name = os.path.split(final)
        beside = f"{folder}/.{name}.copying"
        source, target = self._files.open(staged, read_only=True), self._files.open(beside, create=True)
        try:
            target.truncate(0)
            size, position = source.size(), 0
            while position < size:
                chunk = source.read_at(position, min(COPY_BYTES, size - position))
                target.append([chunk])
                position += len(chunk)
            target.sync()
        finally:
            source.close()
            target.close()
        self._files.rename(beside, final)

    def _list(self, path: str) -> list[str]:
        try:
            return self._files.list(path)
        except FileNotFoundError:
            return []


def open_table(
    files: Files, output: str, checkpoint: str, rows_of: Callable[[str], int] | None = None
) -> TableFolder:
    """Locks the folder of a table for a load. ``rows_of`` counts the rows of a file, by default Parquet.

    Raises UnderWay while another process holds the lock, ManifestDamaged, OSError. The caller recovers and
    closes the folder.
    """
    own = f"{output}/{FOLDER}"
    make_durable_directory(files, own)
    make_durable_directory(files, checkpoint)  # before Spark creates it without a sync
    try:
        lock = files.lock(f"{own}/{LOCK}")
    except BlockingIOError:
        _raise_under_way(files, own, output)
    try:
        files.write_unsynced(f"{own}/{OWNER}", f"process {os.getpid()} on {os.uname().nodename}".encode())
        return TableFolder(files, output, checkpoint, rows_of or rows_of_parquet, lock)
    except BaseException:
        lock.close()
        raise


def _raise_under_way(files: Files, own: str, output: str) -> NoReturn:
    owner = "another process"
    with contextlib.suppress(OSError, UnicodeDecodeError):
        owner = files.read(f"{own}/{OWNER}").decode() or owner
    raise UnderWay(
        f"{owner} already loads into {output}: wait until it has ended, stop it, or set another output and "
        "checkpoint"
    ) from None


def read_manifest(files: Files, output: str) -> Manifest | None:
    """Reads the manifest of a table; returns None if there is none. Raises ManifestDamaged."""
    path = f"{output}/{FOLDER}/{MANIFEST}"
    try:
        return decode_manifest(files.read(path), path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def query_of(files: Files, checkpoint: str) -> str:
    """Returns the id of a checkpoint's query; empty if there is none yet. Raises ConfigError."""
    path = f"{checkpoint}/metadata"
    try:
        return str(json.loads(files.read(path))["id"])
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except (ValueError, KeyError, TypeError):
        raise ConfigError(
            f"{path} is damaged: restore the checkpoint from a backup, or load into a new output with "
            "a new checkpoint"
        ) from None


def sync_plan(files: Files, checkpoint: str, batch: int, *, is_first: bool) -> None:
    """Syncs the plan of a micro-batch, since Spark does not sync its checkpoint.

    ``is_first`` for a query whose id may not be synced yet.
    """
    if is_first:
        _sync_file(files, f"{checkpoint}/metadata")
    _sync_file(files, f"{checkpoint}/offsets/{batch}")
    for folder in (f"{checkpoint}/offsets", checkpoint):
        files.sync_directory(folder)


def _sync_file(files: Files, path: str) -> None:
    with files.open(path) as file:
        file.sync()


def rows_of_parquet(path: str) -> int:
    """Returns the number of rows in a Parquet file's footer."""
    import pyarrow.parquet

    rows: int = pyarrow.parquet.read_metadata(path).num_rows
    return rows


def remove_tree(files: Files, path: str) -> None:
    """Removes a folder with its content, or a file."""
    try:
        names = files.list(path)
    except NotADirectoryError:
        names = []
    for name in names:
        remove_tree(files, f"{path}/{name}")
    with contextlib.suppress(FileNotFoundError):
        files.remove(path)
