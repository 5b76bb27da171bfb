"""The tree in memory: failed and reverted transactions leave it unchanged."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.coordination.coordination_store import (
    NO_OWNER,
    BadVersion,
    Check,
    Create,
    Delete,
    Node,
    Operation,
    OperationError,
    SetData,
    parent_of,
)
from tidemill.coordination.embedded_store_tree import Row, Tree

PATHS = ["/a", "/b", "/a/a", "/a/b", "/b/a", "/a/a/a"]
VERSIONS = st.sampled_from([-1, 0, 1])
DATA = st.sampled_from([b"", b"x"])
OPERATIONS: st.SearchStrategy[Operation] = st.one_of(
    st.builds(Create, st.sampled_from(PATHS), DATA, st.booleans(), st.booleans()),
    st.builds(SetData, st.sampled_from(PATHS), DATA, VERSIONS),
    st.builds(Delete, st.sampled_from(PATHS), VERSIONS),
    st.builds(Check, st.sampled_from(PATHS), VERSIONS),
)
TRANSACTIONS = st.lists(st.lists(OPERATIONS, min_size=1, max_size=4), max_size=12)


def everything(tree: Tree) -> dict[str, tuple[Node, list[str]]]:
    """All nodes by path, with their children."""
    found: dict[str, tuple[Node, list[str]]] = {}
    waiting = ["/"]
    for path in waiting:
        node = tree.get(path)
        assert node is not None
        names = tree.children(path)
        found[path] = (node, names)
        waiting += [f"/{name}" if path == "/" else f"{path}/{name}" for name in names]
    return found


def check_shape(tree: Tree) -> None:
    """Every child has its parent, and no ephemeral node has children."""
    for path, (node, names) in everything(tree).items():
        if path != "/":
            assert path.rpartition("/")[2] in everything(tree)[parent_of(path)][1]
        assert not (node.owner != NO_OWNER and names)


@settings(max_examples=300, deadline=None)
@given(TRANSACTIONS, st.integers(0, 12))
def test_failed_and_reverted_transactions_leave_the_tree_unchanged(
    transactions: list[list[Operation]], undone_count: int
) -> None:
    tree = Tree()
    history = []
    for operations in transactions:
        before = everything(tree)
        last_id = tree.last_id
        try:
            applied = tree.apply(operations, session_id=1)
        except OperationError:
            assert (everything(tree), tree.last_id) == (before, last_id)
            continue
        assert len(applied.results) == len(operations)
        history.append((applied, before))
        check_shape(tree)
    for applied, before in reversed(history[-undone_count:] if undone_count else []):
        tree.undo(applied)
        assert everything(tree) == before


@settings(max_examples=200, deadline=None)
@given(TRANSACTIONS)
def test_stored_rows_restore_the_tree_without_ephemeral_nodes(
    transactions: list[list[Operation]],
) -> None:
    tree = Tree()
    rows: dict[str, Row] = {}
    for operations in transactions:
        try:
            applied = tree.apply(operations, session_id=1)
        except OperationError:
            continue
        for path, row in applied.after.items():
            if row is None:
                rows.pop(path, None)
            else:
                rows[path] = row
    root = rows.pop("/", None)
    loaded = Tree([*rows.values(), *([root] if root else [])], tree.last_id)
    kept = {path: found for path, found in everything(tree).items() if found[0].owner == NO_OWNER}
    expected = {
        path: (node, [name for name in names if f"{path.rstrip('/')}/{name}" in kept])
        for path, (node, names) in kept.items()
    }
    assert everything(loaded) == expected
    # The numbers of sequential nodes continue.
    assert tree.apply([Create("/n", sequential=True)], 1).results == (
        loaded.apply([Create("/n", sequential=True)], 1).results
    )


def test_events_have_the_order_of_the_transaction() -> None:
    tree = Tree()
    applied = tree.apply([Create("/a"), Create("/a/b"), SetData("/a", b"x"), Delete("/a/b")], 1)
    told = [(event.kind.value, event.path) for event in applied.events]
    assert told == [
        ("created", "/a"),
        ("children changed", "/"),
        ("created", "/a/b"),
        ("children changed", "/a"),
        ("data changed", "/a"),
        ("deleted", "/a/b"),
        ("children changed", "/a"),
    ]


def test_changes_of_children_do_not_change_the_version_of_the_root() -> None:
    tree = Tree()
    tree.apply([Create("/a")], 1)
    with pytest.raises(BadVersion, match="/ has another version"):
        tree.apply([Check("/", 1)], 1)
