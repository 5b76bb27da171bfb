"""How large writes are cut: a ZooKeeper request holds at most 1 MB (``jute.maxbuffer``).

What is written in pieces can be seen, or stop, half way. So the order of the operations has to make sense at
every cut. Where a topic is made, its node comes first, as in Kafka: it is the topic, and a controller that
finds it gives states to the partitions that have none. Where a partition has come to other brokers, the
states come first and the topic's node last: only that knows whom the partition leaves, and whoever reads the
half of it finishes it. Where nodes are removed, those below others come first.

Many small changes cost ZooKeeper and the controller a transaction each, where one is enough: they are written
in groups. A group fails as a whole, so whoever writes one tries its changes each by itself then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tidemill.coordination.port import Create, Operation, SetData

OPERATIONS_MAX = 600
"""In one transaction: it is applied in one go, and others wait for it, four milliseconds in plain Python."""
BYTES_MAX = 512 * 1024
"""Half of what a request holds. The other half is for the root under which all paths lie, and for headers."""
OVERHEAD_BYTES = 64
"""Of an operation besides its path and data: header, lengths, version, access list."""


def in_pieces(operations: Iterable[Operation]) -> Iterator[list[Operation]]:
    """The same operations in the same order, in as few transactions as ZooKeeper takes; none is empty.

    An operation that is too large for any transaction has one of its own, so that the store refuses it.
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
    """Changes that are independent of each other, in their order, as many together as one transaction takes.

    One that does not fit into a transaction has a group of its own; see :func:`in_pieces`.
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
