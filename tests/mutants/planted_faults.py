"""The faults that ``make mutants`` plants, one at a time, and the rules that they break.

Each is one edit: ``old`` occurs exactly once in ``file`` (below ``src/tidemill``) and is replaced by ``new``.
A fault that the simulator cannot find has a ``reason``. A change of a quoted line needs a change of this
table: ``test_planted_faults.py`` fails otherwise.
"""

from __future__ import annotations

from typing import Final

from compaction_faults import COMPACTION
from loss_faults import LOSSES
from planting import Fault
from transaction_faults import TRANSACTIONS

LEADER: Final = (
    Fault(
        "min-insync-unchecked",
        "replication/partition.py",
        "        if acks == -1 and self.is_under_min_isr:\n",
        "        if False:\n",
        "The leader rejects a produce request with acks=all below min.insync.replicas.",
        reason="Below min.insync.replicas nothing is committed: the request waits until its timeout, and no"
        " promise is broken.",
        test="replication/test_partition_leader.py::test_acks_all_requires_min_insync_replicas",
    ),
    Fault(
        "acks-all-not-awaited",
        "replication/partition.py",
        "        return acks == -1 or (acks == 1 and self._flushing and self._flushed_end < end_offset)\n",
        "        return acks == 1 and self._flushing and self._flushed_end < end_offset\n",
        "A produce request with acks=all is acknowledged after all replicas of the ISR have the records.",
    ),
    Fault(
        "acks-1-before-flush",
        "replication/partition.py",
        "        return acks == -1 or (acks == 1 and self._flushing and self._flushed_end < end_offset)\n",
        "        return acks == -1\n",
        "With flush.messages a produce request with acks=1 is acknowledged after the leader has flushed the"
        " records.",
    ),
    Fault(
        "commit-without-followers",
        "replication/follower_replicas.py",
        "            if is_rejoining or broker in maximal_isr:\n",
        "            if False:\n",
        "The high watermark waits for all replicas of the ISR.",
    ),
    Fault(
        "commit-without-pending-members",
        "replication/follower_replicas.py",
        "            if is_rejoining or broker in maximal_isr:\n",
        "            if broker in self.isr_state.isr:\n",
        "The high watermark waits for the replicas that the leader has asked the controller to add to the"
        " ISR.",
    ),
    Fault(
        "isr-shrink-before-store",
        "replication/partition.py",
        "        self.isr_state.request(isr)\n        # The controller",
        "        self.isr_state.request(isr)\n"
        "        smaller = tuple([one for one in self.isr if one in isr])\n"
        "        self.isr_state.committed = type(self.isr_state.committed)(smaller, self.partition_epoch)\n"
        "        # The controller",
        "A replica leaves the ISR only after the store has the smaller ISR.",
        reason="Commits wait for the former ISR until the controller responds, so that it breaks a promise"
        " only after a rejection.",
        test="replication/test_partition_leader.py::"
        "test_commits_wait_for_a_follower_whose_removal_the_controller_rejects",
    ),
    Fault(
        "commit-alone-while-expanding",
        "replication/partition.py",
        "        self._update_alone()\n        self.events.isr_requested(",
        "        self.events.isr_requested(",
        "A leader that requests a larger ISR does not commit alone.",
    ),
    Fault(
        "join-one-behind-high-watermark",
        "replication/follower_replicas.py",
        "        return follower.end_offset >= high_watermark and follower.end_offset >= epoch_start\n",
        "        return follower.end_offset + 1 >= high_watermark\n",
        "A follower joins the ISR after it has all committed records.",
    ),
    Fault(
        "join-before-epoch-start",
        "replication/follower_replicas.py",
        "        return follower.end_offset >= high_watermark and follower.end_offset >= epoch_start\n",
        "        return follower.end_offset >= high_watermark\n",
        "A follower joins the ISR after it has all records that the leader had at the start of its epoch:"
        " they may be committed.",
    ),
    Fault(
        "fetch-of-former-process-accepted",
        "replication/follower_replicas.py",
        "        if follower is None or 0 <= epoch < follower.epoch:\n",
        "        if follower is None:\n",
        "A fetch of a former broker process is ignored.",
        reason="A fetch of the former process must arrive after a fetch of the next process, with a higher"
        " offset.",
        test="replication/test_follower_replicas.py::test_fetches_of_a_former_broker_epoch_are_ignored",
    ),
    Fault(
        "fetch-of-former-registration-accepted",
        "broker/fetch_admission_checks.py",
        "    if not admission.is_epoch_stale:\n",
        "    if True:\n",
        "A fetch is ignored if the leader has read a later registration of the follower.",
        reason="A fetch must arrive after the leader has read the next registration of its broker: this"
        " occurs in 4 of 300 seeds.",
        test="broker/test_registration_epochs.py::"
        "test_a_fetch_with_an_epoch_before_the_known_registration_is_refused",
    ),
    Fault(
        "recovery-before-brokers-are-read",
        "controller/controller_context.py",
        "                recovers=False,",
        "                recovers=True,",
        "After a write without a response the controller elects no leader by log end before it has read the"
        " live brokers.",
    ),
    Fault(
        "second-loss-keeps-partition-epoch",
        "controller/leader_election.py",
        "    is_fencing = any(broker in lost and broker not in partition.isr"
        " for broker in partition.replicas)\n",
        "    is_fencing = False\n",
        "A replica that reports a second loss does not join the ISR through an earlier request of its"
        " leader.",
        reason="The followers of the simulator send their broker epochs, so that fetches of the former"
        " process are rejected; followers that fetch with a version before 15 send none.",
        test="controller/test_controller_leader_election.py::"
        "test_a_pending_isr_request_is_rejected_after_a_repeated_loss",
    ),
    Fault(
        "recovered-replica-stays-offline",
        "controller/leader_election.py",
        "partition.offline | {broker} if is_offline else partition.offline - {broker}",
        "partition.offline | {broker} if is_offline else partition.offline",
        "A replica may join the ISR again after its broker has brought it online.",
        reason="A disk must reject a rename while a topic of the same name is created, and then have space"
        " again: this occurs in one of some thousand seeds.",
        test="controller/test_controller_faults.py::test_replica_reports_count_for_the_registration_of_their_broker",
    ),
    Fault(
        "reelected-controller-elects-stopping-broker",
        "controller/controller_context.py",
        "        stopping = self.stopping()\n        await",
        "        stopping: frozenset[int] = frozenset()\n        await",
        "A broker in controlled shutdown is not elected as leader after the same controller is elected"
        " again.",
        reason="A broker must stop while the controller loses its election and wins it again: this occurs in"
        " one of some thousand seeds.",
        test="controller/test_controller_faults.py::"
        "test_a_broker_in_controlled_shutdown_is_not_elected_under_the_next_controller_epoch",
    ),
    Fault(
        "former-registration-stays-in-isr",
        "controller/controller_context.py",
        "self._is_refresh_due or bool(renewed)",
        "False",
        "A broker whose new registration the controller has read is not in the ISR because of its former"
        " process.",
        reason="A broker must lose its disk between two writes, the first without a response: this occurs in"
        " one of some thousand seeds.",
        test="controller/test_controller_unanswered.py::"
        "test_a_former_registration_cannot_join_the_isr_after_a_later_one_was_read",
    ),
    Fault(
        "removed-last-leader-awaited",
        "controller/leader_election.py",
        " or last_known not in partition.replicas\n",
        "\n",
        "A partition does not wait for a last leader whose replica was reassigned: its log would be empty.",
        reason="A reassignment must be cancelled while its new replica is the only leader and an eligible"
        " replica is offline: this occurs in one of some thousand seeds.",
        test="controller/test_controller_reassignment.py::"
        "test_a_cancelled_reassignment_does_not_wait_for_a_removed_leader",
    ),
    Fault(
        "removed-follower-still-caught-up",
        "replication/follower_replicas.py",
        "                follower.forget()\n\n    def resume(",
        "                pass\n\n    def resume(",
        "A follower that the controller has removed from the ISR joins again only with a later fetch.",
    ),
    Fault(
        "demotion-leaves-produces-waiting",
        "replication/partition.py",
        "            self.replication = None\n            self.delayed.fail(self._not_leader_error())\n",
        "            self.replication = None\n",
        "Waiting produce requests fail when their leader is demoted: their records may be truncated.",
    ),
    Fault(
        "commit-before-flush",
        "replication/partition.py",
        "return self._flushed_end if self._flushing or self.log.needs_flush else self.log.end_offset\n",
        "return self.log.end_offset\n",
        "With flush.messages the leader counts its own log up to its flushed offset.",
    ),
    Fault(
        "commit-alone-before-flush",
        "replication/partition.py",
        "        if self._alone:\n            self._advance(self._own_end(), 0)\n",
        "        if self._alone:\n            self._advance(self.log.end_offset, 0)\n",
        "With flush.messages a leader that is alone in the ISR commits only flushed records.",
    ),
    Fault(
        "unflushed-at-kill-counts-as-flushed",
        "replication/partition.py",
        "        self._flushed_end: i64 = min(log.recovery_point, log.end_offset)\n",
        "        self._flushed_end: i64 = log.end_offset\n",
        "Records that a killed process had not flushed count only after a flush.",
    ),
    Fault(
        "unflushed-append-commits-alone",
        "replication/partition.py",
        "        if self.log.needs_flush:\n            self._unflushed_bytes += size\n",
        "        if self.log.needs_flush and not self._alone:\n            self._unflushed_bytes += size\n",
        "With flush.messages an append by a leader that is alone in the ISR is committed after its flush.",
    ),
    Fault(
        "end-returned-before-epoch-start-committed",
        "replication/partition.py",
        "        return self.is_leader and self.high_watermark < self.epoch_start\n",
        "        return False\n",
        "A new leader returns no end offset before its high watermark reaches the start of its epoch"
        " (KIP-207).",
    ),
    Fault(
        "new-leader-commits-its-log",
        "replication/partition.py",
        "            self.epoch_start = self.log.end_offset\n",
        "            self.epoch_start = self.high_watermark = self.log.end_offset\n",
        "The records of a new leader are committed after the ISR has them.",
    ),
    Fault(
        "high-watermark-is-log-end-at-start",
        "replication/replica_manager.py",
        "        known = max(self.logs.dirs.high_watermarks.get(key, 0), int(found.start_offset))\n",
        "        known = int(found.end_offset)\n",
        "At a start, records above the high watermark may be on no other replica.",
    ),
    Fault(
        "older-state-accepted",
        "replication/replica_manager.py",
        "        if (state.leader_epoch, state.partition_epoch) < known:\n",
        "        if False:\n",
        "A partition state that is older than the current state is ignored.",
    ),
    Fault(
        "leads-without-session",
        "replication/replica_manager.py",
        "            if len(partition.replicas) > 1:\n                self.stop_leading(partition)\n",
        "            continue\n",
        "A broker whose session has ended leads nothing: another broker may be elected.",
    ),
    Fault(
        "isolated-leader-accepts-writes",
        "server/store_outage.py",
        "            self._isolation.leave(self._clock.monotonic_ms() - int(session_s * 1000))\n",
        "            self._clock.monotonic_ms()\n",
        "A leader without a connection to the store and to the in-sync replicas rejects writes.",
    ),
    Fault(
        "deletion-mark-unchecked",
        "controller/admin_manager.py",
        "        mark = deletion_check if are_marked else deletion_mark\n",
        "        mark = (lambda topic: []) if are_marked else deletion_mark\n",
        "A deletion node in the store deletes the marked topic, and no later topic of the same name.",
        reason="It has no effect in 70 seeds: a topic must be deleted and recreated between the read of the"
        " deletion nodes and the deletion.",
        test="controller/test_controller_admin_node_requests.py::"
        "test_a_recreated_topic_survives_the_deletion_mark_of_its_predecessor",
    ),
    Fault(
        "follower-acts-as-leader",
        "replication/partition.py",
        "        if self.leader != self.node_id:\n            raise self._not_leader_error()\n",
        "",
        "Only the leader appends records of producers and serves fetches of followers.",
    ),
    Fault(
        "leader-epoch-unchecked",
        "replication/partition.py",
        "        if current_epoch >= 0 and current_epoch != self.leader_epoch:\n",
        "        if False:\n",
        "A fetch with another leader epoch than the current epoch is rejected.",
    ),
    Fault(
        "uncommitted-records-readable",
        "replication/read_limits.py",
        "        return self.high_watermark\n",
        "        return self.log.end_offset\n",
        "Consumers read up to the high watermark.",
    ),
    Fault(
        "leader-without-followers-leads-on",
        "replication/partition.py",
        "        return not replication.has_fetched_since(since_ms)\n",
        "        return False\n",
        "A leader that receives nothing from the store and from the in-sync followers stops leading.",
    ),
)

