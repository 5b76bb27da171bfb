"""The checker detects controllers that write, know or grant wrong states."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from controller_promise import APPLY_S, ControllerKnowledge, ControllerPromise, Written, _with_another_minimum
from simulated_loop import PROCESS, Process
from test_promise_checkers import ID, TP, Checked

from alter_partition_items import isr_change
from tidemill.controller.alter_partition import AlterPartitionItem
from tidemill.controller.controller_context import ControllerContext
from tidemill.controller.failover import Failover
from tidemill.coordination.cluster_image import BrokerImage, ClusterImage
from tidemill.coordination.coordination_store import Check, Create, Operation, SetData
from tidemill.coordination.embedded_store_tree import Tree
from tidemill.coordination.lost_replicas import LostReplicas
from tidemill.coordination.nodes import (
    CONTROLLER_EPOCH,
    PERSISTENT_PATHS,
    BrokerRegistration,
    ConfigNode,
    ControllerEpochNode,
    DeleteTopicNode,
    LeaderIsrAndControllerEpoch,
    PartitionStateNode,
    TopicAssignment,
    TopicNode,
)
from tidemill.coordination.topic_image import PartitionImage, TopicImage
from tidemill.coordination.topic_index import TopicIndex
from tidemill.replication.partition import Partition

SESSION = 7
STATE = LeaderIsrAndControllerEpoch(1, 4, [1], 2, elr=(2,))
PATH = PartitionStateNode.path(*TP)
FENCE = Check(CONTROLLER_EPOCH, 0)


class Store:
    """A store with one partition of three replicas, and a controller with its image."""

    def __init__(self) -> None:
        self.checked = Checked()
        self.tree = Tree()
        self.promise = ControllerPromise(self.checked.promises, lambda: self.tree)
        self.promise.min_insync_default = 2
        for path in (*PERSISTENT_PATHS, "/brokers/topics/t", "/brokers/topics/t/partitions"):
            self._make(path)
        self._make(PartitionStateNode.parent(*TP))
        self.tree.apply([Create(PATH, PartitionStateNode.encode(STATE))], 0)
        data = TopicNode.encode(TopicAssignment(ID, {0: [1, 2, 3]}))
        self.tree.apply([SetData(TopicNode.path("t"), data)], 0)
        self.tree.apply([Create(CONTROLLER_EPOCH, ControllerEpochNode.encode(2))], 0)
        self.process = Process("broker-1")
        self.partition = PartitionImage(0, 1, 4, [1, 2, 3], [1], 0, elr=(2,))
        self.epochs = {1: 11, 2: 12, 3: 13}

    def _make(self, path: str) -> None:
        above = ""
        for name in path.strip("/").split("/"):
            above += f"/{name}"
            if self.tree.get(above) is None:
                self.tree.apply([Create(above)], 0)

    @property
    def image(self) -> ClusterImage:
        """The controller's image."""
        brokers = {one: BrokerImage(BrokerRegistration(one, ()), epoch) for one, epoch in self.epochs.items()}
        node = self.tree.get(TopicNode.path("t"))
        version = node.version if node is not None else 0
        return ClusterImage("", 1, 2, brokers, {"t": TopicImage("t", ID, (self.partition,), {}, version)})

    def office(self, **others: Any) -> ControllerContext:
        """The controller."""
        policy = SimpleNamespace(of=lambda topic: SimpleNamespace(min_insync_replicas=2))
        known = {
            "image": self.image,
            "policies": policy,
            "store": SimpleNamespace(session_id=SESSION),
            "stopping": frozenset,
            "election": SimpleNamespace(is_active=True, epoch=2),
            "is_changing": False,
            "_is_stale": False,
        }
        return cast(ControllerContext, SimpleNamespace(**{**known, **others}))

    def write(self, *operations: Operation, office: ControllerContext | None = None) -> list[str]:
        """A broker writes; returns the broken promises."""
        before = {one.path: self.tree.get(one.path) for one in operations if isinstance(one, SetData)}
        self.tree.apply(operations, SESSION)
        written = Written(SESSION, operations, before)
        self.promise.wrote(written, self.process, office if office is not None else self.office())
        return self.found()

    def written(self, state: LeaderIsrAndControllerEpoch) -> list[str]:
        """The controller writes a state; returns the broken promises."""
        return self.write(FENCE, SetData(PATH, PartitionStateNode.encode(state), 0))

    def looked(self, **others: Any) -> list[str]:
        """The controller is idle; returns the broken promises."""
        self.promise.look(self.office(**others), self.process)
        return self.found()

    def found(self) -> list[str]:
        """Returns the broken promises."""
        return [text.partition(":")[0] for text in self.checked.broken]


