"""Ids of producers: given out once, from blocks."""

from __future__ import annotations

from tidemill.model.errors import KafkaError
from tidemill.transactions.producer_id_manager import ProducerIdManager


async def test_a_block_of_producer_ids_is_there_before_it_is_needed() -> None:
    answers: list[int | KafkaError] = [0, 1000, KafkaError("away"), 2000]

    async def allocate() -> tuple[int, int]:
        answer = answers.pop(0)
        if isinstance(answer, KafkaError):
            raise answer
        return answer, 1000

    ids = ProducerIdManager(allocate)
    await ids.prepare()
    assert [await ids.next() for _ in range(901)] == list(range(901))
    assert len(answers) == 3
    await ids.prepare()
    await ids.prepare()
    assert [await ids.next() for _ in range(1099)] == list(range(901, 2000))
    await ids.prepare()
    assert len(answers) == 1
    assert await ids.next() == 2000