FOLLOWER: Final = (
    Fault(
        "never-truncates",
        "replication/replica_fetcher.py",
        "end = truncation_offset(partition, diverging.epoch, diverging.end_offset)\n",
        "end = partition.log.end_offset\n",
        "A follower truncates records that its leader does not have.",
    ),
    Fault(
        "future-log-not-truncated",
        "log/future_log_history.py",
        "    end = _common_end(copy, partition)\n",
        "    copy.truncate_to(partition.end_offset, now_ms)\n    return\n    end = -1\n",
        "Records that a partition has truncated do not return with its move to another directory.",
        reason="Brokers of the full cluster have one data directory; seeds of the replication cluster"
        " (`--kind replication`) find it.",
        test="log/test_log_future_log_history.py::test_truncated_records_do_not_reappear_when_a_move_resumes",
    ),
    Fault(
        "truncates-to-high-watermark",
        "replication/replica_fetcher.py",
        "        if partition.log.leader_epochs.latest == NO_LEADER_EPOCH:\n            # Compaction",
        "        if True:\n            # Compaction",
        "A follower keeps the records above its high watermark: they may be committed (KIP-101).",
    ),
    Fault(
        "diverges-within-unknown-epoch",
        "replication/replica_fetcher.py",
        "    if epoch == leader_epoch and leader_end < own_end:\n"
        "        return leader_end\n"
        "    # The leader has",
        "    return leader_end\n    # The leader has",
        "If the response of the leader has an epoch that the follower lacks, the follower truncates to the"
        " end of its own preceding epoch (KIP-279).",
    ),
    Fault(
        "response-of-former-epoch-accepted",
        "replication/replica_fetcher.py",
        "        and followed.leader_epoch == partition.leader_epoch\n",
        "",
        "The response to a fetch of a former leader epoch is ignored.",
        reason="It has no effect in 70 seeds: the fetcher removes and adds the partition with each new"
        " epoch, when no request of the new epoch is in flight.",
        test="replication/test_replica_fetcher.py::test_a_response_to_a_request_before_a_change_is_ignored",
    ),
    Fault(
        "response-for-other-offset-accepted",
        "replication/replica_fetcher.py",
        "        and followed.fetch_offset == partition.log.end_offset\n        and followed.leader_epoch",
        "        and followed.leader_epoch",
        "The response to a fetch is ignored if the log end offset is no longer the fetch offset.",
    ),
    Fault(
        "log-restarts-after-leaders-start",
        "replication/replica_fetcher.py",
        "partition.restart_at(first, ",
        "partition.restart_at(end, ",
        "A follower whose log ends before the log start offset of the leader restarts its log at that"
        " offset.",
    ),
    Fault(
        "own-compaction-gaps-kept",
        "replication/partition.py",
        "            or end < log.clean_end\n",
        "",
        "A follower whose compacted log is truncated below its cleaner checkpoint fetches the whole log"
        " again.",
        reason="It needs a recovery with a loss, a replica that had compacted beyond the log end of the new"
        " leader, a restart of this replica without its high watermark, and a reader of a key whose newer"
        " value was lost: one campaign of 3,800 seeds had the first two.",
        test="replication/test_recovered_compacted_logs.py"
        "::test_a_record_compacted_because_of_a_lost_record_is_fetched_again",
    ),
    Fault(
        "fetched-compaction-gaps-kept",
        "replication/partition.py",
        "            or (log.config.compact and end < self.high_watermark)\n",
        "",
        "A follower whose compacted log is truncated below its high watermark fetches the whole log again.",
        reason="As for own-compaction-gaps-kept, and the replica must have fetched records that another"
        " replica had compacted.",
        test="replication/test_recovered_compacted_logs.py"
        "::test_a_record_compacted_by_the_former_leader_is_fetched_again",
    ),
    Fault(
        "compacted-messages-without-epochs-truncated",
        "replication/replica_fetcher.py",
        "                max(partition.high_watermark, partition.log.clean_end),\n",
        "                partition.high_watermark,\n",
        "A follower without leader epochs keeps its compacted records: they are committed.",
        reason="It needs a log with messages of formats v0 and v1 only, and a high watermark that was not"
        " stored.",
        test="replication/test_recovered_compacted_logs.py"
        "::test_messages_without_leader_epochs_are_kept_up_to_the_cleaner_checkpoint",
    ),
    Fault(
        "retention-gaps-kept",
        "replication/partition.py",
        "            end < log.start_offset\n            or",
        "            False\n            or",
        "A follower whose log start offset is beyond the log end of its leader fetches the whole log again.",
        reason="It needs a recovery that loses all records that retention had left.",
        test="replication/test_recovered_compacted_logs.py"
        "::test_a_record_removed_by_retention_before_the_loss_is_fetched_again",
    ),
    Fault(
        "in-sync-replica-emptied",
        "replication/partition.py",
        "        if end >= log.end_offset or int(self.node_id) in self.isr:\n",
        "        if end >= log.end_offset:\n",
        "A replica of the ISR is not emptied for a complete fetch.",
        reason="No log is truncated below the high watermark while its replica is in the ISR; this is a"
        " second check.",
        test="replication/test_recovered_compacted_logs.py"
        "::test_an_in_sync_replica_keeps_its_committed_records",
    ),
    Fault(
        "cleaner-checkpoint-lost-by-move",
        "log/log_dir_move.py",
        "        future.clean_end = current.clean_end\n",
        "",
        "A log that moves to another directory keeps its cleaner checkpoint.",
        reason="As for own-compaction-gaps-kept; otherwise the log is compacted again from its start.",
        test="log/test_log_future_log_history.py::test_a_moved_log_keeps_its_cleaner_checkpoint",
    ),
    Fault(
        "first-batch-before-start-rejected",
        "log/log.py",
        "                if self.start_offset < self.end_offset or batch.last_offset < self.end_offset:\n",
        "                if True:\n",
        "An empty follower appends the batch that contains the log start offset of the leader.",
    ),
    Fault(
        "fetch-before-flush",
        "replication/replica_fetcher.py",
        "        if followed.partition.has_pending_sync:\n            self._delay(",
        "        if False:\n            self._delay(",
        "With flush.messages a follower sends its next fetch after its flush: the fetch reports its"
        " position.",
        reason="The next request omits partitions with a pending flush, so that the early fetch has no"
        " effect.",
        test="replication/test_replica_fetcher.py::test_a_follower_reports_only_synced_records",
    ),
    Fault(
        "batches-of-next-leader-accepted",
        "log/log.py",
        "            if leader_epoch != NO_LEADER_EPOCH:\n",
        "            if leader_epoch < -1:\n",
        "A follower appends no batch of a leader to which it did not send the fetch.",
        reason="It has no effect in 70 seeds: a leader must be deposed, truncate, and receive other records"
        " while pages of its file are in the network.",
        test="replication/test_late_answers.py"
        "::test_records_of_a_new_leader_are_not_appended_after_diverged_records",
    ),
    Fault(
        "append-before-truncation-flushed",
        "replication/partition.py",
        "        if self._truncation_unsynced:\n",
        "        if False:\n",
        "A leader appends nothing before the truncation that it made as a follower is on the disk.",
        reason="It has no effect in 60 seeds: the flush of a truncation ends before its broker is elected.",
        test="replication/test_partition_leader.py::"
        "test_a_new_leader_appends_nothing_before_its_truncation_is_synced",
    ),
    Fault(
        "retention-start-reported-before-checkpoint",
        "replication/replica_fetcher.py",
        "        self._delay_unsynced(now_ms)\n",
        "",
        "A follower reports a log start offset that retention has advanced after it is in the checkpoint.",
        reason="It has an effect if retention advances the log start offset between a response and the next"
        " fetch, which is rare.",
        test="replication/test_replica_fetcher.py::"
        "test_a_changed_log_start_offset_is_not_reported_before_it_is_stored",
    ),
    Fault(
        "follower-cannot-rejoin-single-leader",
        "replication/partition.py",
        "            and replication.is_rejoining(broker, self.log.end_offset, now_ms)\n",
        "            and False\n",
        "A leader that is alone in the ISR waits for a follower that was caught up.",
    ),
    Fault(
        "high-watermark-above-log-end",
        "replication/partition.py",
        "        self._advance(high_watermark if high_watermark < end else end, size)\n",
        "        self._advance(high_watermark, size)\n",
        "The high watermark of a follower is at most its log end offset.",
    ),
    Fault(
        "high-watermark-survives-truncation",
        "replication/partition.py",
        "            self.high_watermark = min(self.high_watermark, self.log.end_offset)\n",
        "",
        "A truncation lowers the high watermark to the log end offset.",
    ),
    Fault(
        "leaders-start-ignored",
        "replication/partition.py",
        "        if offset > self.log.start_offset:\n            self.advance_start(",
        "        if False:\n            self.advance_start(",
        "A follower advances its log start offset to that of the leader: deleted records do not return with"
        " a failover.",
    ),
    Fault(
        "truncation-not-flushed",
        "replication/partition.py",
        "            if self.log.truncations != truncations:\n                # Before",
        "            if False:\n                # Before",
        "A truncation is flushed: otherwise a power failure could leave truncated records among later"
        " records.",
    ),
    Fault(
        "unflushed-log-truncated-after-leading",
        "replication/replica_manager.py",
        "            self.unsynced_logs.pop(partition.log.topic_partition, None)\n",
        "            pass\n",
        "After a power failure a log is truncated to its flushed offset, unless its broker has led the"
        " partition since.",
    ),
    Fault(
        "unflushed-log-not-truncated",
        "replication/replica_manager.py",
        "        if key in self.unsynced_logs:\n",
        "        if False:\n",
        "After a power failure only the flushed part of a log counts.",
    ),
    Fault(
        "divergence-not-reported",
        "broker/fetch_reader.py",
        "        if requested.last_fetched_epoch >= 0:\n            data.diverging_epoch",
        "        if False:\n            data.diverging_epoch",
        "A leader reports to a follower the offset where its log diverges.",
    ),
    Fault(
        "diverging-fetch-accepted",
        "broker/fetch_reader.py",
        "        if partition is None or data.diverging_epoch is not None:\n            return\n",
        "        if partition is None:\n            return\n",
        "The fetch of a follower with a diverging log does not change its position.",
    ),
    Fault(
        "fetch-session-epoch-unchecked",
        "broker/fetch_session.py",
        "        if session.epoch != epoch:\n",
        "        if False:\n",
        "A fetch with another epoch than the next of its session is rejected.",
        reason="It has no effect in 70 seeds: fetches of a session use one connection and arrive in their"
        " order.",
        test="broker/test_fetch_session.py::test_a_fetch_with_the_wrong_session_epoch_is_refused",
    ),
)

