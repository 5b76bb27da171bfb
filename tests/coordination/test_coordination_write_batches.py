"""Large writes, split into transactions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidemill.coordination.coordination_store import NODE_BYTES_MAX, Check, Create, Delete, Operation, SetData
from tidemill.coordination.write_batches import BYTES_MAX, OPERATIONS_MAX, in_groups, in_pieces

PATHS = st.text("aé/", min_size=1, max_size=40).map(lambda text: f"/{text}")
DATA = st.sampled_from([b"", b"x" * 100, b"x" * 200_000, b"x" * BYTES_MAX])
OPERATIONS: st.SearchStrategy[Operation] = st.one_of(
    st.builds(Create, PATHS, DATA),
    st.builds(SetData, PATHS, DATA, st.integers(0, 9)),
    st.builds(Delete, PATHS),
    st.builds(Check, PATHS),
)


@given(st.lists(OPERATIONS, max_size=30))
def test_batches_contain_all_operations_in_order(operations: list[Operation]) -> None:
    pieces = list(in_pieces(operations))
    assert [operation for piece in pieces for operation in piece] == operations
    assert all(pieces)
    for piece in pieces:
        data = [one.data for one in piece if isinstance(one, Create | SetData)]
        assert len(piece) == 1 or sum(map(len, data)) <= BYTES_MAX


def test_batches_have_the_maximum_size() -> None:
    states: list[Operation] = [
        Create(f"/brokers/topics/t/partitions/{n}/state", b"x" * 80) for n in range(3 * OPERATIONS_MAX + 300)
    ]
    sizes = [len(piece) for piece in in_pieces(states)]
    assert sizes == [OPERATIONS_MAX, OPERATIONS_MAX, OPERATIONS_MAX, 300]
    assert list(in_pieces([])) == []
    assert BYTES_MAX + OPERATIONS_MAX * 400 < NODE_BYTES_MAX, "room for a long root above every path"


@given(st.lists(st.lists(OPERATIONS, max_size=10), max_size=10))
def test_groups_contain_all_changes_in_order(changes: list[list[Operation]]) -> None:
    groups = list(in_groups(changes))
    assert [change for group in groups for change in group] == changes
    for group in groups:
        assert len(group) == 1 or len(list(in_pieces(one for change in group for one in change))) <= 1


def test_groups_have_the_maximum_size() -> None:
    changes = [[Create(f"/t{n}"), Create(f"/t{n}/partitions")] for n in range(OPERATIONS_MAX + 200)]
    assert [len(group) for group in in_groups(changes)] == [OPERATIONS_MAX // 2, OPERATIONS_MAX // 2, 200]
