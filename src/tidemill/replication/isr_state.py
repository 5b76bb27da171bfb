"""The ISR of a partition: the committed one, and the one that its leader has requested. Compiled.

A new ISR is in effect only after the controller has written it. Until the leader knows the outcome of its
request, the controller may have written either of both.

Source: Apache Kafka, ``CommittedPartitionState`` and ``PendingPartitionChange`` of ``Partition.scala``;
KIP-497.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64


class CommittedIsr:
    """An ISR that the controller has written, immutable."""

    def __init__(self, isr: tuple[int, ...], partition_epoch: i64) -> None:
        self.isr: Final = isr
        self.partition_epoch: Final[i64] = partition_epoch
        """The version of the state that contains it; it also grows within a leader epoch."""


class PendingIsr:
    """An ISR that the controller was asked for, immutable."""

    def __init__(self, committed: CommittedIsr, isr: tuple[int, ...]) -> None:
        self.isr: Final = isr
        self.maximal_isr: Final = (*committed.isr, *[broker for broker in isr if broker not in committed.isr])
        """Its members, and those of the committed ISR."""


class IsrState:
    """The committed ISR, and the pending one while a request is in flight."""

    def __init__(self) -> None:
        self.committed = CommittedIsr((), -1)
        self.pending: PendingIsr | None = None

    @property
    def isr(self) -> tuple[int, ...]:
        """The members of the committed ISR."""
        return self.committed.isr

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        """The replicas for which commits wait: the members of the committed and of the pending ISR."""
        pending = self.pending
        return self.committed.isr if pending is None else pending.maximal_isr

    def commit(self, isr: tuple[int, ...], partition_epoch: i64) -> None:
        """Applies a state of the controller. No request is in flight any more."""
        self.committed = CommittedIsr(isr, partition_epoch)
        self.pending = None

    def request(self, isr: tuple[int, ...]) -> None:
        """Records that the controller is asked for ``isr``."""
        self.pending = PendingIsr(self.committed, isr)

    def withdraw(self) -> None:
        """Records that the controller has rejected the request."""
        self.pending = None