LOG: Final = (
    Fault(
        "sequence-gap-accepted",
        "log/producer_state_manager.py",
        "        if first != expected and entry.epoch != NO_PRODUCER_EPOCH:\n",
        "        if False:\n",
        "The sequence number of a batch of an idempotent producer follows that of the batch before.",
    ),
    Fault(
        "duplicate-stored",
        "log/producer_state_manager.py",
        "            if kept.last_sequence == last and kept.offset_delta == delta:\n",
        "            if False:\n",
        "The response to a duplicate batch has the offset of the stored batch.",
    ),
    Fault(
        "sequences-of-former-leader-kept",
        "log/producer_state_manager.py",
        "            forget_from(self.batches, first_of(last_sequence, offset_delta))\n",
        "            pass\n",
        "If a leader has stored a batch as new that a former leader had, the producer continues after this"
        " batch.",
        reason="In the first 60 seeds no leader stores a batch as new that a former leader had: its log must"
        " start after that batch.",
        test="log/test_log_producers.py::test_a_batch_accepted_as_new_by_another_leader_is_a_duplicate_afterwards",
    ),
    Fault(
        "batch-after-rejected-batch-accepted",
        "broker/produce_handler.py",
        "            if self.rejected.rejections and isinstance(append, BatchAppend):\n",
        "            if False:\n",
        "A batch after a rejected batch is rejected.",
        reason="The sequence numbers keep the order: the producer gets another error, and its batches are"
        " stored later.",
        test="broker/test_rejected_batches.py::test_batches_behind_a_rejected_one_get_the_same_error",
    ),
    Fault(
        "producers-survive-truncation",
        "log/log.py",
        "            pending.now_ms,\n        )\n        self.producer_state = producers\n",
        "            pending.now_ms,\n        )\n        self.producer_state.end_offset = self.end_offset\n",
        "The producer state is read again after a truncation.",
    ),
    Fault(
        "followers-keep-no-producer-state",
        "log/log.py",
        "                self.producer_state.apply(batch, marker, batch.base_offset, batch.max_timestamp,"
        " now_ms)\n",
        "                pass\n",
        "Followers keep the producer state, so that they detect duplicates as leaders.",
    ),
    Fault(
        "epochs-survive-truncation",
        "log/log.py",
        "        self.note_offset_change()\n"
        "        self.leader_epochs.truncate_from_end(int(self.end_offset))\n",
        "        self.note_offset_change()\n",
        "A truncation also truncates the leader epochs.",
    ),
    Fault(
        "empty-epoch-kept",
        "log/log.py",
        "            self._forget_empty_epochs()\n            return False\n",
        "            return False\n",
        "A follower removes an epoch without records that it led.",
    ),
    Fault(
        "epoch-start-not-stored",
        "log/log.py",
        "        if leader_epoch != self._leader_epoch:\n"
        "            self.leader_epochs.assign(int(leader_epoch), int(self.end_offset))\n",
        "        str(leader_epoch)\n",
        "An epoch starts at the log end offset at the election of its leader.",
    ),
    Fault(
        "epochs-below-start-kept",
        "log/leader_epoch_file_cache.py",
        "            del self.epochs[:gone], self.starts[:gone]\n            self.starts[0] = first\n",
        "            del self.epochs[: gone + 1], self.starts[: gone + 1]\n",
        "The epoch that contains the log start offset is kept, and starts at this offset.",
    ),
    Fault(
        "emptied-log-loses-its-epoch",
        "log/leader_epoch_file_cache.py",
        "        first = max(offset - 1, 0)\n",
        "        first = offset\n",
        "The leader epoch of the last record is known after the record is deleted.",
    ),
    Fault(
        "new-replica-of-an-emptied-log-lacks-its-epoch",
        "log/log.py",
        "            self._begin_epoch(leader_epoch, self.start_offset - 1)\n",
        "            pass\n",
        "A replica that starts at the end of an emptied log receives the epoch of the last record from its"
        " leader.",
        reason="Its log must be compared with that of a replica that is far behind, after all others were"
        " lost and before the next write.",
        test="replication/test_replica_fetcher.py::"
        "test_a_new_follower_of_an_emptied_log_gets_the_epoch_of_the_last_record",
    ),
    Fault(
        "epochs-of-killed-process-not-flushed",
        "log/log_loader.py",
        "            log.durability.truncations += 1\n            self.leader_epochs.changes += 1\n",
        "            log.durability.truncations += 1\n",
        "A clean shutdown flushes the leader epochs that a killed process has written.",
        reason="After the kill the log must be emptied without a record of another epoch, and the broker"
        " must shut down before the power failure of its machine. Found once in 3,600 seeds.",
        test="log/test_log_last_epochs.py::test_the_last_epoch_survives_a_power_cut_after_a_clean_shutdown",
    ),
    Fault(
        "epoch-end-off-by-one-epoch",
        "log/leader_epoch_file_cache.py",
        "        return self.epochs[above - 1], self.starts[above]\n",
        "        return epoch, log_end\n",
        "An epoch ends at the start of the next epoch.",
    ),
    Fault(
        "straddling-batch-end",
        "log/log.py",
        "        self._set_end(offset if batch_offset < 0 or batch_offset > offset else batch_offset)\n",
        "        self._set_end(offset)\n",
        "A truncation to an offset within a batch removes the whole batch.",
        reason="In the first 60 seeds no log is truncated within a batch: leader epochs end between two"
        " batches, and replicas have the same batches.",
        test="log/test_log_append_read.py::test_a_log_truncated_within_a_batch_ends_at_the_start_of_the_batch",
    ),
    Fault(
        "recovery-point-survives-truncation",
        "log/durability.py",
        "        self.recovery_point = min(self.recovery_point, end_offset)\n",
        "",
        "Records that replace truncated records do not count as flushed.",
    ),
    Fault(
        "recovery-point-on-disk-survives-truncation",
        "replication/log_flusher.py",
        "                await self._checkpoints.write_overstated(one)\n",
        "",
        "A truncation is in the recovery point checkpoint before the next append.",
    ),
    Fault(
        "deletion-confirmed-before-checkpoint",
        "replication/checkpoint_writer.py",
        "            await self._run(await run_in_slices(taking))\n",
        "            await run_in_slices(taking)\n",
        "A deletion is confirmed after no checkpoint on the disk contains the replica.",
    ),
    Fault(
        "recovery-point-on-disk-survives-recovery",
        "log/log_manager.py",
        "        self._write_lowered_checkpoints()\n",
        "",
        "A truncation at the start is in the recovery point checkpoint before the next append.",
        reason="It needs two failures: one between a truncation and the write of the lowered checkpoint, and"
        " a power failure soon after the next start.",
        test="log/test_log_log_manager.py::test_a_truncation_at_startup_is_not_treated_as_synced_by_the_next_start",
    ),
    Fault(
        "flush-during-truncation-counts",
        "log/durability.py",
        "        if job.truncations != self.truncations:\n"
        "            return False  # The synced records may have been truncated and replaced.\n",
        "",
        "A flush that began before a truncation does not count for the log after the truncation.",
        reason="In the first 90 seeds no log is truncated between the begin and the end of a flush.",
        test="log/test_log_crash.py::test_records_that_replace_truncated_records_during_a_sync_are_synced",
    ),
    Fault(
        "recovery-point-before-flush",
        "log/durability.py",
        "        self._add_segments(job, whole)\n",
        "        self._add_segments(job, whole)\n"
        "        self.recovery_point = max(self.recovery_point, end)\n",
        "The recovery point advances after the flush.",
    ),
    Fault(
        "active-segment-not-flushed",
        "log/durability.py",
        "            elif whole and (segment.size > 0 or self.truncations > 0):\n"
        "                job.add(segment.file())\n",
        "            elif whole and (segment.size > 0 or self.truncations > 0):\n                pass\n",
        "A flush includes the active segment.",
    ),
    Fault(
        "closed-segment-not-flushed",
        "log/durability.py",
        "            if segment is not segments.active:\n                self._add_closed(job, at)\n",
        "            if segment is not segments.active:\n                job.add_path(segment.index.path)\n",
        "A flush includes the segments that were rolled since the last flush.",
    ),
    Fault(
        "directory-not-flushed",
        "log/durability.py",
        "                segments.names_changed != self.names_synced\n"
        "                or self.leader_epochs.is_unsynced\n"
        "                or self.id_changed != self.id_synced\n",
        "                False\n",
        "A flush includes the directory entries of new segments.",
    ),
    Fault(
        "topic-id-not-flushed",
        "log/durability.py",
        '            job.add_path(f"{segments.directory}/{PARTITION_METADATA}")\n',
        "            pass\n",
        "The first flush of a log includes its topic id: a recreated topic does not start with these"
        " records.",
        test="log/test_log_topics_anew.py::test_files_left_by_a_power_cut_are_attributed_to_their_topic",
        reason="It needs a deleted and recreated topic while a broker is offline after a power failure: this"
        " occurs in one of some thousand seeds.",
    ),
    Fault(
        "failed-flush-ignored",
        "log/flush_job.py",
        "            for file in self._open:\n                file.sync()\n",
        "            for file in self._open:\n"
        "                try:\n"
        "                    file.sync()\n"
        "                except OSError:\n"
        "                    pass\n",
        "Records do not count as flushed after a failed flush.",
    ),
    Fault(
        "failed-flush-repeated",
        "replication/log_flusher.py",
        "                if not is_transient(problem) and not isinstance(problem, DiskFull):\n",
        "                if False:\n",
        "After a failed flush the directory is taken offline: the next flush would succeed without the data.",
    ),
    Fault(
        "crash-treated-as-clean-shutdown",
        "log/log_directory_loader.py",
        "        remove_clean_shutdown(self.files, directory.file(CLEAN_SHUTDOWN), directory.path)\n",
        "",
        "A start removes the clean shutdown file, so that a later crash is an unclean shutdown.",
    ),
    Fault(
        "epoch-starts-after-compacted-batches",
        "log/log.py",
        "            self._begin_epoch(first.leader_epoch, begin)\n",
        "            self._begin_epoch(first.leader_epoch, first.base_offset)\n",
        "An epoch of a copied log starts at the log end offset before its first batch.",
    ),
    Fault(
        "earlier-epochs-not-restored",
        "log/log_loader.py",
        "        recover_earlier_epochs(self.leader_epochs, segments, start, end)\n",
        "",
        "Records that a crash restores have their leader epochs again.",
        reason="A power failure must restore segments that retention had removed, after the epochs were"
        " stored without those of the segments.",
        test="log/test_log_recovery.py::test_records_restored_by_a_crash_have_their_leader_epochs",
    ),
    Fault(
        "former-leader-keeps-records-before-start",
        "replication/partition.py",
        "        if log.start_offset < end <= leader_start:\n",
        "        if False:\n",
        "A former leader keeps no records before the log start offset of its leader.",
        reason="The log of the next leader must start after the log end of the former leader, which occurs"
        " in 6 of 300 seeds, and the former leader must have records there that no other replica has.",
        test="replication/test_replica_fetcher.py::test_a_former_leader_keeps_no_record_before_the_log_start_offset_of_its_leader",
    ),
    Fault(
        "follower-rejects-batch-around-leaders-start",
        "replication/partition.py",
        "            if self.log.start_offset < end <= start_offset:\n",
        "            if False:\n",
        "A follower whose records were all deleted appends a batch that contains the log start offset of the"
        " leader.",
        reason="Where it has an effect in the first 60 seeds, the batch starts at the log end of the"
        " follower and is appended without the rule: a follower that ends within a batch of its leader has"
        " other batches.",
        test="replication/test_replica_manager.py"
        "::test_an_emptied_follower_appends_a_batch_that_contains_the_leader_log_start_offset",
    ),
    Fault(
        "damaged-tail-kept",
        "log/log_loader.py",
        "            if walk.end is not WalkEnd.WHOLE:\n                self._truncate(",
        "            if False:\n                self._truncate(",
        "A recovery truncates the log at the first invalid batch.",
    ),
    Fault(
        "truncation-flushed-before-directory",
        "log/flush_job.py",
        "            if self.is_truncated:\n",
        "            if False:\n",
        "A power failure during the flush of a truncation does not restore the segments after the"
        " truncation.",
    ),
    Fault(
        "truncation-during-flush-before-directory",
        "log/log.py",
        "        if pending.gone and self.durability.is_flushing:\n",
        "        if False:\n",
        "A power failure after a truncation during a flush does not restore the segments after the"
        " truncation.",
        reason="In the first 90 seeds no whole segment is truncated during a flush of the log.",
        test="log/test_log_crash.py::test_a_power_cut_after_a_truncation_during_a_sync_leaves_no_gap",
    ),
    Fault(
        "truncated-segments-return",
        "log/log_loader.py",
        "            self.files.sync_directory(self.directory)\n",
        "            pass\n",
        "A power failure after a recovery does not restore the segments after a truncation.",
    ),
    Fault(
        "gap-after-a-loss",
        "log/log.py",
        "            self._append_empty(min(offset - self.end_offset, RELATIVE_OFFSET_MAX))\n",
        "            self.roll_over_gap(offset, now_ms)\n",
        "A new replica reaches the end of a log that continued after a loss.",
        reason="The simulator does not damage flushed data, so that no log continues after a loss.",
        test="replication/test_lost_records.py"
        "::test_a_new_replica_gets_in_sync_with_a_log_that_ends_in_a_gap",
    ),
    Fault(
        "gap-between-segments-kept",
        "log/log_loader.py",
        "            if walk.end is WalkEnd.WHOLE and self._is_end_missing(walk, limit, last):\n",
        "            if False:\n",
        "A recovery truncates the log where a segment ends before the start of the next segment.",
    ),
    Fault(
        "offsets-below-start-reused",
        "log/log_loader.py",
        "        if end < self.start_offset:\n",
        "        if False:\n",
        "Offsets before the log start offset are not assigned again after a loss.",
    ),
    Fault(
        "restarted-log-start-not-stored",
        "replication/partition.py",
        "which then names the file.\n                self.save_log_start_offset()\n",
        "which then names the file.\n",
        "A follower that restarts its log reports its log start offset after the offset survives a crash.",
    ),
    Fault(
        "damaged-log-not-reported",
        "log/log_directory_loader.py",
        "            self.all.damaged.add(place.key)\n",
        "            pass\n",
        "A log that lost records without a power failure is reported as lost.",
    ),
    Fault(
        "loss-not-stored-before-truncation",
        "log/log_loader.py",
        "                mark_loss(self.files, self.directory)\n",
        "                pass\n",
        "A start that ends before the controller has processed its loss report leaves the loss to the next"
        " start.",
    ),
    Fault(
        "failed-deletion-not-repeated",
        "log/log_manager.py",
        "        self.discard(log, now_ms)\n        self._forget(log)\n",
        "        self._forget(log)\n        self.discard(log, now_ms)\n",
        "A log whose directory was not renamed remains known until its deletion succeeds.",
    ),
    Fault(
        "directory-of-another-topic-reused",
        "log/log_manager.py",
        "            if ZERO_ID not in (found, topic_id):\n",
        "            if False:\n",
        "A directory of another topic id does not become a partition of a recreated topic.",
        reason="The simulator does not restore directories that the broker does not know.",
        test="log/test_log_topics_anew.py"
        "::test_a_recreated_topic_does_not_get_records_of_a_restored_directory",
    ),
    Fault(
        "log-start-not-stored",
        "log/log_directories.py",
        "        return None if log is None or log.start_offset <= 0 else int(log.start_offset)\n",
        "        return None\n",
        "A log start offset that differs from the file names is in the checkpoint.",
    ),
    Fault(
        "retention-beyond-high-watermark",
        "log/retention.py",
        "        if not gone or segment.end_offset > high_watermark:\n",
        "        if not gone:\n",
        "Retention removes only committed records.",
    ),
    Fault(
        "retention-by-size-removes-one-more",
        "log/retention.py",
        "        answers.append(excess >= 0)\n",
        "        answers.append(excess + segment.size_bytes > 0)\n",
        "Retention leaves at least retention.bytes.",
    ),
    Fault(
        "retention-by-time-too-early",
        "log/retention.py",
        "    return [now_ms - segment.last_ms > config.retention_ms for segment in segments]\n",
        "    return [now_ms - segment.last_ms > config.retention_ms // 4 for segment in segments]\n",
        "Retention removes a segment after its newest record is older than retention.ms.",
    ),
    Fault(
        "segment-boundary-missed",
        "log/segment_list.py",
        "            if self.all[middle].base_offset <= offset:\n",
        "            if self.all[middle].base_offset < offset:\n",
        "A segment contains the record at its base offset.",
    ),
    Fault(
        "power-failure-not-reported",
        "log/log_directory_loader.py",
        "        directory.may_have_lost = not directory.is_blank and not directory.clean and not is_same\n",
        "        directory.may_have_lost = False\n",
        "A broker reports after a power failure of its machine that it may have lost records.",
    ),
    Fault(
        "failed-flush-ignored-by-next-start",
        "log/log_directory_loader.py",
        "known == current and not is_distrusted\n",
        "known == current\n",
        "After a failed flush the next start treats the directory as after a power failure.",
        reason="The disk must reject the file that records the failed flush, in one of several directories:"
        " simulated brokers have one directory.",
        test="log/test_log_log_manager.py"
        "::test_the_next_start_does_not_trust_the_page_cache_after_a_failed_sync",
    ),
    Fault(
        "empty-disk-not-reported",
        "log/log_directory_loader.py",
        "        directory.is_blank = not was_used and not has_logs\n",
        "        directory.is_blank = False\n",
        "A broker with an empty disk reports the loss of its replicas.",
    ),
    Fault(
        "deletes-beyond-high-watermark",
        "broker/handlers/delete_records.py",
        "    if target < 0 or target > partition.high_watermark:\n",
        "    if target < 0 or target > partition.log.end_offset:\n",
        "DeleteRecords deletes up to the high watermark.",
        reason="Simulated administrators request no offset that no consumer has read.",
        test="broker/test_delete_records.py::test_uncommitted_records_are_not_deleted",
    ),
    Fault(
        "start-advanced-during-checkpoint-not-reported",
        "replication/partition.py",
        "            self.events.log_start_offset_moved(self)\n        else:\n",
        "            pass\n        else:\n",
        "If retention advances the log start offset during a checkpoint write, a follower writes the"
        " checkpoint again and continues.",
        reason="It has no effect in 300 seeds: retention must run between two writes of one checkpoint.",
        test="replication/test_replica_manager.py::"
        "test_a_follower_continues_when_retention_advances_its_start_during_an_update",
    ),
    Fault(
        "start-reported-before-checkpoint",
        "replication/partition.py",
        "        return self._flushing or self._start_unsaved\n",
        "        return self._flushing\n",
        "A follower reports a new log start offset to its leader after it is in the checkpoint.",
    ),
    Fault(
        "start-reported-with-full-disk",
        "replication/log_start_checkpoint.py",
        "                if await self._checkpoints.write_log_starts_in([directory]):\n",
        "                if await self._checkpoints.write_log_starts_in([directory]) and False:\n",
        "A follower with a full disk reports a new log start offset after it has space to write the"
        " checkpoint.",
    ),
    Fault(
        "deletion-below-min-insync-acknowledged",
        "replication/partition.py",
        "        if self.delayed.delete_records and self.commit_error() is None:\n",
        "        if self.delayed.delete_records:\n",
        "DeleteRecords is acknowledged after min.insync.replicas replicas are in sync: eligible replicas"
        " lack the deletion.",
        reason="A deletion waits for in-sync replicas even while they are not known to be alive. The ISR"
        " must be below its minimum, and an eligible replica that has not fetched the deletion must lead"
        " later.",
        test="broker/test_delete_records.py::test_a_deletion_below_min_insync_replicas_is_not_acknowledged",
    ),
    Fault(
        "retention-leaves-files",
        "log/log.py",
        "                self.segment_list.remove_files([self.segment_list.all[gone]], now_ms)\n"
        "                gone += 1\n",
        "                gone += 1\n",
        "The files of segments that retention removes leave the disk.",
    ),
    Fault(
        "deletion-acknowledged-before-checkpoint",
        "broker/handlers/delete_records.py",
        "        if error is None and problems:\n",
        "        if error is None and not problems and problems:\n",
        "DeleteRecords is acknowledged after the leader has written the log start offset to the checkpoint.",
    ),
)

