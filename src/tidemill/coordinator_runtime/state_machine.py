"""The interface of a coordinator's state machine, and of the loader of its log.

It has no clock, no log and no socket: the runtime passes it events, and performs its effects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from tidemill.coordinator_runtime.coordinator_effects import CoordinatorRecord, Now
from tidemill.model.errors import ErrorCode

APPEND_ERRORS: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.FENCED_LEADER_EPOCH: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""The error codes for clients when the coordinator's own append fails; other codes are passed on."""

RecordT_contra = TypeVar("RecordT_contra", bound=CoordinatorRecord, contravariant=True)
ThenT_contra = TypeVar("ThenT_contra", contravariant=True)
KeyT_contra = TypeVar("KeyT_contra", contravariant=True)
EffectT_co = TypeVar("EffectT_co", covariant=True)


class StateMachine(Protocol[RecordT_contra, ThenT_contra, KeyT_contra, EffectT_co]):
    """The state of one partition: records are replayed, events come in, effects go out.

    Effects are :class:`Reply`, :class:`SetTimer`, :class:`CancelTimer`, :class:`Append`, and others, which
    the coordinator performs.
    """

    @property
    def has_effects(self) -> bool:
        """Whether :meth:`take_effects` would return effects."""
        ...

    def take_effects(self) -> Iterable[EffectT_co]:
        """Returns the effects since the last call, in order; the caller performs them once."""
        ...

    def replay(self, record: RecordT_contra, now: Now) -> None:
        """Takes over a committed record."""
        ...

    def loaded(self, now: Now) -> None:
        """Called after the log was replayed to its end."""
        ...

    def unload(self, now: Now) -> None:
        """Called when another broker leads the partition; waiting requests get NOT_COORDINATOR."""
        ...

    def timer_fired(self, key: KeyT_contra, now: Now) -> None:
        """Handles the expiry of the timer ``key``."""
        ...

    def client_error(self, then: ThenT_contra, error: ErrorCode) -> ErrorCode:
        """Returns the error for clients when the append before ``then`` failed with ``error``."""
        ...

    def appended(self, then: ThenT_contra, error: ErrorCode, now: Now) -> None:
        """Called when records were committed (and replayed, where requested), or failed with ``error``."""
        ...

    def append_timed_out(self, then: ThenT_contra, error: ErrorCode, now: Now) -> None:
        """Called when records are not committed in time: responds to the waiting request with ``error``.

        The write continues. Its end calls :meth:`timed_out_append_ended` instead of :meth:`appended`.
        """
        ...

    def timed_out_append_ended(self, then: ThenT_contra, error: ErrorCode, now: Now) -> None:
        """Called when the write behind a timed-out append ended: committed and replayed, or failed."""
        ...


AnyStateMachine: TypeAlias = StateMachine[Any, Any, Any, Any]
"""A state machine. The runtime passes its records, timers and continuations on, and does not read them."""
MachineT = TypeVar("MachineT", bound=AnyStateMachine)


class Loader(Protocol):
    """Replays the log of a partition into its state machine."""

    records: int
    """The number of records that were replayed."""
    offset: int
    """The offset of the batch or record that was read last; -1 before the first one."""

    def replay(self, data: bytes, now: Now) -> Iterator[int]:
        """Replays the batches in ``data``; yields the bytes of each step, after which other tasks can run."""
        ...
