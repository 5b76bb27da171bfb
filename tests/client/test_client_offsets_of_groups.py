"""The committed offsets of many groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import pytest

from tidemill.client import Admin, Consumer
from tidemill.client import offsets_of_groups as module
from tidemill.client.connection import Connection
from tidemill.client.errors import ClientClosed
from tidemill.client.group_offsets import OffsetAndMetadata
from tidemill.model.errors import ErrorCode
from tidemill.model.types import TopicPartition
from tidemill.testing import Broker
from tidemill.testing.cluster import Cluster
from tidemill.wire.apis import ApiKey

LimitVersions = Callable[[Mapping[ApiKey, int]], None]
OLD = {ApiKey.FIND_COORDINATOR: 3, ApiKey.OFFSET_FETCH: 7}
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Counter[ApiKey]:
    """The requests by their API."""
    counts: Counter[ApiKey] = Counter()
    send = Connection.send

    def count(connection: Connection, key: ApiKey, *arguments: object, **more: object) -> object:
        counts[key] += 1
        return send(connection, key, *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Connection, "send", count)
    return counts


@pytest.mark.parametrize(("versions", "requests"), [({}, 3), (OLD, 5)])
def test_many_groups_need_few_requests(
    monkeypatch: pytest.MonkeyPatch,
    limit_versions: LimitVersions,
    sent: Counter[ApiKey],
    versions: dict[ApiKey, int],
    requests: int,
) -> None:
    monkeypatch.setattr(module, "GROUPS_MAX", 2)
    groups = [f"g{number}" for number in range(5)]
    with Broker() as broker, Admin(broker.bootstrap) as admin:
        admin.create_topic("t", 2, 1)
        admin.alter_group_offsets("g0", {T0: 1})  # creates the topic of the offsets
        limit_versions(versions)
        at = {
            group: {T0: OffsetAndMetadata(number, -1, "note"), T1: OffsetAndMetadata(9)}
            for number, group in enumerate(groups)
        }
        sent.clear()
        assert admin.alter_offsets_of_groups(at) == {}
        assert (sent[ApiKey.FIND_COORDINATOR], sent[ApiKey.OFFSET_COMMIT]) == (requests, 5)
        sent.clear()
        found = admin.offsets_of_groups({**dict.fromkeys(groups), "g4": [T1]})
        assert (sent[ApiKey.FIND_COORDINATOR], sent[ApiKey.OFFSET_FETCH]) == (requests, requests)
        assert found.failures == {}
        assert found.offsets == {**at, "g4": {T1: OffsetAndMetadata(9)}}
        assert admin.offsets_of_groups({}).offsets == {}
        assert admin.offsets_of_groups({"unknown": None}).offsets == {"unknown": {}}
    with pytest.raises(ClientClosed):
        admin.offsets_of_groups({"g0": None})


def test_a_coordinator_that_fails_is_the_failure_of_its_groups_only() -> None:
    names = [f"g{number}" for number in range(12)]
    with Cluster(2, {"offsets.topic.replication.factor": 1}) as cluster, Admin(cluster.bootstrap) as admin:
        admin.create_topic("t", 1, 1)
        assert admin.alter_offsets_of_groups({name: {T0: 5} for name in names}) == {}
        cluster[2].kill()
        with Admin(cluster[1].bootstrap) as left:
            found = left.offsets_of_groups(dict.fromkeys(names), timeout=5)
            assert found.offsets.keys() | found.failures.keys() == set(names)
            assert found.offsets
            assert all(one == {T0: OffsetAndMetadata(5)} for one in found.offsets.values())
            assert found.failures
            assert all(one.retriable for one in found.failures.values())
            failures = left.alter_offsets_of_groups({name: {T0: 6} for name in names}, timeout=5)
            assert failures.keys() == found.failures.keys()


def test_the_positions_of_a_group_with_members_are_refused(group: str) -> None:
    with Broker() as broker, Admin(broker.bootstrap) as admin:
        admin.create_topic("t", 1, 1)
        with Consumer(broker.bootstrap, group_id=group) as consumer:
            consumer.subscribe(["t"])
            while not consumer.assignment():
                consumer.poll(1)
            failures = admin.alter_offsets_of_groups({group: {T0: 0}, "other": {T0: 0}})
            assert {name: one.code for name, one in failures.items()} == {group: ErrorCode.NON_EMPTY_GROUP}