CONTROLLER: Final = (
    Fault(
        "unfenced-controller-write",
        "controller/controller_context.py",
        "            await self.store.transact([self.election.fence(), *operations])\n",
        "            await self.store.transact(list(operations))\n",
        "A replaced controller writes nothing.",
    ),
    Fault(
        "controller-epoch-not-incremented",
        "controller/controller_election.py",
        "        epoch = ControllerEpochNode.decode(node.data) + 1 if node is not None else 1\n",
        "        epoch = ControllerEpochNode.decode(node.data) if node is not None else 1\n",
        "Each controller has its own epoch.",
    ),
    Fault(
        "failed-write-not-read-again",
        "controller/controller_context.py",
        "            # The store may have committed a cancelled write.\n            self._is_stale = True\n",
        "            # The store may have committed a cancelled write.\n",
        "After a write without a response the controller reads the store again.",
    ),
    Fault(
        "unclean-election-always",
        "controller/leader_election.py",
        "    return available if (policy.unclean or is_unrecoverable) and not is_reporting else []\n",
        "    return [] if is_reporting else available\n",
        "A replica outside the ISR leads only with unclean.leader.election.enable.",
    ),
    Fault(
        "replica-with-loss-stays-in-isr",
        "controller/leader_election.py",
        "    isr = [broker for broker in partition.isr if broker in living and broker not in lost]\n",
        "    isr = [broker for broker in partition.isr if broker in living]\n",
        "A replica that reports a loss leaves the ISR.",
    ),
    Fault(
        "loss-processed-again-after-recovery",
        "controller/leader_election.py",
        "    is_reporting = any(not image.brokers[broker].lost.is_none for broker in readable)\n",
        "    is_reporting = False\n",
        "A broker is not elected by its log end while its registration reports a loss: the loss would be"
        " processed again.",
    ),
    Fault(
        "outdated-directory-not-reported",
        "server/directory_starts.py",
        "                    directory.is_outdated = known is None or number < known\n",
        "                    directory.is_outdated = False\n",
        "The replicas of a data directory that the last start did not use are reported as lost.",
    ),
    Fault(
        "log-end-from-before-restart",
        "controller/unclean_recovery.py",
        "            if broker in image.brokers and image.brokers[broker].epoch != epoch\n",
        "            if broker not in image.brokers\n",
        "A log end is valid for the broker registration under which it was requested.",
        reason="After a restart of a broker the controller requests all log ends again: an old response can"
        " occur only in the last round of an election by an operator, with a restart in each round.",
        test="controller/test_controller_unclean_recovery.py"
        "::test_a_requested_unclean_election_ignores_log_ends_from_before_a_restart",
    ),
    Fault(
        "new-leader-in-old-epoch",
        "controller/leader_election.py",
        "    is_new_epoch = leader != partition.leader\n",
        "    is_new_epoch = False\n",
        "Each leader has its own epoch.",
    ),
    Fault(
        "offline-replica-elected",
        "controller/leader_election.py",
        "if broker in image.brokers and broker not in partition.offline\n",
        "if broker in image.brokers\n",
        "A replica with a failed disk does not lead.",
    ),
    Fault(
        "replica-stays-offline",
        "controller/leader_election.py",
        "            p if returned.isdisjoint(p.offline) else p.with_offline(p.offline - returned)\n",
        "            p\n",
        "A replica is offline until its broker registers again.",
        reason="After the registration, the response to LeaderAndIsr reports the replica as served, which"
        " ends its offline state as well.",
        test="controller/test_controller_leader_election.py::"
        "test_an_offline_replica_is_not_elected_until_its_broker_registers_again",
    ),
    Fault(
        "preferred-leader-outside-isr",
        "controller/preferred_leader_election.py",
        "    return preferred in partition.isr and is_available(image, partition, preferred, stopping)\n",
        "    return is_available(image, partition, preferred, stopping)\n",
        "The preferred replica becomes the leader if it is in the ISR.",
    ),
    Fault(
        "successor-outside-isr",
        "controller/controlled_shutdown_leader_election.py",
        "    leader = next((member for member in partition.replicas if member in isr), None)\n",
        "    leader = next(\n"
        "        (one for one in partition.replicas if one in image.brokers and one not in stopping), None\n"
        "    )\n",
        "The leader that replaces a stopping broker is in the ISR.",
    ),
    Fault(
        "isr-of-former-epoch-written",
        "controller/alter_partition.py",
        'leader epoch",\n        change.leader_epoch,\n',
        'leader epoch",\n        partition.leader_epoch,\n',
        "A leader of a former epoch does not change the ISR.",
        reason="The check is redundant except for its error: the partition epoch grows with each leader"
        " epoch, and its check rejects every other ISR as well.",
        test="controller/test_controller_alter_partition.py::test_an_invalid_isr_is_rejected",
    ),
    Fault(
        "isr-over-unknown-state",
        "controller/alter_partition.py",
        '    _check_epoch(\n        f"partition {number}: partition epoch",\n'
        "        change.partition_epoch,\n        partition.partition_epoch,\n"
        "        ErrorCode.INVALID_UPDATE_VERSION,\n    )\n",
        "",
        "A new ISR is written only over the state that the leader knows.",
    ),
    Fault(
        "member-epoch-unchecked",
        "controller/alter_partition.py",
        "    if epoch not in (ANY_EPOCH, registered.epoch):\n",
        "    if False:\n",
        "A replica of the ISR that has restarted since must fetch first (KIP-903).",
    ),
    Fault(
        "member-epochs-not-sent",
        "broker/alter_partition_manager.py",
        "            else int(replication.epoch_of(broker)),\n",
        "            else -1,\n",
        "A leader sends the broker epochs with which the replicas of the ISR fetched.",
    ),
    Fault(
        "dead-member-accepted",
        "controller/alter_partition.py",
        '        return "is not live, and cannot be in sync"\n',
        '        return ""\n',
        "A broker that is not alive does not join the ISR.",
    ),
    Fault(
        "member-with-loss-accepted",
        "controller/alter_partition.py",
        "    if registered.lost.is_lost(topic, partition.partition):\n",
        "    if False:\n",
        "A broker that has not processed its loss does not join the ISR.",
    ),
    Fault(
        "older-epochs-kept-after-power-failure",
        "log/log_loader.py",
        "        if self.lost_unsynced:\n            # A power failure may have restored",
        "        if False:\n            # A power failure may have restored",
        "After a power failure the leader epochs of unflushed records are read from the batches.",
        reason="A log must be truncated and follow an earlier leader, and two power failures must leave the"
        " batches without the epochs: this occurs in one of some thousand seeds.",
        test="log/test_log_recovery.py::test_after_a_power_cut_the_leader_epochs_are_those_of_the_batches",
    ),
    Fault(
        "deleted-topic-treated-as-rejection",
        "broker/alter_partition_manager.py",
        '            logger.info("%s-%d: %s", one.partition.topic, one.partition.index, result)\n',
        "            if result.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:\n"
        "                partitions.isr_refused(one.partition)\n                return\n",
        "An ISR request for a topic that was deleted since may have been written: the leader waits for its"
        " replicas.",
        reason="The response must be lost, and the topic deleted before the next request: this occurs in one"
        " of some thousand seeds.",
        test="broker/test_alter_partition_manager.py::test_a_change_that_may_have_been_written_is_sent_again",
    ),
    Fault(
        "lost-response-treated-as-rejection",
        "broker/alter_partition_manager.py",
        "            if result.code not in REJECTIONS:\n",
        "            if False:\n",
        "An ISR request without a response may have been written: until its result is known, the leader"
        " waits for its replicas.",
    ),
    Fault(
        "unread-losses-elected-for-failed-disk",
        "controller/failover.py",
        "        await self.refresh_brokers()\n        # If it has registered again",
        "        # If it has registered again",
        "The controller reads the losses in the registrations before it replaces a leader with a failed"
        " disk.",
    ),
    Fault(
        "failed-before-restart",
        "controller/failover.py",
        "return registered_epoch(self._context.image.brokers, broker_id) == known",
        "return True",
        "A disk failure of a former broker process has no effect after its restart.",
        reason="The report must be processed between the next registration of the broker and its first read.",
        test="controller/test_controller_faults.py"
        "::test_replica_reports_count_for_the_registration_of_their_broker",
    ),
    Fault(
        "unread-losses-elected-at-shutdown",
        "controller/leader_election_requests.py",
        "            await context.parts.refresh_brokers()\n            check_stopping",
        "            check_stopping",
        "The controller reads the losses in the registrations before it replaces the leaders of a stopping"
        " broker.",
    ),
    Fault(
        "registered-broker-stays-dead",
        "controller/failover.py",
        "            if broker in registered and registered[broker].epoch == epoch\n",
        "            if broker in registered\n",
        "A broker that was dead and has registered again is alive.",
    ),
    Fault(
        "reassignment-ends-early",
        "controller/reassignment.py",
        "    if not set(target) <= set(partition.isr):\n",
        "    if not set(target) & set(partition.isr):\n",
        "A reassignment completes, and removes the old replicas, after all new replicas are in sync.",
    ),
    Fault(
        "removed-leader-stays",
        "controller/reassignment.py",
        "    leader = _leader(image, partition, partition.leader, target, isr, stopping)\n"
        "    if leader == NO_BROKER:\n",
        "    leader = partition.leader\n    if leader == NO_BROKER:\n",
        "A leader that is reassigned stops leading.",
    ),
    Fault(
        "reassignment-ends-in-old-epoch",
        "controller/reassignment.py",
        "    return next_state(arrived, leader, isr, policy, is_new_epoch=True)\n",
        "    return next_state(arrived, leader, isr, policy, is_new_epoch=False)\n",
        "The completion of a reassignment increments the leader epoch, so that every replica reads the"
        " change.",
    ),
    Fault(
        "producer-ids-assigned-twice",
        "controller/producer_id_blocks.py",
        "            await store.transact([SetData(PRODUCER_ID_BLOCK, data, node.version)])\n",
        "            await store.transact([SetData(PRODUCER_ID_BLOCK, data)])\n",
        "A block of producer ids is assigned to one broker.",
    ),
    Fault(
        "deletion-ends-with-first-broker",
        "controller/admin_manager.py",
        "            if self._deletions.confirmed(name, broker_id):\n                done.append(topic)\n",
        "            self._deletions.confirmed(name, broker_id)\n            done.append(topic)\n",
        "The nodes of a deleted topic are removed after every broker has removed its replicas.",
    ),
)

