"""Finds data directories that are older than what their broker acknowledged.

A disk that was not mounted, and comes back after its replicas were rebuilt in another place, has logs that
end too early, and so has a directory that was restored from a backup. Each is sound in itself, and was closed
in order. But the replicas were in sync after that, and acknowledged records that these logs do not have.

So the starts of a broker are numbered. Each start writes its number to every data directory
(``.tidemill-start``), and then the numbers, by the ids of the directories, to the coordination store. A
directory that the store does not name, or names with a larger number, was not in use at the last start: its
replicas are reported as lost (:mod:`tidemill.server.lost_replicas`). It gets its number once that was heeded.
A broker without a node in the store has no such directories.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from tidemill.coordination.directory_starts_node import DirectoryStartsNode
from tidemill.coordination.encoding import NodeFormatError
from tidemill.coordination.port import SetData, Store, StoreError, ensure_paths
from tidemill.log.directories import DataDirectories, DataDirectory
from tidemill.log.names import START

log = logging.getLogger("tidemill.server")

AGAIN_S: Final = 1.0


class DirectoryStarts:
    """Numbers the starts of a broker, in its data directories and in the store."""

    def __init__(self, store: Store, broker_id: int, logs: DataDirectories) -> None:
        self._store = store
        self._path = DirectoryStartsNode.path(broker_id)
        self._logs = logs
        self._stored: dict[str, int] = {}
        self._number = 1
        """Of this start."""

    async def load(self) -> None:
        """Finds the directories that were not in use at the last start, before logs are opened.

        Raises StoreError.
        """
        node = await self._store.get(self._path)
        working = {one: self._number_in(one) for one in self._logs.working}
        if node is not None and node.data:
            try:
                self._stored = DirectoryStartsNode.decode(self._path, node.data)
            except NodeFormatError as problem:
                log.error("%s All data directories are taken as in use at the last start.", problem)
            else:
                for directory, number in working.items():
                    known = self._stored.get(_id_of(directory))
                    directory.is_outdated = known is None or number < known
        self._number = max([*self._stored.values(), *working.values()], default=0) + 1

    async def save(self) -> None:
        """Writes the number of this start: to the directories, then to the store. Raises StoreError.

        Not of those whose replicas are still to be reported. One that is new is named before it is signed.
        """
        wanted = dict(self._stored) if len(self._logs.working) < len(self._logs.directories) else {}
        for directory in self._logs.working:
            key = _id_of(directory)
            if directory.is_outdated and directory.logs:
                continue
            if self._number_in(directory) != self._number:
                try:
                    self._logs.files.replace(directory.file(START), str(self._number).encode())
                except OSError as problem:
                    log.info("%s keeps the number of an earlier start: %s", directory.path, problem)
            wanted[key] = self._number_in(directory)
        if wanted != self._stored:
            await ensure_paths(self._store, [self._path])
            await self._store.transact([SetData(self._path, DirectoryStartsNode.encode(wanted))])
            self._stored = wanted

    async def save_for_sure(self) -> None:
        """As :meth:`save`, until the store takes it."""
        while True:
            try:
                await self.save()
            except StoreError as problem:
                log.warning("the data directories in use are not in the store yet, tried again: %s", problem)
                await asyncio.sleep(AGAIN_S)
            else:
                return

    def _number_in(self, directory: DataDirectory) -> int:
        """The number that a directory has; 0 without one."""
        try:
            data = self._logs.files.read(directory.file(START))
        except OSError:
            return 0
        return int(data) if data.isdigit() else 0


def _id_of(directory: DataDirectory) -> str:
    return directory.meta.directory_id if directory.meta is not None else ""