def test_a_state_that_follows_from_the_previous_state_breaks_no_promise() -> None:
    assert Store().written(STATE) == []


def test_eligible_replicas_that_are_dropped_without_another_minimum_are_found() -> None:
    assert Store().written(STATE._replace(elr=())) == ["decision"]


@pytest.mark.parametrize(
    ("path", "before", "after", "found"),
    [
        (ConfigNode.path("topics", "t"), None, "3", []),
        (ConfigNode.path("topics", "t"), "2", "3", []),
        (ConfigNode.path("topics", "t"), "3", "3", ["decision"]),
        (ConfigNode.path("topics", "u"), None, "3", ["decision"]),
        (ConfigNode.path("brokers", "<default>"), "2", "3", []),
    ],
)
def test_a_changed_minimum_in_the_same_transaction_removes_the_eligible_replicas(
    path: str, before: str | None, after: str, found: list[str]
) -> None:
    store = Store()
    store._make(path.rpartition("/")[0])
    data = ConfigNode.encode({"min.insync.replicas": after})
    operation: Operation = Create(path, data)
    if before is not None:
        store.tree.apply([Create(path, ConfigNode.encode({"min.insync.replicas": before}))], 0)
        operation = SetData(path, data)
    state = SetData(PATH, PartitionStateNode.encode(STATE._replace(elr=())), 0)
    assert store.write(FENCE, state, operation) == found


def test_a_minimum_written_by_another_program_removes_the_eligible_replicas() -> None:
    store = Store()
    knowledge = store.promise._knowledge_of.setdefault(store.process, ControllerKnowledge())
    settings = {("topics", "t"): {"min.insync.replicas": "1"}}
    knowledge.minimum_changed = _with_another_minimum(store.image, settings)
    assert knowledge.minimum_changed == {"t"}
    assert _with_another_minimum(store.image, {("topics", "t"): {}}) == set()
    assert _with_another_minimum(store.image, {("brokers", "<default>"): settings["topics", "t"]}) == {"t"}
    assert store.written(STATE._replace(elr=())) == []


def test_a_state_written_without_an_epoch_check_is_found() -> None:
    store = Store()
    assert store.write(SetData(PATH, PartitionStateNode.encode(STATE), 0)) == ["one-controller"]


def test_a_state_that_does_not_follow_from_the_previous_state_is_found() -> None:
    store = Store()
    assert store.written(STATE._replace(isr=[1, 2, 3], elr=())) == ["decision"]


def test_a_state_based_on_an_outdated_state_is_found() -> None:
    store = Store()
    store.partition = store.partition.replaced(elr=())
    assert store.written(STATE) == ["image"]


def elected(store: Store, read_s: float, read: dict[int, int]) -> list[str]:
    """Returns the findings if broker 2 is elected at 19 s, after the registrations ``read`` at ``read_s``."""
    store.epochs = {2: 12, 3: 13}
    token = PROCESS.set(store.process)
    try:
        knowledge = store.promise._knowledge()
        knowledge.changing_since_s, knowledge.read_s, knowledge.registrations = 19.0, read_s, read
        return store.written(STATE._replace(leader=2, leader_epoch=5, isr=[2], elr=(1,)))
    finally:
        PROCESS.reset(token)


def test_an_election_without_a_read_of_the_registrations_is_found() -> None:
    assert elected(Store(), 18.0, {2: 12}) == ["decision"]


@pytest.mark.parametrize("read", [{2: 12}, {2: 11}, {}])
def test_an_election_of_an_unregistered_broker_is_found(read: dict[int, int]) -> None:
    assert elected(Store(), 19.0, read) == ([] if read == {2: 12} else ["decision"])