ELECTIONS: Final = (
    Fault(
        "commit-below-min-insync",
        "replication/partition.py",
        "        if replication is None or self.is_under_min_isr:\n",
        "        if replication is None:\n",
        "Below min.insync.replicas the high watermark does not advance: an eligible leader replica would"
        " lack records that consumers have read.",
    ),
    Fault(
        "commit-alone-below-min-insync",
        "replication/partition.py",
        "            and len(self.isr) == 1\n            and not self.is_under_min_isr\n",
        "            and len(self.isr) == 1\n",
        "With min.insync.replicas=2 a leader that is alone in the ISR commits nothing.",
    ),
    Fault(
        "more-replicas-required-than-exist",
        "replication/partition.py",
        "effective_min_isr(int(self.min_insync_replicas), replicas, adding)\n",
        "self.min_insync_replicas\n",
        "A commit requires all replicas if there are fewer than min.insync.replicas.",
    ),
    Fault(
        "adding-replicas-count-for-min-insync",
        "coordination/topic_image.py",
        "        return effective_min_isr(min_insync_replicas, len(self.replicas), len(self.adding))\n",
        "        return effective_min_isr(min_insync_replicas, len(self.replicas), 0)\n",
        "Controller and leaders compute the required replicas without the adding replicas of a reassignment.",
    ),
    Fault(
        "eligible-replicas-dropped",
        "controller/leader_election.py",
        "        if broker in complete and broker not in isr and",
        "        if broker in partition.isr and broker not in isr and",
        "A replica stays eligible while further replicas leave the ISR.",
    ),
    Fault(
        "no-replica-eligible",
        "controller/leader_election.py",
        "    if len(isr) >= partition.effective_min_isr(policy.min_insync_replicas):\n        return []\n",
        "    return []\n",
        "An ISR shrink keeps ISR and ELR together at min.insync.replicas or above.",
    ),
    Fault(
        "eligible-above-min-insync",
        "controller/leader_election.py",
        "    if len(isr) >= partition.effective_min_isr(policy.min_insync_replicas):\n",
        "    if False:\n",
        "A replica that leaves the ISR is not eligible if the remaining replicas are enough for commits.",
    ),
    Fault(
        "eligible-after-min-insync-change",
        "controller/admin_manager.py",
        "        emptied = self._elr_changes(plan)\n",
        "        emptied: list[Plan] = []\n",
        "A change of min.insync.replicas removes the eligible leader replicas.",
    ),
    Fault(
        "eligible-after-default-min-insync-change",
        "controller/admin_manager.py",
        "        if plan.broker == DEFAULT_ENTITY:\n            return plan_default",
        "        if False:\n            return plan_default",
        "A change of the default of min.insync.replicas removes the eligible leader replicas of topics"
        " without their own value.",
    ),
    Fault(
        "leader-keeps-old-min-insync",
        "replication/hosted_topics.py",
        "        partition.set_min_insync_replicas(self._config.min_insync_replicas, now_ms)\n",
        "",
        "A leader uses a changed min.insync.replicas as soon as it has read it.",
    ),
    Fault(
        "leader-keeps-old-default-min-insync",
        "broker/dynamic_broker_config.py",
        "        if not changed:\n            return\n        time_slice",
        "        if True:\n            return\n        time_slice",
        "A leader uses the default of min.insync.replicas for a topic without its own value.",
        reason="It needs a change of the default while a topic without its own value has a leader.",
        test="server/test_server_election_settings.py"
        "::test_a_leader_applies_the_changed_min_insync_replicas_of_the_cluster",
    ),
    Fault(
        "controller-keeps-old-default-min-insync",
        "controller/election_settings.py",
        "        if known is None or known.config is not config or known.settings != image.broker_configs:\n",
        "        if known is None:\n",
        "The controller keeps the eligible leader replicas by the current default of min.insync.replicas.",
    ),
    Fault(
        "replica-with-loss-stays-eligible",
        "controller/leader_election.py",
        "and broker not in isr and broker not in lost\n",
        "and broker not in isr\n",
        "A replica that reports a loss is no longer eligible.",
    ),
    Fault(
        "eligible-replica-with-loss-elected",
        "controller/leader_election.py",
        "        complete = set(complete_replicas(partition, policy)).difference(lost)\n",
        "        complete = set(complete_replicas(partition, policy))\n",
        "The controller processes a loss before it elects a leader.",
    ),
    Fault(
        "eligible-stay-after-recovery",
        "controller/leader_election.py",
        "partition_epoch=partition.partition_epoch + 1, elr=[]\n        )\n",
        "partition_epoch=partition.partition_epoch + 1\n        )\n",
        "After the recovery of a partition other replicas do not stay eligible.",
    ),
    Fault(
        "shorter-log-recovered",
        "controller/leader_election.py",
        "    return max(known, key=lambda broker: ends[broker], default=NO_BROKER) if ends else NO_BROKER\n",
        "    return min(known, key=lambda broker: ends[broker], default=NO_BROKER) if ends else NO_BROKER\n",
        "Of the replicas that may lack records, the one with the highest last epoch leads, and among these"
        " the one with the longest log.",
    ),
    Fault(
        "log-end-of-leader-epoch",
        "broker/handlers/list_offsets.py",
        "        epoch = partition.log.leader_epochs.latest\n",
        "        epoch = partition.leader_epoch\n",
        "A replica reports the epoch of its last record, not the current leader epoch.",
    ),
    Fault(
        "recovery-before-all-losses",
        "controller/leader_election.py",
        "partition.last_known_leader in available or "
        "set(partition.replicas) <= set(partition.lost_replicas)\n",
        "True\n",
        "A partition without eligible replicas waits for its last leader, or until all replicas have"
        " reported a loss.",
    ),
    Fault(
        "empty-last-leader-elected",
        "controller/leader_election.py",
        "is_gone = last_known in missing",
        "is_gone = False",
        "A partition does not wait for a last leader whose log is lost.",
    ),
    Fault(
        "losses-not-accumulated",
        "controller/leader_election.py",
        "{*lost, *partition.lost_replicas}.difference(isr)",
        "{*lost}.difference(isr)",
        "Losses that replicas report one after another accumulate, so that a partition recovers.",
    ),
    Fault(
        "losses-not-stored",
        "coordination/cluster_image.py",
        "        tuple(partition.lost_replicas),\n",
        "",
        "The state in the store contains the replicas that have reported a loss.",
    ),
    Fault(
        "eligible-not-stored",
        "coordination/cluster_image_loader.py",
        "        elr=state.elr,\n",
        "",
        "A new controller reads the eligible leader replicas.",
    ),
    Fault(
        "last-leader-not-stored",
        "coordination/cluster_image_loader.py",
        "        last_known_leader=state.last_known_leader,\n",
        "",
        "A new controller reads the last known leader.",
    ),
    Fault(
        "losses-ignored-by-new-controller",
        "controller/controller_context.py",
        "plan_topic_elections(before, losses, self",
        "plan_topic_elections(before, {}, self",
        "A new controller processes the registered losses.",
    ),
    Fault(
        "unflushed-committed-after-disk-failure",
        "replication/partition.py",
        "        end = self._own_end()\n        if self._alone and self.high_watermark < end:\n",
        "        end = self._flushed_end if self._flushing else self.log.end_offset\n"
        "        if self._alone and self.high_watermark < end:\n",
        "A leader that is alone in the ISR commits no unflushed records if its disk fails during a flush.",
        reason="A flush must succeed just after the failure of the disk of the only in-sync replica.",
        test="replication/test_partition_leader.py"
        "::test_a_leader_with_a_failed_disk_commits_nothing_after_its_last_sync",
    ),
    Fault(
        "newly-registered-broker-not-awaited",
        "controller/admin_manager.py",
        "[*_absence_check(broker_id), operation]",
        "[operation]",
        "The deletion of a topic waits for a broker that registers during its unregistration.",
        reason="A broker must register in the milliseconds between the read and the write of the controller.",
        test="controller/test_controller_topic_deletion.py"
        "::test_a_deletion_waits_for_a_broker_that_registers_while_it_is_unregistered",
    ),
    Fault(
        "policy-change-keeps-eligible",
        "controller/admin_manager.py",
        "        emptied = self._elr_changes(plan)\n",
        "        emptied: list[Plan] = []\n",
        "The write that changes min.insync.replicas also removes the eligible leader replicas.",
    ),
    Fault(
        "concurrent-minimum-overwritten",
        "controller/admin_manager.py",
        "                Check(path, node.version) for path, node in zip(paths, nodes, strict=True)"
        " if node is not None\n",
        "                Check(path) for path, node in zip(paths, nodes, strict=True) if node is not None\n",
        "A change of settings does not overwrite a concurrent write of min.insync.replicas.",
        reason="Another program must write it in the milliseconds between the read and the write of the"
        " controller, while replicas are eligible. Found once in 3,500 seeds.",
        test="controller/test_controller_stored_min_insync_replicas.py::"
        "test_a_lower_minimum_written_after_the_check_is_applied",
    ),
    Fault(
        "min-insync-set-after-leading",
        "replication/replica_manager.py",
        "            settings.apply(partition, self.clock.monotonic_ms())\n"
        "            self._apply_newer_state(partition, state)\n",
        "            self._apply_newer_state(partition, state)\n"
        "            settings.apply(partition, self.clock.monotonic_ms())\n",
        "A partition knows min.insync.replicas before it leads.",
        reason="With its first request after a start, a broker must become the only in-sync replica below"
        " the minimum, with uncommitted records.",
        test="replication/test_replica_manager.py"
        "::test_a_new_leader_applies_min_insync_replicas_before_it_commits",
    ),
    Fault(
        "missing-log-not-reported",
        "server/lost_replica_detection.py",
        "    if found is None:\n        return True\n",
        "    if found is None:\n        return False\n",
        "A replica whose log is in no directory is reported as lost.",
    ),
    Fault(
        "loss-cleared-before-processed",
        "server/broker_lifecycle.py",
        "                await self.applier.first_change_applied.wait()\n        except TimeoutError:\n",
        "                pass\n        except TimeoutError:\n",
        "A loss stays in the registration until a controller has sent the broker its leaderships.",
    ),
)

