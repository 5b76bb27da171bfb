"""Splits large writes: a ZooKeeper request holds at most 1 MB (``jute.maxbuffer``).

A write in several pieces can be seen, or can stop, half way. So the order of the operations has to be valid
at every cut. When a topic is created, its node comes first, as in Kafka: that node is the topic, and a
controller that finds it creates the states of the partitions that have none. When a reassignment completes,
the states come first and the topic's node last: only that node contains the removed replicas, and a
controller that reads a partial write completes it. When nodes are removed, children come before parents.

Many small changes cost ZooKeeper and the controller a transaction each, although one would do: they are
written in groups. A group fails as a whole; its writer then retries its changes one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tidemill.coordination.coordination_store import Create, Operation, SetData

OPERATIONS_MAX = 600
"""The limit of operations per transaction: it blocks other calls while it is applied, for four milliseconds
in plain Python."""
BYTES_MAX = 512 * 1024
"""Half of a request's limit. The other half is for the chroot of all paths, and for headers."""
OVERHEAD_BYTES = 64
"""The size of an operation without its path and data: header, lengths, version, access list."""


def in_pieces(operations: Iterable[Operation]) -> Iterator[list[Operation]]:
    """Yields the same operations in the same order, in as few transactions as possible; none is empty.

    An operation that is too large for any transaction has its own, so that the store refuses it.
    """
    piece: list[Operation] = []
    size = 0
    for operation in operations:
        own = _bytes_of(operation)
        if piece and (size + own > BYTES_MAX or len(piece) == OPERATIONS_MAX):
            yield piece
            piece, size = [], 0
        piece.append(operation)
        size += own
    if piece:
        yield piece


def in_groups(changes: Iterable[Sequence[Operation]]) -> Iterator[list[Sequence[Operation]]]:
    """Groups independent changes, in order, into as few transactions as possible.

    A change that does not fit into one transaction is a group of its own; see :func:`in_pieces`.
    """
    group: list[Sequence[Operation]] = []
    count = size = 0
    for change in changes:
        own = sum(map(_bytes_of, change)) if len(change) <= OPERATIONS_MAX else BYTES_MAX
        if group and (size + own > BYTES_MAX or count + len(change) > OPERATIONS_MAX):
            yield group
            group, count, size = [], 0, 0
        group.append(change)
        count += len(change)
        size += own
    if group:
        yield group


def _bytes_of(operation: Operation) -> int:
    path = operation.path
    own = OVERHEAD_BYTES + (len(path) if path.isascii() else len(path.encode()))
    return own + len(operation.data) if isinstance(operation, Create | SetData) else own
