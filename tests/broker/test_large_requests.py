"""Large requests: other requests are served between their slices, and they run one at a time."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from tidemill.broker.eager_start import eager_start
from tidemill.broker.large_requests import REQUEST_SLICE_S, LargeRequestQueue, RequestSlices
from tidemill.model.errors import ProtocolError
from tidemill.model.event_loop_slices import ITEMS_AT_ONCE_MAX, slices_by_weight, slices_of
from tidemill.net.memory_pool import UNBOUNDED, MemoryAccount, MemoryHolder, MemoryPool
from tidemill.wire.codec import decode_in_slices, encode, encode_in_slices
from tidemill.wire.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from tidemill.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)
from tidemill.wire.schema import EncodeError, Struct, release_in_slices

ITEMS = 3000


class SteppedLoop(asyncio.SelectorEventLoop):
    """The time advances by a tenth of a slice with every reading of the clock."""

    now = 0.0

    def time(self) -> float:
        self.now += REQUEST_SLICE_S / 10
        return self.now


def run(work: Any) -> Any:
    with asyncio.Runner(loop_factory=SteppedLoop) as runner:
        return runner.run(work)


def unlimited_memory() -> MemoryPool:
    return MemoryPool(asyncio.get_running_loop(), UNBOUNDED)


async def counted(loop_turns: list[int], done: asyncio.Event) -> None:
    while not done.is_set():
        loop_turns[0] += 1
        await asyncio.sleep(0)


def test_other_requests_are_served_during_a_long_list() -> None:
    async def scenario() -> None:
        done, others = asyncio.Event(), [0]
        beside = asyncio.create_task(counted(others, done))
        slices = RequestSlices(LargeRequestQueue(unlimited_memory()))
        found = [item async for item in slices.over(range(1000))]
        done.set()
        await beside
        assert found == list(range(1000))
        assert others[0] >= 50
        slices.end()

    run(scenario())


def test_large_requests_run_one_at_a_time_in_order() -> None:
    async def scenario() -> None:
        queue, story = LargeRequestQueue(unlimited_memory()), []

        async def request(name: str) -> None:
            slices = RequestSlices(queue)
            async for item in slices.over(range(200)):
                if item in (20, 199):
                    story.append(f"{name}{item}")
            slices.end()

        await asyncio.gather(*[request(name) for name in "abc"])
        assert story == ["a20", "a199", "b20", "b199", "c20", "c199"]

    run(scenario())


def test_a_waiting_request_leaves_the_queue() -> None:
    async def scenario() -> None:
        queue, stored = LargeRequestQueue(unlimited_memory()), asyncio.Event()

        async def waits() -> str:
            slices = RequestSlices(queue)
            async for _ in slices.over(range(50)):
                pass
            await slices.wait_for(stored.wait())
            slices.end()
            return "waited"

        waiting = asyncio.create_task(waits())
        await asyncio.sleep(0)
        slices = RequestSlices(queue)
        async with asyncio.timeout(100):
            async for _ in slices.over(range(200)):
                pass
        slices.end()
        stored.set()
        assert await waiting == "waited"

    run(scenario())


def test_a_cancelled_large_request_does_not_block_the_queue() -> None:
    async def scenario() -> None:
        queue = LargeRequestQueue(unlimited_memory())
        first = RequestSlices(queue)
        await first.run(iter_to(30))

        async def second() -> None:
            slices = RequestSlices(queue)
            try:
                await slices.run(iter_to(1000))
            finally:
                slices.end()

        waiting = asyncio.create_task(second())
        third = asyncio.create_task(second())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        first.end()
        await third
        assert gc.isenabled()

    run(scenario())


def iter_to(count: int) -> Any:
    yield from [None] * count
    return count


def test_large_requests_wait_while_unsent_responses_fill_the_memory() -> None:
    async def scenario() -> None:
        memory = MemoryPool(asyncio.get_running_loop(), 1000)
        greedy = MemoryAccount(Silent())
        memory.set_unsent(greedy, 900)
        queue = LargeRequestQueue(memory)
        slices = RequestSlices(queue)
        work = asyncio.create_task(slices.run(iter_to(1000)))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not work.done()
        memory.set_unsent(greedy, 100)
        assert await work == 1000
        slices.end()
        memory.set_unsent(greedy, 0)
        memory.close()

    run(scenario())


def test_a_large_request_that_is_cancelled_while_it_waits_for_memory_is_removed() -> None:
    async def scenario() -> None:
        memory = MemoryPool(asyncio.get_running_loop(), 1000)
        greedy = MemoryAccount(Silent())
        memory.set_unsent(greedy, 900)
        queue = LargeRequestQueue(memory)
        cancelled = asyncio.create_task(RequestSlices(queue).run(iter_to(1000)))
        slices = RequestSlices(queue)
        following = asyncio.create_task(slices.run(iter_to(1000)))
        for _ in range(20):
            await asyncio.sleep(0)
        cancelled.cancel()
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(memory.delayed) == 1
        memory.set_unsent(greedy, 0)
        assert await following == 1000
        assert not memory.delayed
        slices.end()
        memory.close()

    run(scenario())


class Silent(MemoryHolder):
    """A client that does not read its response."""

    def resume_frames(self) -> None:
        raise AssertionError("it waits for nothing")


def test_a_handler_that_ends_within_its_slice_responds_at_once() -> None:
    @eager_start
    async def handle(count: int, slices: RequestSlices) -> int:
        return len([item async for item in slices.over(range(count))])

    async def scenario() -> None:
        assert handle(3, RequestSlices()) == 3
        assert await handle(300, RequestSlices()) == 300

    run(scenario())


def test_a_handler_in_slices_gets_the_exception_of_its_future() -> None:
    @eager_start
    async def handle(future: asyncio.Future[int]) -> str:
        try:
            return str(await future)
        except ValueError as problem:
            return f"caught {problem}"

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        good = loop.create_future()
        loop.call_soon(good.set_result, 5)
        assert await handle(good) == "5"
        bad = loop.create_future()
        loop.call_soon(bad.set_exception, ValueError("it"))
        assert await handle(bad) == "caught it"
        cancelled = asyncio.ensure_future(handle(loop.create_future()))
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled

    run(scenario())


def test_a_list_is_split_into_slices() -> None:
    pieces = slices_of(list(range(2 * ITEMS_AT_ONCE_MAX + 1)))
    assert [len(piece) for piece in pieces] == [ITEMS_AT_ONCE_MAX, ITEMS_AT_ONCE_MAX, 1]
    assert [one for piece in pieces for one in piece] == list(range(2 * ITEMS_AT_ONCE_MAX + 1))


# -- codecs


def steps(work: Any) -> tuple[int, Any]:
    """Returns the number of pauses, and the result."""
    count = 0
    while True:
        try:
            next(work)
        except StopIteration as done:
            return count, done.value
        count += 1


def large_messages() -> list[tuple[int, Struct]]:
    parts = [ListOffsetsPartition(partition_index=n, timestamp=n) for n in range(ITEMS)]
    partitions = [ListOffsetsPartitionResponse(partition_index=n, offset=n) for n in range(ITEMS)]
    return [
        (11, ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=parts)])),
        (
            3,
            ListOffsetsRequest(
                replica_id=-1,
                topics=[ListOffsetsTopic(name=f"t{n}", partitions=parts[:1]) for n in range(ITEMS)],
            ),
        ),
        (11, ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=partitions)])),
        (4, FindCoordinatorResponse(coordinators=[Coordinator(key=f"{n}") for n in range(ITEMS)])),
    ]


@pytest.mark.parametrize("number", range(4))
def test_large_messages_are_coded_and_freed_in_slices(number: int) -> None:
    version, message = large_messages()[number]
    whole = encode(message, version)
    parts: list[bytes] = []
    pauses, _ = steps(encode_in_slices(message, version, parts))
    assert pauses >= ITEMS // 100
    assert b"".join(parts) == whole
    pauses, (again, end) = steps(decode_in_slices(type(message), version, whole, 0, len(whole)))
    assert pauses >= ITEMS // 100
    assert (again, end) == (message, len(whole))
    pauses, _ = steps(release_in_slices(again))
    assert pauses >= ITEMS // 200
    assert again != message


def test_errors_of_a_large_message_have_the_same_text() -> None:
    version, message = large_messages()[0]
    whole = encode(message, version)
    with pytest.raises(ProtocolError, match="ListOffsetsRequest v11"):
        steps(decode_in_slices(type(message), version, whole, 0, len(whole) - 5))
    wrong: Any = message
    wrong.topics[0].partitions[7].timestamp = "now"
    with pytest.raises(EncodeError, match=r"topics\[0\].partitions\[7\].timestamp"):
        steps(encode_in_slices(message, version, []))


def test_shared_lists_are_kept_when_a_message_is_freed() -> None:
    from tidemill.wire.messages.metadata import (
        MetadataResponse,
        MetadataResponsePartition,
        MetadataResponseTopic,
    )

    replicas = [1, 2, 3]
    partition = MetadataResponsePartition(replica_nodes=replicas)
    steps(release_in_slices(MetadataResponse(topics=[MetadataResponseTopic(partitions=[partition])])))
    assert (replicas, partition.replica_nodes) == ([1, 2, 3], [1, 2, 3])


def test_waiting_for_completed_work_counts_towards_the_slice() -> None:
    async def scenario() -> None:
        done, others = asyncio.Event(), [0]
        beside = asyncio.create_task(counted(others, done))
        slices = RequestSlices(LargeRequestQueue(unlimited_memory()))

        async def at_once() -> int:
            return 1

        for _ in range(1000):
            assert await slices.wait_for(at_once()) == 1
            await slices.step()
        done.set()
        await beside
        slices.end()
        assert others[0] >= 50

    run(scenario())


def test_garbage_collection_pauses_only_while_a_large_request_is_handled() -> None:
    async def scenario() -> None:
        queue, stored = LargeRequestQueue(unlimited_memory()), asyncio.Event()
        waiting, working = RequestSlices(queue), RequestSlices(queue)
        await waiting.run(iter_to(100))
        assert not gc.isenabled()
        resting = asyncio.create_task(waiting.wait_for(stored.wait()))
        await asyncio.sleep(0)
        assert gc.isenabled(), "the request waits for another operation"
        await working.run(iter_to(100))
        assert not gc.isenabled()
        working.end()
        assert gc.isenabled()
        stored.set()
        await resting
        waiting.end()
        assert gc.isenabled()

    run(scenario())


def test_garbage_collection_continues_while_a_large_request_waits_for_memory() -> None:
    async def scenario() -> None:
        memory = MemoryPool(asyncio.get_running_loop(), 1000)
        greedy = MemoryAccount(Silent())
        memory.set_unsent(greedy, 900)
        slices = RequestSlices(LargeRequestQueue(memory))
        work = asyncio.create_task(slices.run(iter_to(100)))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not work.done()
        assert gc.isenabled()
        memory.set_unsent(greedy, 0)
        await work
        assert not gc.isenabled()
        slices.end()
        assert gc.isenabled()
        memory.close()

    run(scenario())


def test_garbage_collection_resumes_while_a_large_request_is_handled_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidemill.broker.gc_pause.GC_PAUSE_S_MAX", 0.0)

    async def scenario() -> None:
        slices = RequestSlices(LargeRequestQueue(unlimited_memory()))
        await slices.run(iter_to(100))
        await asyncio.sleep(0.01)
        assert gc.isenabled()
        slices.end()
        assert gc.isenabled()

    run(scenario())


def test_names_are_sorted_and_cleared_in_slices() -> None:
    async def scenario() -> None:
        done, others = asyncio.Event(), [0]
        beside = asyncio.create_task(counted(others, done))
        slices = RequestSlices(LargeRequestQueue(unlimited_memory()))
        names = [f"t{number * 7919 % 20_000}" for number in range(20_000)]
        distinct = await slices.unique(names + names[:100])
        assert list(distinct) == names
        ordered = [name async for name in slices.over(await slices.sorted(distinct))]
        assert ordered == sorted(names)
        before = others[0]
        for items in (distinct, set(names), names):
            await slices.clear(items)
            assert not items
        assert others[0] > before + 2
        done.set()
        await beside
        slices.end()

    run(scenario())


def test_slices_are_limited_by_weight() -> None:
    cut = [list(some) for some in slices_by_weight([3, 3, 5, 20, 1, 9, 1], lambda item: item, 10)]
    assert cut == [[3, 3], [5], [20], [1, 9], [1]]
    assert list(slices_by_weight([], len, 10)) == []