BROKER: Final = (
    Fault(
        "request-of-old-controller-accepted",
        "broker/controller_request_handler.py",
        "        if request.controller_epoch < self._applier.controller_epoch:\n"
        "            logger.warning(\n"
        '                "a request of broker',
        '        if False:\n            logger.warning(\n                "a request of broker',
        "Requests of a replaced controller are rejected.",
    ),
    Fault(
        "request-for-former-process-accepted",
        "broker/controller_request_handler.py",
        "        if -1 < request.broker_epoch < self._applier.broker_epoch:\n",
        "        if False:\n",
        "A request for the former process of a broker is rejected.",
    ),
    Fault(
        "request-over-old-connection-accepted",
        "broker/controller_request_handler.py",
        "        if UNKNOWN_CONNECTION < connection < self._newest_connection:\n",
        "        if False:\n",
        "Requests over a connection that the controller has replaced are rejected.",
        reason="It has no effect in 300 seeds: nothing arrives over a simulated connection after its end.",
        test="broker/test_controller_requests.py::test_a_late_request_over_a_replaced_connection_is_refused",
    ),
    Fault(
        "late-stop-accepted",
        "broker/controller_request_handler.py",
        "        if known is not None and -1 < state.leader_epoch < known.leader_epoch:\n",
        "        if False:\n",
        "The late StopReplica of a reassignment does not remove a replica that was assigned again.",
        reason="It has no effect in 300 seeds: no partition returns to a broker during the lifetime of a"
        " request.",
        test="broker/test_controller_requests.py::"
        "test_a_late_stop_does_not_remove_a_replica_that_is_assigned_again",
    ),
    Fault(
        "lost-request-not-repeated",
        "broker/controller_channel_manager.py",
        "            newer, self._pending = self._pending, batch\n            self._pending.add(newer)\n",
        "",
        "A controller sends a request without a response again.",
    ),
    Fault(
        "unassigned-leader-leads-on",
        "replication/replica_manager.py",
        "            if key in assigned:\n",
        "            if True:\n",
        "A broker stops leading partitions that a full LeaderAndIsr does not assign to it.",
    ),
    Fault(
        "leader-of-former-epoch-leads-on",
        "broker/controller_request_handler.py",
        "                if one.leader_epoch > known.leader_epoch:\n",
        "                if False:\n",
        "A broker stops leading partitions that have another leader in a full LeaderAndIsr.",
        reason="It has no effect in 300 seeds: the request for the partition arrives before.",
        test="broker/test_zombie_leaders.py::"
        "test_a_leader_stops_when_metadata_has_another_leader_in_a_later_epoch",
    ),
    Fault(
        "fenced-leader-leads-on",
        "broker/alter_partition_manager.py",
        "        elif result.code in FENCED:\n",
        "        elif False:\n",
        "A broker stops leading a partition if the controller rejects its ISR because of another leader.",
        reason="It has an effect in 4 of 300 seeds: usually the request for the next leader arrives before"
        " the rejection.",
        test="broker/test_zombie_leaders.py::test_a_leader_stops_when_its_isr_is_refused_with_a_fenced_epoch",
    ),
    Fault(
        "stop-sent-twice",
        "broker/controller_channel_manager.py",
        "            batch.stops.clear()\n",
        "",
        "A StopReplica with a response is not sent again: the broker may have another replica by then.",
    ),
    Fault(
        "timeout-returned-as-success",
        "broker/delayed_produce.py",
        "        for one in self.awaited:\n            self._fail(one, error)\n        self.awaited = []\n",
        "        self.awaited = []\n",
        "The response to a produce request that is not committed in time has a timeout error.",
    ),
    Fault(
        "failed-append-returned-as-success",
        "broker/delayed_produce.py",
        "            elif error is not None:\n                self._fail(one, error)\n",
        "            elif error is not None:\n                pass\n",
        "A produce request fails if the broker no longer leads the partition.",
    ),
    Fault(
        "recreated-topic-keeps-log",
        "replication/replica_manager.py",
        "            yield from self.deleting(name, entry.topic_id)\n            entry = None\n",
        "            entry = TopicEntry(name, topic_id, internal)\n"
        "            entry.partitions.extend(self.topics.by_name[name.encode()].partitions)\n"
        "            self.topics.put(entry)\n",
        "A recreated topic starts with empty logs.",
        reason="It has no effect in 300 seeds: the deletion of the former topic, or the full LeaderAndIsr of"
        " a new controller, removes its partitions.",
        test="replication/test_replica_manager.py::test_a_recreated_topic_is_empty_after_a_missed_deletion",
    ),
    Fault(
        "leaders-end-of-any-epoch",
        "broker/replica_fetcher_manager.py",
        "            {_key(partition): int(partition.leader_epoch) for partition in partitions},\n",
        "            {_key(partition): -1 for partition in partitions},\n",
        "A follower requests the offsets of the leader in its own leader epoch.",
    ),
    Fault(
        "end-offset-is-log-end",
        "broker/handlers/list_offsets.py",
        "    limit = partition.read_limits.limit_offset(request.replica_id, request.isolation_level)\n",
        "    limit = partition.log.end_offset\n",
        "ListOffsets returns the high watermark to consumers.",
    ),
)

