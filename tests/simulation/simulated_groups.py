"""Groups of a simulated cluster: clients that commit positions, and ask for them."""

from __future__ import annotations

import asyncio
from typing import Any

from promises import Place
from simulated_clients import Client, Refused

from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.find_coordinator import FindCoordinatorRequest
from tidemill.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidemill.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic

OFFSETS = "__consumer_offsets"
FIND_VERSION, COMMIT_VERSION, FETCH_VERSION = 3, 7, 6
PAUSE_S_MEAN = 0.1


class Committer(Client):
    """A group without members, whose one client commits a position after the other, and asks for them."""

    def __init__(self, *client: Any, partition: int) -> None:
        super().__init__(*client)
        self.place: Place = (self.topic, partition)
        self._coordinator = ""
        self._offset = 0
        self._commits = False
        self._found_in_the_end = False

    @property
    def is_settled(self) -> bool:
        return not self._commits and (self._found_in_the_end or not self.ended)

    async def work(self) -> None:
        if not self._commits and not self.ended:
            self._offset += 1
            self._commits = True
            await asyncio.sleep(self.random.expovariate(1 / PAUSE_S_MEAN))
        try:
            if not self._coordinator:
                await self._find()
            if not self._commits:
                self._found_in_the_end = await self._ask()
                self._coordinator = ""
                return
            if self.random.random() < 0.3:
                await self._ask()
            await self._commit()
        except BaseException:
            self._coordinator = ""
            raise

    async def _find(self) -> None:
        address = self.random.choice(self._bootstrap)
        request = FindCoordinatorRequest(key=self.name, key_type=0)
        answer = await self.ask(address, ApiKey.FIND_COORDINATOR, FIND_VERSION, request)
        if answer.error_code:
            raise Refused(answer.error_code)
        self._coordinator = answer.host

    async def _commit(self) -> None:
        topic, partition = self.place
        one = OffsetCommitRequestPartition(
            partition_index=partition, committed_offset=self._offset, committed_metadata=None
        )
        request = OffsetCommitRequest(
            group_id=self.name, topics=[OffsetCommitRequestTopic(name=topic, partitions=[one])]
        )
        self.promises.commit_tried(self.name, self.place, self._offset)
        self.events.add(f"commits {self._offset} at {self._coordinator}")
        answer = await self.ask(self._coordinator, ApiKey.OFFSET_COMMIT, COMMIT_VERSION, request)
        code = answer.topics[0].partitions[0].error_code
        if code:
            raise Refused(code)
        self.events.add(f"{self._offset} is committed")
        self.promises.commit_acknowledged(self.name, self.place, self._offset)
        self._commits = False

    async def _ask(self) -> bool:
        """Asks for the position; False when nobody knows whether it is the last one."""
        topic, partition = self.place
        request = OffsetFetchRequest(
            group_id=self.name,
            topics=[OffsetFetchRequestTopic(name=topic, partition_indexes=[partition])],
        )
        answer = await self.ask(self._coordinator, ApiKey.OFFSET_FETCH, FETCH_VERSION, request)
        if answer.error_code:
            raise Refused(answer.error_code)
        one = answer.topics[0].partitions[0]
        if one.error_code:
            raise Refused(one.error_code)
        self.events.add(f"finds {one.committed_offset} at {self._coordinator}")
        broker = int(self._coordinator.rpartition("-")[2])
        offset = one.committed_offset
        return self.promises.committed_found(self.name, self.place, offset, (OFFSETS, 0), broker)