@pytest.mark.parametrize(
    ("read", "dead", "found"),
    [
        ({1: 11, 2: 12, 3: 13}, {}, []),
        ({1: 11, 2: 12}, {}, ["image"]),
        ({1: 11, 2: 12, 3: 14}, {}, ["image"]),
        ({1: 11, 2: 12, 3: 13, 4: 14}, {}, ["image"]),
        ({1: 11, 2: 12, 3: 13, 4: 14}, {4: 14}, []),
    ],
)
def test_a_read_of_the_brokers_returns_the_registered_live_brokers(
    read: dict[int, int], dead: dict[int, int], found: list[str]
) -> None:
    store = Store()
    token = PROCESS.set(store.process)
    try:
        store.promise._knowledge().registrations = read
        store.promise._looked(cast(Failover, SimpleNamespace(_context=store.office())), dead)
        assert store.found() == found
    finally:
        PROCESS.reset(token)


def test_eligible_replicas_after_a_changed_minimum_are_found() -> None:
    store = Store()
    path = ConfigNode.path("topics", "t")
    store._make("/config/topics")
    assert store.write(FENCE, Create(path, ConfigNode.encode({"min.insync.replicas": "1"}))) == ["decision"]


def test_a_removed_in_sync_replica_is_found() -> None:
    store = Store()
    data = TopicNode.encode(TopicAssignment(ID, {0: [1, 3]}))
    assert store.write(FENCE, SetData(TopicNode.path("t"), data)) == ["decision"]


@pytest.mark.parametrize("is_marked", [True, False])
def test_deviations_of_a_topic_in_deletion_are_excused(is_marked: bool) -> None:
    setting = Create(ConfigNode.path("topics", "t"), ConfigNode.encode({"min.insync.replicas": "1"}))
    moved = SetData(TopicNode.path("t"), TopicNode.encode(TopicAssignment(ID, {0: [1, 3]})))
    for operation in (setting, moved):
        store = Store()
        store._make("/config/topics")
        if is_marked:
            store._make(DeleteTopicNode.path("t"))
        assert store.write(FENCE, operation) == ["decision"] * (not is_marked)
        assert store.checked.counts["excuse being-deleted"] == is_marked
    store = Store()
    store.promise.disk_changed(1)
    store.checked.promises.partitions[TP].is_being_deleted = is_marked
    store.promise.registered(1, LostReplicas())
    assert store.found() == ["losses"] * (not is_marked)
    assert store.checked.counts["excuse being-deleted"] == is_marked


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_state_of_an_ended_controller_or_after_an_unanswered_write_is_excused(is_gone: bool) -> None:
    store = Store()
    data = PartitionStateNode.encode(STATE._replace(elr=()))
    before = {PATH: store.tree.get(PATH)}
    operations = (FENCE, SetData(PATH, data, 0))
    store.tree.apply(operations, SESSION)
    store.partition = store.partition.replaced(partition_epoch=-1)
    office = None if is_gone else store.office()
    store.promise.wrote(Written(SESSION, operations, before), store.process, office)
    assert (store.found(), store.checked.counts["excuse in-transition"]) == ([], 1)


def test_an_image_equal_to_the_store_breaks_no_promise() -> None:
    assert Store().looked() == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"elr": ()},
        {"last_known_leader": 2},
        {"lost_replicas": (3,)},
        {"adding": [3]},
        {"partition_epoch": 1},
        {"replicas": [1, 2]},
    ],
)
def test_an_image_of_a_partition_that_differs_from_the_store_is_found(wrong: dict[str, Any]) -> None:
    store = Store()
    store.partition = store.partition.replaced(**wrong)
    assert "image" in store.looked()


def test_a_new_controller_does_not_know_offline_replicas() -> None:
    store = Store()
    knowledge = store.promise._knowledge_of.setdefault(store.process, ControllerKnowledge())
    knowledge.failed[ID, 0] = 1, 0
    store.promise.controller_begins()
    assert knowledge.failed == {}


def test_a_deletion_unknown_to_a_new_controller_is_found() -> None:
    store = Store()
    store._make(DeleteTopicNode.path("t"))
    assert store.looked() == [], "it was marked since"
    store.promise.controller_begins()
    assert store.looked() == ["image"]


def test_a_controller_that_uses_outdated_settings_is_found() -> None:
    policy = SimpleNamespace(of=lambda topic: SimpleNamespace(min_insync_replicas=1))
    assert Store().looked(policies=policy) == ["image"]


def test_a_dead_or_offline_leader_is_found() -> None:
    store = Store()
    store.epochs = {2: 12, 3: 13}
    assert store.looked() == ["decision"]
    store = Store()
    store.partition = store.partition.with_offline(frozenset({1}))
    assert store.looked() == ["decision"]