COORDINATION: Final = (
    Fault(
        "deletion-not-continued",
        "coordination/cluster_image_loader.py",
        "    for name in await _children(store, DELETE_TOPICS):\n",
        "    for name in []:\n",
        "A new controller continues the deletions of its predecessor.",
    ),
    Fault(
        "reassignment-not-continued",
        "coordination/cluster_image_loader.py",
        "    adding, removing = assignment.adding.get(number), assignment.removing.get(number)\n",
        "    adding, removing = None, None\n",
        "A new controller continues the reassignments of its predecessor.",
    ),
    Fault(
        "recreated-topic-treated-as-old",
        "coordination/cluster_image.py",
        "            if old is None or old.topic_id != topic.topic_id:\n",
        "            if old is None:\n",
        "A topic with the same name and another id is another topic.",
        reason="Brokers nearly always receive the deletion before. Otherwise they remove the former logs by"
        " the topic id, and only the committed offsets of groups remain.",
        test="broker/test_controller_requests.py::test_a_topic_that_gets_an_id_is_the_same_topic",
    ),
    Fault(
        "joined-broker-not-indexed",
        "coordination/topic_index.py",
        "            if new is not None:\n",
        "            if new is not None and old is None:\n",
        "The topic index lists a topic for each broker with a replica, including a broker that was added.",
    ),
    Fault(
        "registration-without-epoch",
        "coordination/cluster_image_loader.py",
        "BrokerImage(BrokerNode.decode(broker_id, node.data), node.creation_id)\n",
        "(known or {}).get(\n"
        "                broker_id, BrokerImage(BrokerNode.decode(broker_id, node.data), node.creation_id)\n"
        "            )\n",
        "A broker with a new registration has its new epoch.",
    ),
    Fault(
        "cancelled-reassignment-keeps-members",
        "controller/reassignment.py",
        "    isr = [broker for broker in partition.isr if broker in replicas]\n",
        "    isr = list(partition.isr)\n",
        "Replicas that a reassignment removes leave the ISR.",
        reason="A reassignment must be cancelled or replaced after one of its adding replicas has joined the"
        " ISR.",
        test="controller/test_controller_reassignment.py::test_a_cancelled_reassignment_restores_the_original_replicas",
    ),
    Fault(
        "replica-joins-with-deleted-records",
        "replication/follower_replicas.py",
        "        if follower.start_offset < log_start:\n",
        "        if False:\n",
        "A follower that has not deleted the deleted records of its leader does not join the ISR.",
        reason="A follower must reach the high watermark with records that its leader has deleted, although"
        " each fetch response contains the log start offset of the leader.",
        test="replication/test_follower_replicas.py::test_a_replica_with_records_deleted_by_the_leader_may_not_join_the_isr",
    ),
    Fault(
        "unknown-log-start-not-awaited",
        "replication/follower_replicas.py",
        "            if follower.start_offset < least and (broker in",
        "            if 0 <= follower.start_offset < least and (broker in",
        "DeleteRecords waits for a live replica whose log start offset is unknown.",
    ),
    Fault(
        "retention-counts-uncommitted-bytes",
        "log/retention.py",
        "    log_bytes = committed_bytes(log, high_watermark)\n",
        "    log_bytes = int(log.size_bytes)\n",
        "Uncommitted records do not count for the size that retention leaves.",
    ),
    Fault(
        "cancelled-reassignment-keeps-new-replicas",
        "coordination/topic_image.py",
        "        return [broker for broker in self.replicas if broker not in self.adding]\n",
        "        return list(self.replicas)\n",
        "A cancelled reassignment returns to the replicas before it.",
        reason="Reassignments are cancelled in 3 of 100 seeds: most are complete by then.",
        test="controller/test_controller_reassignment.py::test_a_cancelled_reassignment_restores_the_original_replicas",
    ),
    Fault(
        "cancelled-reassignment-keeps-one-replica",
        "controller/reassignment.py",
        "    least = min(len(complete), moved.effective_min_isr(policy.min_insync_replicas))\n",
        "    least = min(len(complete), 1)\n",
        "A cancelled reassignment keeps as many replicas with every committed record as commits need.",
        reason="A reassignment must be cancelled after its adding replicas have joined the ISR, while other"
        " replicas have not.",
        test="controller/test_controller_reassignment.py::"
        "test_a_stopped_reassignment_keeps_min_insync_complete_replicas",
    ),
)

