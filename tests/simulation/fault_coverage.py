"""The required events of simulated seeds: a counter that stays zero shows an untested event."""

from __future__ import annotations

from collections.abc import Mapping

from change_phases import ALL_PHASES, REPLICATION_PHASES, TRANSACTION_PHASES
from simulated_compaction import COMPACTION_FAULTS
from simulated_faults import (
    CLUSTER_FAULTS,
    COORDINATOR_FAULTS,
    CUT_FROM_STORE,
    DISK_PUT_BACK,
    FAILING_STOP,
    FULL_DISK,
    LATE_STORE,
    LEADER_AHEAD,
    LEADER_AND_CONTROLLER,
    LOST_DISKS_OF_OTHERS,
    OTHERS_AWAY,
    REPLICATION_FAULTS,
)

SEEDS_MIN = 1000
"""Over so many seeds no counter may be zero."""
EVENTS = (
    *("truncation", "segment roll", "log emptied", "log start moved", "positions out of range"),
    *("batches acknowledged with acks=-1", "batches acknowledged with acks=1", "batches sent with acks=0"),
    *("record deletions", "retries acknowledged", "sequences refused", "syncs that dropped data"),
    *("last in-sync replicas that lost records", "partitions that may forget"),
    f"fault {FULL_DISK}",
    *("excuse lost", "excuse records-lost-before", "excuse new-leader"),
)
REPLICATION_EVENTS = (*EVENTS, "ISR requests rejected")
CLUSTER_EVENTS = (
    *EVENTS,
    *("controllers", "group generations", "commits acknowledged", "commits of old generations refused"),
    *("commits sent again in a later generation", "brokers unregistered"),
    *("members that stand still", "topics made: u", "topic deletion done", "move done", "election done"),
    "moves stopped or replaced",
    *("excuse needs-operator", "excuse former-coordinator"),
    *("cleanings done", "cleanings done while faults last", "cleanings ended by a change of the log"),
    *("records removed by cleanings", "tombstones removed", "cleaner processes killed"),
    *("processes that ended in a cleaning, before rename", "excuse compacted", "excuse tombstone-expired"),
    *("elections by an operator on duty", "replicas that all others have forgotten"),
    *("groups of segments cut while they were cleaned", "acks=1 of former leaders"),
    *(f"min.insync.replicas {how}" for how in ("raised", "lowered", "changed by its default")),
    *(f"min.insync.replicas {how} while a replica was out of sync" for how in ("raised", "lowered")),
    *("eligible replicas dropped by another min.insync.replicas", "excuse minimum-not-read"),
    *(f"fault {fault}" for fault in (CUT_FROM_STORE, LOST_DISKS_OF_OTHERS, DISK_PUT_BACK)),
    *(f"fault {fault}" for fault in (LATE_STORE, FAILING_STOP, LEADER_AND_CONTROLLER)),
    *("former disks put back", "clean stops", "stops while a sync hangs that fails"),
    *("sessions that ended with the removal of losses", "starts after power cuts on full disks"),
    *("responses to ISR requests lost", "controller nodes removed"),
    "min.insync.replicas written to the store by others",
)
TRANSACTION_EVENTS = (
    *(f"transactions ended by {how}" for how in ("commit", "abort")),
    *("transactions abandoned", "commits refused: PRODUCER_FENCED", "late batches answered"),
    *(f"transactional producers {what}" for what in ("begun", "fenced", "that stand still", "that went on")),
    *(f"transactional offsets {what}" for what in ("acknowledged", "found")),
    *(f"requests with markers {what}" for what in ("held", "lost")),
    *("responses to markers lost", "responses about partitions of transactions held"),
    *("markers that arrive late", "markers of former coordinators that arrive late"),
    "two-phase producers that end after they have prepared",
    *(f"transactions of former producers ended by {how}" for how in ("commit", "abort")),
    *("batches held by the network", "commits requested of aborted transactions"),
    *(f"late offsets: {error}" for error in ("NONE", "INVALID_TXN_STATE")),
    *(f"fault {fault}" for fault in (OTHERS_AWAY, LEADER_AHEAD)),
    *("cleanings done", "excuse records-lost-before", "excuse needs-operator", "excuse former-coordinator"),
)
REPLICATION, CLUSTER, TRANSACTIONS = "replication", "cluster", "transactions"
_EVENTS = {
    REPLICATION: REPLICATION_EVENTS,
    CLUSTER: CLUSTER_EVENTS,
    TRANSACTIONS: TRANSACTION_EVENTS,
}
_FAULTS = {
    REPLICATION: REPLICATION_FAULTS,
    CLUSTER: (*CLUSTER_FAULTS, *COMPACTION_FAULTS),
    TRANSACTIONS: (*CLUSTER_FAULTS, *COORDINATOR_FAULTS),
}
_PHASES = {REPLICATION: REPLICATION_PHASES, CLUSTER: ALL_PHASES, TRANSACTIONS: TRANSACTION_PHASES}


def required(kind: str) -> list[str]:
    """Returns the counters that seeds of a kind must raise: events, faults, each fault in each phase."""
    pairs = [f"{fault} during {phase}" for fault in _FAULTS[kind] for phase in _PHASES[kind]]
    return [*_EVENTS[kind], *(f"fault {fault}" for fault in _FAULTS[kind]), *pairs]


def missing(kind: str, counts: Mapping[str, int]) -> list[str]:
    """Returns the counters that are zero."""
    return [what for what in required(kind) if not counts.get(what)]
