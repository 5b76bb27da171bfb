"""Drives the group state machine from transcripts, with a manual clock and log.

A transcript has lines of events, each followed by its results (indented). :func:`run` executes the events and
compares the results with the transcript.

==========================================  ================================================================
event                                       meaning
==========================================  ================================================================
``wait 3000``                               advances the time by 3,000 ms; timers fire
``join A [id=] [static=] [...]``            A joins; ``protocols=range:s1/rr:s2``, ``session=``,
                                            ``rebalance=``, ``type=``, ``v=`` (JoinGroup version)
``sync A id=m1 gen=1 [assign=m1:x,m2:y]``   A requests its assignment; also ``static=``, ``type=``, ``proto=``
``beat id=m1 gen=1 [static=]``              a heartbeat
``leave A ids=m1,m2 [statics=i1,-]``        members leave
``commit A t-0=5 [t-1=7] [id= gen= ...]``   offsets are committed; ``meta=``, ``retention=``, ``v=``
``forget A t-0 t-1``                        offsets are deleted
``delete A``                                the group is deleted
``expire``                                  expired offsets are deleted
``manual``                                  from now on appends wait for ``store`` or ``fail ERROR``
``reload``                                  another coordinator loads the log
==========================================  ================================================================
"""

from __future__ import annotations

from typing import Any

from tidemill.coordinator_runtime.coordinator_effects import Append, CancelTimer, Now, Reply, SetTimer, Waiter
from tidemill.groups.coordinator_effects import (
    CommitRequest,
    CommitResult,
    DeleteGroupsResult,
    DeleteOffsetsResult,
    Effect,
    JoinRequest,
    JoinResult,
    LeaveResult,
    LeavingMember,
    MemberProtocol,
    OffsetToCommit,
    StateChanged,
    SyncRequest,
    SyncResult,
    TimerKey,
)
from tidemill.groups.group_coordinator_config import GroupCoordinatorConfig
from tidemill.groups.group_metadata_manager import GroupMetadataManager
from tidemill.groups.offset_records import GroupRecord, OffsetsRecord, decode_record
from tidemill.model.errors import ErrorCode
from tidemill.model.event_loop_slices import run_at_once
from tidemill.model.unpacked_limit import UNPACKED_BYTES_MAX

WALL_MS = 1_700_000_000_000
GROUP = "g"