def test_an_image_is_not_compared_during_a_change() -> None:
    inactive, replaced = (
        SimpleNamespace(is_active=is_active, epoch=epoch) for is_active, epoch in ((False, 2), (True, 1))
    )
    for why in ({"election": inactive}, {"is_changing": True}, {"_is_stale": True}, {"election": replaced}):
        store = Store()
        store.partition = store.partition.replaced(elr=())
        assert store.looked(**why) == []


def _leader(least: int, counted: int) -> Partition:
    return cast(
        Partition,
        SimpleNamespace(
            topic="t",
            index=0,
            log=SimpleNamespace(topic_id=ID),
            replicas=(1, 2, 3),
            adding=(),
            min_insync_replicas=least,
            effective_min_isr=counted,
        ),
    )


def test_a_leader_that_keeps_former_settings_is_found() -> None:
    store = Store()
    store.promise.look_at_leader(1, store.process, store.image, _leader(1, 1))
    assert store.found() == [], "it puts them into effect a little later"
    store.checked.now += APPLY_S + 0.1
    store.promise.look_at_leader(1, store.process, store.image, _leader(1, 1))
    assert store.found() == ["image"]


def test_a_leader_that_requires_another_number_of_replicas_is_found() -> None:
    store = Store()
    store.promise.look_at_leader(1, store.process, store.image, _leader(2, 3))
    assert store.found() == ["image"]


def _index(**others: Any) -> TopicIndex:
    """Returns an index of a topic that another broker has joined; ``others`` are its errors."""
    first = TopicImage("t", ID, (PartitionImage(0, 1, 4, [1, 2], [1]),), {}, 0)
    joined = TopicImage("t", ID, (PartitionImage(0, 1, 4, [1, 3], [1]),), {}, 0)
    index = TopicIndex({"t": first}).with_changes([joined])
    for name, value in others.items():
        setattr(index, name, value)
    return index


@pytest.mark.parametrize(
    ("index", "found"),
    [
        (_index(), []),
        (_index(by_broker={1: {"t": None}}), ["image"]),
        (_index(by_broker={1: {"t": None}, 2: {"t": None}, 3: {"t": None}}), ["image"]),
        (_index(by_id={}), ["image"]),
        (_index(reassigning={"t": None}), ["image"]),
        (_index(leaderless={"t": None}), ["image"]),
        (_index(eligible={"t": None}), ["image"]),
    ],
)
def test_an_updated_index_that_differs_from_a_new_index_is_found(index: TopicIndex, found: list[str]) -> None:
    store = Store()
    image = ClusterImage("", 1, 2, {}, index)
    for _ in range(2):
        store.promise.look_at_index(1, store.process, image)
    assert store.found() == found


def test_the_topic_index_of_a_controller_is_compared_with_a_new_index() -> None:
    store = Store()
    assert store.looked() == []
    image = store.image
    image.topic_index.reassigning = {"t": None}
    assert store.looked(image=image) == ["image"]


def test_an_unreported_replaced_disk_is_found() -> None:
    for lost, found in ((LostReplicas(missing=True), []), (LostReplicas(), ["losses"])):
        store = Store()
        store.promise.disk_changed(1)
        store.promise.registered(1, lost)
        assert store.found() == found
    store = Store()
    store.promise.disk_changed(3)
    store.promise.registered(3, LostReplicas())
    assert store.found() == [], "it would not be elected anyway"


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (isr_change(1, 4, 0, [(1, 11), (2, 12)]), []),
        (isr_change(1, 3, 0, [(1, 11), (2, 12)]), ["decision"]),
        (isr_change(1, 4, 1, [(1, 11), (2, 12)]), ["decision"]),
        (isr_change(1, 4, 0, [(1, 11), (2, 9)]), ["decision"]),
        (isr_change(1, 4, 0, [(1, 11), (2, -1)]), ["decision"]),
    ],
)
def test_an_isr_request_requires_the_current_leader_and_broker_epochs(
    change: AlterPartitionItem, found: list[str]
) -> None:
    store = Store()
    token = PROCESS.set(store.process)
    try:
        after = store.partition.replaced(isr=[1, 2], elr=())
        store.promise._granted(store.image, "t", store.partition, change, after, frozenset())
        assert store.found() == found
        if not found:
            assert store.written(STATE._replace(isr=[1, 2], elr=())) == []
    finally:
        PROCESS.reset(token)
