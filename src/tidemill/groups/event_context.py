"""The context in which a group handles an event."""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.coordinator_runtime.coordinator_effects import (
    Append,
    CancelTimer,
    Now,
    Reply,
    SetTimer,
    TransactionProducer,
    Waiter,
)
from tidemill.groups.coordinator_effects import (
    Continuation,
    Effect,
    Response,
    StateChanged,
    TimerKey,
    TimerKind,
)
from tidemill.groups.group_coordinator_config import GroupCoordinatorConfig
from tidemill.groups.group_metadata import GroupMetadata
from tidemill.groups.offset_records import OffsetsRecord
from tidemill.model.transaction_types import MarkerToWrite


class EventContext:
    """The time and the configuration of one event, and the effects that it emits."""

    __slots__ = ("config", "effects", "now")

    def __init__(self, config: GroupCoordinatorConfig, now: Now, effects: list[Effect]) -> None:
        self.config = config
        self.now = now
        self.effects = effects

    def reply(self, waiter: Waiter, response: Response) -> None:
        """Sends ``response`` to ``waiter``."""
        self.effects.append(Reply(waiter=waiter, response=response))

    def set_timer(self, kind: TimerKind, group: GroupMetadata, after_ms: int, member_id: str = "") -> None:
        """Sets a timer of the group, or of its member ``member_id``."""
        key = TimerKey(kind, group.group_id, member_id)
        self.effects.append(SetTimer(key=key, deadline_ms=self.now.monotonic_ms + after_ms))

    def cancel_timer(self, kind: TimerKind, group: GroupMetadata, member_id: str = "") -> None:
        """Cancels a timer of the group, or of its member ``member_id``."""
        self.effects.append(CancelTimer(key=TimerKey(kind, group.group_id, member_id)))

    def append(
        self,
        records: Iterable[OffsetsRecord],
        then: Continuation,
        replay: bool,
        producer: TransactionProducer | None = None,
    ) -> None:
        """Appends ``records``, as part of a transaction of ``producer``, and continues with ``then``."""
        self.effects.append(Append(records=records, then=then, replay=replay, producer=producer))

    def append_marker(self, marker: MarkerToWrite, then: Continuation) -> None:
        """Appends the marker of a transaction; the state machine continues with ``then``."""
        self.effects.append(Append(records=(), then=then, replay=False, marker=marker))

    def change_state(self, group: GroupMetadata, event: int, reason: str) -> None:
        """Changes the group's state by an event of the table of transitions."""
        before = group.state
        group.transition(event, self.now.wall_ms)
        self.effects.append(
            StateChanged(
                group_id=group.group_id,
                before=before,
                after=group.state,
                generation=group.generation,
                members=len(group.members),
                reason=reason,
            )
        )