class Bench:
    """A group state machine with a clock, a log and waiters."""

    def __init__(self, **config: int) -> None:
        self.config = GroupCoordinatorConfig(
            **{
                "initial_rebalance_delay_ms": 3_000,
                "unpacked_bytes_max": UNPACKED_BYTES_MAX,
                **config,
            }
        )
        self.state_machine = GroupMetadataManager(self.config)
        self.monotonic_ms = 0
        self.timers: dict[TimerKey, tuple[int, int]] = {}
        self.timers_set = 0
        self.log: list[tuple[bytes, bytes | None]] = []
        self.appends: list[Append] = []
        self.manual = False
        self.lines: list[str] = []
        self.ids = 0
        self.replies: dict[object, list[Any]] = {}

    @property
    def now(self) -> Now:
        return Now(monotonic_ms=self.monotonic_ms, wall_ms=WALL_MS + self.monotonic_ms)

    def run_effects(self) -> None:
        """Executes effects until there are none."""
        while self.state_machine.has_effects:
            for effect in self.state_machine.take_effects():
                self.perform(effect)

    def perform(self, effect: Effect) -> None:
        if isinstance(effect, Reply):
            self.replies.setdefault(effect.waiter, []).append(effect.response)
            self.lines.append(f"    {effect.waiter} {show(effect.response)}")
        elif isinstance(effect, SetTimer):
            self.timers_set += 1
            self.timers[effect.key] = (effect.deadline_ms, self.timers_set)
        elif isinstance(effect, CancelTimer):
            self.timers.pop(effect.key, None)
        elif isinstance(effect, Append):
            effect = effect.replace(records=tuple(effect.records))
            self.lines.extend(f"    log {show_record(record)}" for record in effect.records)
            self.appends.append(effect)
            if not self.manual:
                self.store()
        elif isinstance(effect, StateChanged):
            self.lines.append(f"    {effect.before.value} -> {effect.after.value}")

    def store(self) -> None:
        """Commits the oldest append."""
        append = self.appends.pop(0)
        for record in append.records:
            self.log.append((record.key_bytes(), record.value_bytes()))
            if append.replay:
                self.state_machine.replay(record, self.now)
        self.state_machine.appended(append.then, ErrorCode.NONE, self.now)
        self.run_effects()

    def fail(self, error: ErrorCode) -> None:
        """Fails the oldest append."""
        append = self.appends.pop(0)
        self.state_machine.appended(append.then, error, self.now)
        self.run_effects()

    def wait(self, duration_ms: int) -> None:
        """Advances the time; timers fire in order, each at its deadline."""
        end_ms = self.monotonic_ms + duration_ms
        while self.timers:
            key, (deadline_ms, _) = min(self.timers.items(), key=lambda item: item[1])
            if deadline_ms > end_ms:
                break
            del self.timers[key]
            self.monotonic_ms = max(self.monotonic_ms, deadline_ms)
            before = len(self.lines)
            self.state_machine.timer_fired(key, self.now)
            self.run_effects()
            if len(self.lines) > before:
                self.lines.insert(before, f"  at {self.monotonic_ms}")
        self.monotonic_ms = end_ms

    def reload(self) -> None:
        """Replaces the state by that of another coordinator that loads the log."""
        self.state_machine.unload(self.now)
        self.run_effects()
        self.timers.clear()
        self.appends.clear()
        self.state_machine = GroupMetadataManager(self.config)
        for key, value in self.log:
            record = decode_record(key, value)
            assert record is not None
            self.state_machine.replay(record, self.now)
        self.state_machine.take_effects()
        self.state_machine.loaded(self.now)
        self.run_effects()

    def join(self, waiter: str, **given: Any) -> None:
        self.ids += 1
        version = int(given.get("v", 3))
        timeout_ms = int(given.get("session", 10_000))
        protocols = [one.partition(":") for one in given.get("protocols", "range").split("/") if one]
        self.state_machine.join(
            JoinRequest(
                group_id=given.get("group", GROUP),
                member_id=given.get("id", ""),
                new_member_id=f"m{self.ids}",
                protocol_type=given.get("type", "consumer"),
                protocols=tuple(
                    MemberProtocol(name=name, metadata=metadata.encode()) for name, _, metadata in protocols
                ),
                session_timeout_ms=timeout_ms,
                rebalance_timeout_ms=int(given.get("rebalance", 60_000)),
                instance_id=given.get("static"),
                client_id="client",
                client_host="/127.0.0.1",
                requires_known_member_id=version >= 4,
                supports_skipping_assignment=version >= 9,
            ),
            Waiter(waiter),
            self.now,
        )

    def sync(self, waiter: str, **given: Any) -> None:
        pairs = [one.partition(":") for one in given.get("assign", "").split(",") if one]
        self.state_machine.sync(
            SyncRequest(
                group_id=GROUP,
                member_id=given["id"],
                generation=int(given["gen"]),
                instance_id=given.get("static"),
                protocol_type=given.get("type"),
                protocol_name=given.get("proto"),
                assignments=tuple((member_id, text.encode()) for member_id, _, text in pairs),
            ),
            Waiter(waiter),
            self.now,
        )

    def beat(self, **given: Any) -> None:
        error = self.state_machine.heartbeat(
            GROUP, given["id"], int(given["gen"]), given.get("static"), self.now
        )
        self.lines.append(f"    {error.name}")

    def leave(self, waiter: str, **given: Any) -> None:
        ids = given["ids"].split(",")
        statics = given.get("statics", ",".join("-" for _ in ids)).split(",")
        members = tuple(
            LeavingMember(member_id="" if one == "-" else one, instance_id=None if static == "-" else static)
            for one, static in zip(ids, statics, strict=True)
        )
        self.state_machine.leave(GROUP, members, Waiter(waiter), self.now)

    def commit(self, waiter: str, *words: str, **given: Any) -> None:
        offsets = []
        for word in words:
            name, _, offset = word.partition("=")
            topic, _, partition = name.rpartition("-")
            offsets.append(
                OffsetToCommit(
                    topic=topic, partition=int(partition), offset=int(offset), metadata=given.get("meta", "")
                )
            )
        self.state_machine.commit(
            CommitRequest(
                group_id=GROUP,
                offsets=tuple(offsets),
                generation=int(given.get("gen", -1)),
                member_id=given.get("id", ""),
                instance_id=given.get("static"),
                retention_ms=int(given.get("retention", -1)),
                reports_missing_group=int(given.get("v", 8)) >= 9,
            ),
            Waiter(waiter),
            self.now,
        )

    def read_subscriptions(self) -> None:
        """Decodes the subscriptions of all groups."""
        for group in self.state_machine.groups.values():
            run_at_once(group.read_subscriptions_in_slices())

    def forget(self, waiter: str, *words: str) -> None:
        names = [word.rpartition("-") for word in words]
        partitions = tuple((topic, int(partition)) for topic, _, partition in names)
        self.read_subscriptions()
        self.state_machine.delete_offsets(GROUP, partitions, Waiter(waiter), self.now)

    def play(self, line: str) -> None:
        """Executes one event of a transcript."""
        verb, *words = line.split()
        given = dict(word.split("=", 1) for word in words if "=" in word and not _is_offset(word))
        rest = [word for word in words if "=" not in word or _is_offset(word)]
        if verb == "wait":
            self.wait(int(rest[0]))
        elif verb == "manual":
            self.manual = True
        elif verb == "fail":
            self.fail(ErrorCode[rest[0]])
        elif verb == "delete":
            self.state_machine.delete_groups((GROUP,), Waiter(rest[0]), self.now)
        elif verb == "expire":
            self.read_subscriptions()
            self.state_machine.expire(list(self.state_machine.groups), self.now)
        else:
            getattr(self, verb)(*rest, **given)
        self.run_effects()


