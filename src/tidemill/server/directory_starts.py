"""Detects data directories that lack records which their broker has acknowledged.

The logs of a disk that was not mounted at the last start end too early if their replicas were rebuilt in
another directory meanwhile. So do the logs of a directory that was restored from a backup. These logs are
valid, and were closed cleanly, but the replicas acknowledged more records later.

Therefore the starts of a broker are numbered. Each start writes its number to every data directory
(``.tidemill-start``), and then the numbers by directory id to the coordination store. A directory that is
missing in the store, or has a larger number there, was not in use at the last start. Its replicas are
reported as lost (:mod:`tidemill.server.lost_replica_detection`). It receives its number after the controller
has processed the report. A broker without a node in the store has no such directories.
"""

from __future__ import annotations

import logging

from tidemill.coordination.coordination_store import SetData, Store, ensure_paths
from tidemill.coordination.encoding import NodeFormatError
from tidemill.coordination.nodes import DirectoryStartsNode
from tidemill.log.file_names import START
from tidemill.log.log_directories import DataDirectories, DataDirectory
from tidemill.server.store_retries import retry_until_written

logger = logging.getLogger("tidemill.server")


class DirectoryStarts:
    """The start numbers of a broker, in its data directories and in the store."""

    def __init__(self, store: Store, broker_id: int, logs: DataDirectories) -> None:
        self._store = store
        self._path = DirectoryStartsNode.path(broker_id)
        self._logs = logs
        self._stored: dict[str, int] = {}
        self._number = 1
        """The number of this start."""

    async def load(self) -> None:
        """Marks the directories that were not in use at the last start; called before logs are opened.

        Raises StoreError.
        """
        node = await self._store.get(self._path)
        online = {one: self._number_in(one) for one in self._logs.online}
        if node is not None and node.data:
            try:
                self._stored = DirectoryStartsNode.decode(self._path, node.data)
            except NodeFormatError as problem:
                logger.error("%s All data directories are considered in use at the last start.", problem)
            else:
                for directory, number in online.items():
                    known = self._stored.get(_id_of(directory))
                    directory.is_outdated = known is None or number < known
        self._number = max([*self._stored.values(), *online.values()], default=0) + 1

    async def save(self) -> None:
        """Writes the number of this start to the directories, then to the store. Raises StoreError.

        Directories with replicas that are not reported yet are left out. A new directory is included before
        its ``meta.properties`` is written.
        """
        wanted = dict(self._stored) if len(self._logs.online) < len(self._logs.all) else {}
        for directory in self._logs.online:
            if directory.is_outdated and directory.logs:
                continue
            if self._number_in(directory) != self._number:
                try:
                    self._logs.files.replace(directory.file(START), str(self._number).encode())
                except OSError as problem:
                    logger.info("the start number of %s could not be updated: %s", directory.path, problem)
            wanted[_id_of(directory)] = self._number_in(directory)
        if wanted != self._stored:
            await ensure_paths(self._store, [self._path])
            await self._store.transact([SetData(self._path, DirectoryStartsNode.encode(wanted))])
            self._stored = wanted

    async def save_with_retries(self) -> None:
        """Repeats :meth:`save` until the store accepts it."""
        await retry_until_written(self.save, "the start numbers")

    def _number_in(self, directory: DataDirectory) -> int:
        """The start number in a directory; 0 if it has none."""
        try:
            data = self._logs.files.read(directory.file(START))
        except OSError:
            return 0
        return int(data) if data.isdigit() else 0


def _id_of(directory: DataDirectory) -> str:
    return directory.meta.directory_id if directory.meta is not None else ""