GROUPS: Final = (
    Fault(
        "uncommitted-offset-returned",
        "groups/offset_commits.py",
        "    group.in_flight.update(partitions)\n",
        "    group.in_flight.update(partitions)\n"
        "    for record, value in committed:\n"
        "        group.offsets.setdefault(record.topic, {})[record.partition] = value\n",
        "A coordinator returns an offset of a group after it is committed to the log.",
    ),
    Fault(
        "uncommitted-groups-loaded",
        "broker/coordinator_topic.py",
        "        await _wait_until_committed(found, end)\n",
        "",
        "A new coordinator serves groups after all the records that it has read are committed.",
    ),
    Fault(
        "failed-commit-returned-as-success",
        "coordinator_runtime/coordinator_shard.py",
        "        error = self._outcome(write)\n",
        "        self._outcome(write)\n        error = ErrorCode.NONE\n",
        "The response to an offset commit that was not written has an error.",
    ),
    Fault(
        "overdue-commit-returned-as-success",
        "coordinator_runtime/coordinator_shard.py",
        "self._send_error(effect, APPEND_ERRORS[ErrorCode.REQUEST_TIMED_OUT])\n",
        "self._send_error(effect, ErrorCode.NONE)\n",
        "The response to an offset commit that is not written in time has an error.",
    ),
    Fault(
        "commit-of-old-generation",
        "groups/offset_commits.py",
        "request.member_id, request.instance_id, request.generation)\n",
        "request.member_id, request.instance_id, group.generation)\n",
        "An offset commit of a member of a former generation is rejected.",
    ),
    Fault(
        "commit-of-unknown-member",
        "groups/membership.py",
        "    return ErrorCode.NONE if member_id in group.members else ErrorCode.UNKNOWN_MEMBER_ID\n",
        "    return ErrorCode.NONE\n",
        "A request of an unknown member is rejected.",
    ),
    Fault(
        "sync-of-old-generation",
        "groups/membership.py",
        "request.member_id, request.instance_id, request.generation)\n",
        "request.member_id, request.instance_id, group.generation)\n",
        "A member of a former generation gets no assignment.",
    ),
    Fault(
        "heartbeat-of-old-generation",
        "groups/membership.py",
        "    error = check_generation(group, member_id, instance_id, generation)\n",
        "    error = check_generation(group, member_id, instance_id, group.generation)\n",
        "The heartbeat of a member of a former generation is rejected.",
    ),
    Fault(
        "generation-not-incremented",
        "groups/rebalance.py",
        "    group.generation += 1\n",
        "    group.generation = max(group.generation, 1)\n",
        "Each rebalance has its own generation.",
    ),
    Fault(
        "generation-not-loaded",
        "groups/group_metadata.py",
        "        self.generation = value.generation\n",
        "        self.generation = 0\n",
        "A new coordinator continues with the generation of its predecessor.",
    ),
    Fault(
        "expired-member-stays",
        "groups/rebalance.py",
        "    elif not member.awaits_response:\n",
        "    elif False:\n",
        "A member without heartbeats leaves the group.",
    ),
    Fault(
        "absent-member-stays",
        "groups/rebalance.py",
        "    for member in absent:\n",
        "    for member in list[Member]():\n",
        "A member that does not join a rebalance in time is removed.",
    ),
    Fault(
        "stale-group-cache",
        "coordinator_runtime/coordinator_runtime.py",
        "        del self.shards[partition]\n"
        "        del self._by_number[shard.number]\n"
        "        shard.close()\n",
        "        pass\n",
        "A broker that leads a partition of the offsets topic again loads it again.",
    ),
    Fault(
        "late-resignation-accepted",
        "coordinator_runtime/coordinator_runtime.py",
        "        if shard is None or (epoch is not None and epoch < shard.epoch):\n",
        "        if shard is None:\n",
        "A resignation of a former epoch does not stop the current coordinator.",
        reason="The broker reports its leaderships in order and without epochs, so that no report is late.",
        test="groups/test_groups_group_coordinator.py::test_ignores_a_resignation_of_an_older_epoch",
    ),
    Fault(
        "groups-read-to-high-watermark",
        "broker/coordinator_topic.py",
        "        end = int(found.log.end_offset)\n",
        "        end = int(found.high_watermark)\n",
        "A new coordinator reads its log to the log end: acknowledged records may be above its high"
        " watermark.",
    ),
    Fault(
        "offsets-outlive-topic",
        "groups/group_metadata_manager.py",
        "                if partitions:\n",
        "                if False:\n",
        "The committed offsets of a topic are removed with the topic.",
    ),
    Fault(
        "stable-offsets-not-awaited",
        "groups/group_coordinator.py",
        "            await shard.appends_ended()\n",
        "            pass\n",
        "With require_stable the response has the offsets after the pending commits.",
        reason="Simulated clients that set require_stable have the responses to the commits of their group.",
        test="groups/test_groups_group_coordinator.py::test_responds_only_after_the_commit",
    ),
    Fault(
        "assignment-of-old-generation",
        "groups/membership.py",
        "    if group.state is not GroupState.COMPLETING_REBALANCE or group.generation != done.generation:\n"
        "        return\n",
        "    if False:\n"
        "        return\n"
        "    if group.state is not GroupState.COMPLETING_REBALANCE:\n"
        "        return\n",
        "An assignment is valid only in its generation.",
    ),
)

FAULTS: Final[tuple[Fault, ...]] = (
    *LEADER,
    *FOLLOWER,
    *LOG,
    *CONTROLLER,
    *ELECTIONS,
    *BROKER,
    *COORDINATION,
    *GROUPS,
    *COMPACTION,
    *LOSSES,
    *TRANSACTIONS,
)