def _is_offset(word: str) -> bool:
    return "-" in word.partition("=")[0]


def run(transcript: str, **config: int) -> Bench:
    """Executes the events of ``transcript``. Raises AssertionError if the results differ."""
    expected = [line.rstrip() for line in transcript.strip("\n").splitlines()]
    indent = min(len(line) - len(line.lstrip()) for line in expected if line.strip())
    expected = [line[indent:] for line in expected if line.strip()]
    bench = Bench(**config)
    for line in expected:
        if not line.startswith(" "):
            bench.lines.append(line)
            bench.play(line)
    assert bench.lines == expected
    return bench


def show(response: Any) -> str:
    """A response in one line."""
    if isinstance(response, JoinResult):
        if response.error is not ErrorCode.NONE:
            return f"join {response.error.name} {response.member_id}".rstrip()
        members = ",".join(f"{one.member_id}:{one.metadata.decode()}".rstrip(":") for one in response.members)
        skip = " skip" if response.skip_assignment else ""
        return (
            f"joined {response.member_id} gen={response.generation} {response.protocol_name} "
            f"leader={response.leader} [{members}]{skip}"
        )
    if isinstance(response, SyncResult):
        if response.error is not ErrorCode.NONE:
            return f"sync {response.error.name}"
        return f"assigned {response.protocol_name} {response.assignment.decode()}".rstrip()
    if isinstance(response, LeaveResult):
        errors = [error.name for _, error in response.members]
        return " ".join(["left", response.error.name, *errors])
    if isinstance(response, CommitResult):
        return " ".join(["committed", *(error.name for error in response.errors)])
    if isinstance(response, DeleteOffsetsResult):
        return " ".join(["forgot", response.error.name, *(error.name for error in response.errors)])
    assert isinstance(response, DeleteGroupsResult)
    return " ".join(["deleted", *(error.name for error in response.errors)])


def show_record(record: OffsetsRecord) -> str:
    """A record in one line."""
    if isinstance(record, GroupRecord):
        if record.value is None:
            return "group gone"
        members = ",".join(
            f"{one.member_id}:{one.assignment.decode()}".rstrip(":") for one in record.value.members
        )
        return f"group gen={record.value.generation} leader={record.value.leader} [{members}]"
    name = f"{record.topic}-{record.partition}"
    return f"{name} gone" if record.value is None else f"{name}={record.value.offset}"
