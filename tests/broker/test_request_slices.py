"""Large requests work in turns: others are served between their slices, and one of them works at a time."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from tidemill.broker.request_slices import SLICE_S, Lane, Turns, in_slices
from tidemill.model.slices import AT_ONCE_MAX, slices_by_weight, slices_of
from tidemill.net.memory import Holder, Memory
from tidemill.wire.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from tidemill.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)
from tidemill.wire.schema import (
    EncodeError,
    ProtocolError,
    Struct,
    decode_in_slices,
    encode,
    encode_in_slices,
    let_go_in_slices,
)

ITEMS = 3000


class SteppedLoop(asyncio.SelectorEventLoop):
    """Time goes on by a tenth of a slice with every look at the clock."""

    now = 0.0

    def time(self) -> float:
        self.now += SLICE_S / 10
        return self.now


def run(work: Any) -> Any:
    with asyncio.Runner(loop_factory=SteppedLoop) as runner:
        return runner.run(work)


async def counted(loop_turns: list[int], done: asyncio.Event) -> None:
    while not done.is_set():
        loop_turns[0] += 1
        await asyncio.sleep(0)


def test_others_are_served_while_a_long_list_is_worked_through() -> None:
    async def scenario() -> None:
        done, others = asyncio.Event(), [0]
        beside = asyncio.create_task(counted(others, done))
        turns = Turns(Lane())
        found = [item async for item in turns.over(range(1000))]
        done.set()
        await beside
        assert found == list(range(1000))
        assert others[0] >= 50
        turns.end()

    run(scenario())


def test_one_large_request_works_at_a_time_in_the_order_in_which_they_came() -> None:
    async def scenario() -> None:
        lane, story = Lane(), []

        async def request(name: str) -> None:
            turns = Turns(lane)
            async for item in turns.over(range(200)):
                if item in (20, 199):
                    story.append(f"{name}{item}")
            turns.end()

        await asyncio.gather(*[request(name) for name in "abc"])
        assert story == ["a20", "a199", "b20", "b199", "c20", "c199"]
        assert lane.entered == 3

    run(scenario())


def test_a_request_that_waits_for_something_else_lets_others_work() -> None:
    async def scenario() -> None:
        lane, stored = Lane(), asyncio.Event()

        async def waits() -> str:
            turns = Turns(lane)
            async for _ in turns.over(range(50)):
                pass
            await turns.rest(stored.wait())
            turns.end()
            return "waited"

        waiting = asyncio.create_task(waits())
        await asyncio.sleep(0)
        turns = Turns(lane)
        async with asyncio.timeout(100):
            async for _ in turns.over(range(200)):
                pass
        turns.end()
        stored.set()
        assert await waiting == "waited"

    run(scenario())


def test_a_large_request_that_is_given_up_keeps_nobody_waiting() -> None:
    async def scenario() -> None:
        lane = Lane()
        first = Turns(lane)
        await first.finish(iter_to(30))

        async def second() -> None:
            turns = Turns(lane)
            try:
                await turns.finish(iter_to(1000))
            finally:
                turns.end()

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


def test_large_requests_wait_while_replies_that_nobody_takes_fill_the_memory() -> None:
    async def scenario() -> None:
        memory = Memory(asyncio.get_running_loop(), 1000)
        greedy = Silent()
        memory.note_unsent(greedy, 900)
        lane = Lane(memory)
        turns = Turns(lane)
        work = asyncio.create_task(turns.finish(iter_to(1000)))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not work.done()
        memory.note_unsent(greedy, 100)
        assert await work == 1000
        turns.end()
        memory.note_unsent(greedy, 0)
        memory.close()

    run(scenario())


class Silent(Holder):
    """Takes nothing of its reply."""

    def resume_frames(self) -> None:
        raise AssertionError("it waits for nothing")


def test_a_handler_that_is_done_within_its_slice_answers_at_once() -> None:
    @in_slices
    async def handle(count: int, turns: Turns) -> int:
        return len([item async for item in turns.over(range(count))])

    async def scenario() -> None:
        assert handle(3, Turns()) == 3
        assert await handle(300, Turns()) == 300

    run(scenario())


def test_a_handler_in_slices_sees_what_it_waits_for_fail() -> None:
    @in_slices
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


def test_what_cannot_be_left_in_between_comes_in_pieces() -> None:
    pieces = slices_of(list(range(2 * AT_ONCE_MAX + 1)))
    assert [len(piece) for piece in pieces] == [AT_ONCE_MAX, AT_ONCE_MAX, 1]
    assert [one for piece in pieces for one in piece] == list(range(2 * AT_ONCE_MAX + 1))


# -- codecs


def steps(work: Any) -> tuple[int, Any]:
    """How often it pauses, and what it returns."""
    count = 0
    while True:
        try:
            next(work)
        except StopIteration as done:
            return count, done.value
        count += 1


def large_messages() -> list[tuple[int, Struct]]:
    parts = [ListOffsetsPartition(partition_index=n, timestamp=n) for n in range(ITEMS)]
    told = [ListOffsetsPartitionResponse(partition_index=n, offset=n) for n in range(ITEMS)]
    return [
        (11, ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=parts)])),
        (
            3,
            ListOffsetsRequest(
                replica_id=-1,
                topics=[ListOffsetsTopic(name=f"t{n}", partitions=parts[:1]) for n in range(ITEMS)],
            ),
        ),
        (11, ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=told)])),
        (4, FindCoordinatorResponse(coordinators=[Coordinator(key=f"{n}") for n in range(ITEMS)])),
    ]


@pytest.mark.parametrize("number", range(4))
def test_large_messages_are_coded_and_let_go_in_slices(number: int) -> None:
    version, message = large_messages()[number]
    whole = encode(message, version)
    parts: list[bytes] = []
    pauses, _ = steps(encode_in_slices(message, version, parts))
    assert pauses >= ITEMS // 100
    assert b"".join(parts) == whole
    pauses, (again, end) = steps(decode_in_slices(type(message), version, whole, 0, len(whole)))
    assert pauses >= ITEMS // 100
    assert (again, end) == (message, len(whole))
    pauses, _ = steps(let_go_in_slices(again))
    assert pauses >= ITEMS // 200
    assert again != message


def test_what_is_wrong_with_a_large_message_is_told_in_the_same_words() -> None:
    version, message = large_messages()[0]
    whole = encode(message, version)
    with pytest.raises(ProtocolError, match="ListOffsetsRequest v11"):
        steps(decode_in_slices(type(message), version, whole, 0, len(whole) - 5))
    wrong: Any = message
    wrong.topics[0].partitions[7].timestamp = "now"
    with pytest.raises(EncodeError, match=r"topics\[0\].partitions\[7\].timestamp"):
        steps(encode_in_slices(message, version, []))


def test_lists_that_others_use_stay_when_a_message_is_let_go() -> None:
    from tidemill.wire.messages.metadata import (
        MetadataResponse,
        MetadataResponsePartition,
        MetadataResponseTopic,
    )

    replicas = [1, 2, 3]
    partition = MetadataResponsePartition(replica_nodes=replicas)
    steps(let_go_in_slices(MetadataResponse(topics=[MetadataResponseTopic(partitions=[partition])])))
    assert (replicas, partition.replica_nodes) == ([1, 2, 3], [1, 2, 3])


def test_a_request_that_need_not_wait_for_others_lets_the_loop_do_its_work_all_the_same() -> None:
    async def scenario() -> None:
        done, others = asyncio.Event(), [0]
        beside = asyncio.create_task(counted(others, done))
        turns = Turns(Lane())

        async def at_once() -> int:
            return 1

        for _ in range(1000):
            assert await turns.rest(at_once()) == 1
            await turns.step()
        done.set()
        await beside
        turns.end()
        assert others[0] >= 50

    run(scenario())


def test_python_looks_for_cycles_again_once_large_requests_are_answered_not_while_they_wait() -> None:
    async def scenario() -> None:
        lane, stored = Lane(), asyncio.Event()
        waiting, working = Turns(lane), Turns(lane)
        for turns in (waiting, working):
            await turns.finish(iter_to(100))
            turns._leave()
        resting = asyncio.create_task(waiting.rest(stored.wait()))
        await asyncio.sleep(0)
        working.end()
        assert not gc.isenabled()
        stored.set()
        await resting
        assert not gc.isenabled()
        waiting.end()
        assert gc.isenabled()

    run(scenario())


def test_python_looks_for_cycles_again_where_a_large_request_waits_for_minutes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidemill.broker.request_slices.COLLECTS_AGAIN_S", 0.0)

    async def scenario() -> None:
        turns = Turns(Lane())
        await turns.finish(iter_to(100))
        await turns.rest(asyncio.sleep(0.01))
        assert gc.isenabled()
        turns.end()
        assert gc.isenabled()

    run(scenario())


def test_names_are_brought_into_order_and_let_go_in_slices() -> None:
    async def scenario() -> None:
        done, others = asyncio.Event(), [0]
        beside = asyncio.create_task(counted(others, done))
        turns = Turns(Lane())
        names = [f"t{number * 7919 % 20_000}" for number in range(20_000)]
        asked = await turns.unique(names + names[:100])
        assert list(asked) == names
        ordered = [name async for name in turns.over(await turns.in_order(asked))]
        assert ordered == sorted(names)
        before = others[0]
        for items in (asked, set(names), names):
            await turns.let_go(items)
            assert not items
        assert others[0] > before + 2
        done.set()
        await beside
        turns.end()

    run(scenario())


def test_items_are_cut_where_they_weigh_too_much_together() -> None:
    cut = [list(some) for some in slices_by_weight([3, 3, 5, 20, 1, 9, 1], lambda item: item, 10)]
    assert cut == [[3, 3], [5], [20], [1, 9], [1]]
    assert list(slices_by_weight([], len, 10)) == []
