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

LEADER: Final = (
    Fault(
        "min-insync-unchecked",
        "replication/partition.py",
        "        if acks == -1 and self.is_under_min_isr:\n",
        "        if False:\n",
        "A produce with acks=all is refused below min.insync.replicas.",
        reason="Below min.insync.replicas nothing is committed: the produce waits until its timeout, and no"
        " promise breaks.",
        test="replication/test_partition_leader.py::test_acks_all_requires_min_insync_replicas",
    ),
    Fault(
        "acks-all-not-awaited",
        "replication/partition.py",
        "        return acks == -1 or (acks == 1 and self._flushing and self._flushed_end < end_offset)\n",
        "        return acks == 1 and self._flushing and self._flushed_end < end_offset\n",
        "A produce with acks=all is acknowledged once all replicas in sync have it.",
    ),
    Fault(
        "acks-1-before-sync",
        "replication/partition.py",
        "        return acks == -1 or (acks == 1 and self._flushing and self._flushed_end < end_offset)\n",
        "        return acks == -1\n",
        "With flush.messages a produce with acks=1 is acknowledged once the leader has synced it.",
    ),
    Fault(
        "commit-without-followers",
        "replication/follower_replicas.py",
        "            if is_rejoining or broker in self.isr or broker in self.pending:\n",
        "            if False:\n",
        "The high watermark waits for all replicas in sync.",
    ),
    Fault(
        "commit-without-pending-members",
        "replication/follower_replicas.py",
        "            if is_rejoining or broker in self.isr or broker in self.pending:\n",
        "            if broker in self.isr:\n",
        "The high watermark waits for the members of the in-sync set that the controller was asked to write.",
    ),
    Fault(
        "isr-shrink-before-store",
        "replication/partition.py",
        "        replication.pending = isr\n        # The controller",
        "        replication.pending = isr\n"
        "        replication.isr = tuple(one for one in replication.isr if one in isr)\n"
        "        # The controller",
        "A replica leaves the in-sync set once the store has the smaller set, and not before.",
    ),
    Fault(
        "commit-alone-while-expanding",
        "replication/partition.py",
        "        self._alone = False\n        self.events.isr_requested(",
        "        self.events.isr_requested(",
        "A leader that asks for a larger in-sync set does not commit alone any more.",
    ),
    Fault(
        "join-one-behind-high-watermark",
        "replication/follower_replicas.py",
        "        return follower.end_offset >= high_watermark and follower.end_offset >= epoch_start\n",
        "        return follower.end_offset + 1 >= high_watermark\n",
        "A follower joins the in-sync set once it has everything that is committed.",
    ),
    Fault(
        "join-before-epoch-start",
        "replication/follower_replicas.py",
        "        return follower.end_offset >= high_watermark and follower.end_offset >= epoch_start\n",
        "        return follower.end_offset >= high_watermark\n",
        "A follower joins once it has what the leader held when its epoch began: that may be committed.",
    ),
    Fault(
        "fetch-of-former-life-counts",
        "replication/follower_replicas.py",
        "        if follower is None or 0 <= epoch < follower.epoch:\n",
        "        if follower is None:\n",
        "A fetch that a former life of a follower sent says nothing of what it has now.",
        reason="A fetch of the former process has to arrive behind one of the next, and to claim more.",
        test="replication/test_follower_replicas.py::test_fetches_of_a_former_broker_epoch_are_ignored",
    ),
    Fault(
        "fetch-of-former-registration-counts",
        "broker/fetch_reader.py",
        "            if has_stale_epoch and data.error == 0:\n",
        "            if False:\n",
        "A fetch counts only when its follower has not registered anew, as far as the leader has read.",
        reason="A fetch has to arrive after the next registration of its broker was read: so in 4 of 300"
        " seeds.",
        test="broker/test_registration_epochs.py::"
        "test_a_fetch_with_an_epoch_before_the_known_registration_is_refused",
    ),
    Fault(
        "recovers-before-brokers-are-known",
        "controller/controller_context.py",
        "                recovers=False,",
        "                recovers=True,",
        "After a write without an answer no log is chosen before the controller has read which brokers live.",
        reason="A broker has to register between a write that is not answered and the next change, while a"
        " partition has no leader and no replica that is whole: one of some hundred seeds shows that.",
        test="controller/test_controller_unanswered.py::"
        "test_the_longest_log_is_elected_after_its_broker_registered_in_a_store_outage",
    ),
    Fault(
        "second-loss-keeps-the-version",
        "controller/leader_election.py",
        "    is_fencing = any(broker in lost and broker not in partition.isr"
        " for broker in partition.replicas)\n",
        "    is_fencing = False\n",
        "A replica that reports a loss once more is not in sync by what its leader has asked before.",
        reason="The followers of the simulator tell the epochs of their registrations, by which the former"
        " life is refused; those that fetch with a version before 15 tell none.",
        test="controller/test_controller_leader_election.py::"
        "test_a_pending_isr_request_is_rejected_after_a_repeated_loss",
    ),
    Fault(
        "served-again-stays-offline",
        "controller/leader_election.py",
        "partition.offline | {broker} if is_offline else partition.offline - {broker}",
        "partition.offline | {broker} if is_offline else partition.offline",
        "A replica that its broker serves again may be in sync.",
        reason="A disk has to refuse a rename while a topic of the name is made anew, and to have room again:"
        " one of some thousand seeds does that.",
        test="controller/test_controller_faults.py::test_replica_reports_count_for_the_registration_of_their_broker",
    ),
    Fault(
        "takeover-elects-stopping",
        "controller/controller_context.py",
        "        stopping = self.stopping()\n        await",
        "        stopping: frozenset[int] = frozenset()\n        await",
        "A broker that announced its stop is not elected when the same controller takes the office again.",
        reason="A broker has to stop while the controller loses the office and takes it again: one of some"
        " thousand seeds does that.",
        test="controller/test_controller_faults.py::"
        "test_a_broker_in_controlled_shutdown_is_not_elected_under_the_next_controller_epoch",
    ),
    Fault(
        "former-registration-stays-after-catch-up",
        "controller/controller_context.py",
        "self._is_refresh_due or bool(renewed)",
        "False",
        "A broker that registered anew, as the controller has read, is not in sync by its former process.",
        reason="A broker has to lose its disk between two writes, of which the first is not answered:"
        " one of some thousand seeds does that.",
        test="controller/test_controller_unanswered.py::"
        "test_a_former_registration_cannot_join_the_isr_after_a_later_one_was_read",
    ),
    Fault(
        "last-leader-without-replica-is-waited-for",
        "controller/leader_election.py",
        " or last_known not in partition.replicas\n",
        "\n",
        "A last leader whose replica was moved away is not the one to wait for: it would come back empty.",
        reason="A move has to be cancelled while its new replica leads alone, while an eligible one is away:"
        " one of some thousand seeds does that.",
        test="controller/test_controller_reassignment.py::"
        "test_a_cancelled_reassignment_does_not_wait_for_a_removed_leader",
    ),
    Fault(
        "left-follower-still-caught-up",
        "replication/follower_replicas.py",
        "                follower.forget()\n        self.isr = isr\n",
        "                pass\n        self.isr = isr\n",
        "A follower that the controller has taken out of the set joins again only with a fetch after that.",
    ),
    Fault(
        "demotion-leaves-produces-waiting",
        "replication/partition.py",
        "            self.replication = None\n            self.delayed.fail(\n                KafkaError(\n",
        "            self.replication = None\n            str(\n                KafkaError(\n",
        "Produces that wait fail when their leader is demoted: they may be truncated.",
    ),
    Fault(
        "commit-before-sync",
        "replication/partition.py",
        "return self._flushed_end if self._flushing or self.log.needs_flush else self.log.end_offset\n",
        "return self.log.end_offset\n",
        "With flush.messages the leader itself counts as far as it has synced.",
    ),
    Fault(
        "lead-alone-before-sync",
        "replication/partition.py",
        "        if self._alone:\n            self._advance(self._own_end(), 0)\n",
        "        if self._alone:\n            self._advance(self.log.end_offset, 0)\n",
        "A leader that is alone in sync commits what it has synced, where flush.messages asks for that.",
    ),
    Fault(
        "killed-before-sync-counts-as-synced",
        "replication/partition.py",
        "        self._flushed_end: i64 = min(log.recovery_point, log.end_offset)\n",
        "        self._flushed_end: i64 = log.end_offset\n",
        "What a killed process had not synced counts once it is synced.",
    ),
    Fault(
        "unsynced-append-commits-alone",
        "replication/partition.py",
        "        if self.log.needs_flush:\n            self._unflushed_bytes += size\n",
        "        if self.log.needs_flush and not self._alone:\n            self._unflushed_bytes += size\n",
        "With flush.messages a leader alone in sync commits what it has synced.",
    ),
    Fault(
        "end-told-before-settled",
        "replication/partition.py",
        "        return self.is_leader and self.high_watermark < self.epoch_start\n",
        "        return False\n",
        "A new leader tells no end before it knows what the leader before had committed (KIP-207).",
    ),
    Fault(
        "new-leader-commits-its-log",
        "replication/partition.py",
        "            self.epoch_start = self.log.end_offset\n",
        "            self.epoch_start = self.high_watermark = self.log.end_offset\n",
        "What a new leader holds is committed once the in-sync set has it.",
    ),
    Fault(
        "high-watermark-is-log-end-at-start",
        "replication/replica_manager.py",
        "        known = max(self.logs.dirs.high_watermarks.get(key, 0), int(found.start_offset))\n",
        "        known = int(found.end_offset)\n",
        "What lies above the high watermark at a start may be on no other replica.",
    ),
    Fault(
        "older-state-taken",
        "replication/replica_manager.py",
        "        if (state.leader_epoch, state.partition_epoch) < known:\n",
        "        if False:\n",
        "A state of the controller that is older than what is known is not taken.",
        reason="A state has to arrive after a newer one, as in 7 of 300 seeds, and no state after both.",
        test="replication/test_replica_manager.py::test_a_state_with_an_older_epoch_is_ignored",
    ),
    Fault(
        "leads-without-session",
        "replication/replica_manager.py",
        "            if len(partition.replicas) > 1:\n                self.stop_leading(partition)\n",
        "            continue\n",
        "A broker whose session has ended leads nothing: another may.",
    ),
    Fault(
        "cut-off-leader-leads-on",
        "server/store_outage.py",
        "            self._isolation.leave(self._broker.clock.monotonic_ms() - int(session_s * 1000))\n",
        "            self._broker.clock.monotonic_ms()\n",
        "A leader that hears neither of the store nor of a replica takes no writes.",
    ),
    Fault(
        "deletion-mark-unchecked",
        "controller/admin_manager.py",
        "        mark = deletion_check if are_marked else deletion_mark\n",
        "        mark = (lambda topic: []) if are_marked else deletion_mark\n",
        "A mark in the store deletes the topic that was marked, and none that is made under its name.",
        reason="It matters in none of 70 seeds: a topic has to be deleted and made anew between a"
        " look at the marks and the deletion.",
        test="controller/test_controller_admin_node_requests.py::"
        "test_a_recreated_topic_survives_the_deletion_mark_of_its_predecessor",
    ),
    Fault(
        "follower-acts-as-leader",
        "replication/partition.py",
        "        if self.leader != self.node_id or self.deleted:\n",
        "        if self.deleted:\n",
        "Only the leader takes records, and is read from by followers.",
    ),
    Fault(
        "leader-epoch-unchecked",
        "replication/partition.py",
        "        if current_epoch >= 0 and current_epoch != self.leader_epoch:\n",
        "        if False:\n",
        "A fetch in another leader epoch than the present one is refused.",
    ),
    Fault(
        "uncommitted-records-readable",
        "replication/read_limits.py",
        "        return self.high_watermark\n",
        "        return self.log.end_offset\n",
        "Consumers read up to the high watermark.",
    ),
    Fault(
        "deserted-leader-leads-on",
        "replication/partition.py",
        "        return not replication.has_fetched_since(since_ms)\n",
        "        return False\n",
        "A leader that neither the store nor a follower in sync is heard by stops leading.",
    ),
)

FOLLOWER: Final = (
    Fault(
        "never-truncates",
        "replication/replica_fetcher.py",
        "end = divergence(partition, found.diverging_epoch, found.diverging_end)\n",
        "end = partition.log.end_offset\n",
        "A follower cuts what its leader does not have.",
    ),
    Fault(
        "copy-not-cut-to-common-history",
        "log/future_log_history.py",
        "    end = _common_end(copy, partition)\n",
        "    copy.truncate_to(partition.end_offset, now_ms)\n    return\n    end = -1\n",
        "What a partition has cut does not come back with its move to another directory.",
        reason="Whole brokers have one data directory; seeds of replication (`--kind replication`) find it.",
        test="log/test_log_future_log_history.py::test_truncated_records_do_not_reappear_when_a_move_resumes",
    ),
    Fault(
        "truncates-to-high-watermark",
        "replication/replica_fetcher.py",
        "        if partition.log.leader_epochs.latest == NO_EPOCH:\n            # Compaction",
        "        if True:\n            # Compaction",
        "A follower keeps what lies above its high watermark: that may be committed (KIP-101).",
    ),
    Fault(
        "diverges-within-unknown-epoch",
        "replication/replica_fetcher.py",
        "    if epoch == leader_epoch and leader_end < own_end:\n"
        "        return leader_end\n"
        "    # Where the leader",
        "    return leader_end\n    # Where the leader",
        "Where the leader's answer names an epoch that the follower lacks, it cuts at the end of its own"
        " epoch before that (KIP-279).",
        reason="It matters in none of the first 60 seeds: a leader has to lack records of the epoch"
        " before, and the next leader to have these and to lack the records of that leader.",
        test="replication/test_replica_fetcher.py::test_a_follower_ends_with_the_log_of_its_leader_for_any_two_logs",
    ),
    Fault(
        "answer-to-older-fetch-taken",
        "replication/replica_fetcher.py",
        "        and followed.leader_epoch == partition.leader_epoch\n",
        "",
        "The answer to a fetch of a former leader epoch is not taken.",
        reason="It matters in none of 70 seeds: with each state of another epoch the partition is"
        " followed anew, and no request of the new one is under way yet.",
        test="replication/test_replica_fetcher.py::test_a_response_to_a_request_before_a_change_is_ignored",
    ),
    Fault(
        "answer-for-other-offset-taken",
        "replication/replica_fetcher.py",
        "        and followed.fetch_offset == partition.log.end_offset\n        and followed.leader_epoch",
        "        and followed.leader_epoch",
        "The answer to a fetch counts only if the log still ends where the fetch began.",
    ),
    Fault(
        "begins-behind-leaders-start",
        "replication/replica_fetcher.py",
        "partition.restart_at(first, ",
        "partition.restart_at(end, ",
        "A follower behind the leader's log begins anew at the leader's start.",
    ),
    Fault(
        "own-compaction-gaps-kept",
        "replication/partition.py",
        "            or end < log.clean_end\n",
        "",
        "A follower whose compacted log is cut below its clean end fetches all of it again.",
        reason="It takes a recovery with a loss, a replica that had compacted further than the new leader's"
        " end, a restart of it that forgets the high watermark, and a reader of a key whose newer value got"
        " lost: one campaign of 3,800 seeds met the first two.",
        test="replication/test_recovered_compacted_logs.py"
        "::test_a_record_compacted_because_of_a_lost_record_is_fetched_again",
    ),
    Fault(
        "fetched-compaction-gaps-kept",
        "replication/partition.py",
        "            or (log.config.compact and end < self.high_watermark)\n",
        "",
        "A follower whose compacted log is cut below its high watermark fetches all of it again.",
        reason="As for own-compaction-gaps-kept, and the replica has fetched what another had compacted.",
        test="replication/test_recovered_compacted_logs.py"
        "::test_a_record_compacted_by_the_former_leader_is_fetched_again",
    ),
    Fault(
        "compacted-messages-without-epochs-cut",
        "replication/replica_fetcher.py",
        "                max(partition.high_watermark, partition.log.clean_end),\n",
        "                partition.high_watermark,\n",
        "A follower without leader epochs keeps what it has compacted: that is committed.",
        reason="It takes messages of formats v0 and v1 alone, and a high watermark that was not written.",
        test="replication/test_recovered_compacted_logs.py"
        "::test_messages_without_leader_epochs_are_kept_up_to_the_cleaner_checkpoint",
    ),
    Fault(
        "gaps-of-retention-kept",
        "replication/partition.py",
        "            end < log.start_offset\n            or",
        "            False\n            or",
        "A follower whose log starts behind its leader's end fetches all of that log.",
        reason="It takes a recovery with a loss of all that retention left.",
        test="replication/test_recovered_compacted_logs.py"
        "::test_a_record_removed_by_retention_before_the_loss_is_fetched_again",
    ),
    Fault(
        "replica-in-sync-emptied",
        "replication/partition.py",
        "        if end >= log.end_offset or int(self.node_id) in self.isr:\n",
        "        if end >= log.end_offset:\n",
        "A replica in sync is not emptied to be fetched again.",
        reason="No log is cut below the high watermark while a replica is in sync; this is a second lock.",
        test="replication/test_recovered_compacted_logs.py"
        "::test_an_in_sync_replica_keeps_its_committed_records",
    ),
    Fault(
        "clean-end-forgotten-by-move",
        "log/future_log.py",
        "        future.clean_end = source.clean_end\n",
        "",
        "A log that is moved to another directory stays clean up to where it was.",
        reason="As for own-compaction-gaps-kept; else the log is compacted once more from its start.",
        test="log/test_log_future_log_history.py::test_a_moved_log_keeps_its_cleaner_checkpoint",
    ),
    Fault(
        "first-batch-before-start-refused",
        "log/log.py",
        "                if self.start_offset < self.end_offset or batch.last_offset < self.end_offset:\n",
        "                if True:\n",
        "An empty follower takes the batch within which the leader's log starts.",
    ),
    Fault(
        "fetches-before-sync",
        "replication/replica_fetcher.py",
        "        if followed.partition.has_pending_sync:\n            self._rest(",
        "        if False:\n            self._rest(",
        "With flush.messages a follower fetches on once it has synced: its fetch tells what it has.",
        reason="The next request leaves out partitions whose sync is pending, so the early fetch has no"
        " effect.",
        test="replication/test_replica_fetcher.py::test_a_follower_reports_only_synced_records",
    ),
    Fault(
        "batches-of-next-leader-taken",
        "log/log.py",
        "            if leader_epoch >= 0:\n",
        "            if leader_epoch < -1:\n",
        "A follower takes no batch of another leader than the one that it asked.",
        reason="It matters in none of 70 seeds: a leader has to be deposed, to cut and to be sent"
        " other records while pages of its file wait in the network.",
        test="replication/test_late_answers.py"
        "::test_records_of_a_new_leader_are_not_appended_after_diverged_records",
    ),
    Fault(
        "appends-before-cut-synced",
        "replication/partition.py",
        "        if self._cut_unsynced:\n",
        "        if False:\n",
        "A leader appends nothing before what it cut as a follower is on the disk.",
        reason="It matters in none of 60 seeds: the sync of a cut ends before its broker is elected.",
        test="replication/test_partition_leader.py::"
        "test_a_new_leader_appends_nothing_before_its_truncation_is_synced",
    ),
    Fault(
        "start-told-before-retention-is-written",
        "replication/replica_fetcher.py",
        "        self._hold_unsettled(now_ms)\n",
        "",
        "A follower tells a start that retention moved once it is written down.",
        reason="It matters where retention moves the start between an answer and the next fetch: rarely.",
        test="replication/test_replica_fetcher.py::"
        "test_a_changed_log_start_offset_is_not_reported_before_it_is_stored",
    ),
    Fault(
        "follower-cannot-come-back-to-lone-leader",
        "replication/partition.py",
        "            and replication.is_rejoining(broker, self.log.end_offset, now_ms)\n",
        "            and False\n",
        "A leader that is alone in sync waits for a follower that has kept up.",
    ),
    Fault(
        "high-watermark-above-log-end",
        "replication/partition.py",
        "        self._advance(high_watermark if high_watermark < end else end, size)\n",
        "        self._advance(high_watermark, size)\n",
        "A follower's high watermark does not pass its log's end.",
    ),
    Fault(
        "high-watermark-survives-truncation",
        "replication/partition.py",
        "            self.high_watermark = min(self.high_watermark, self.log.end_offset)\n",
        "",
        "A truncation takes the high watermark back to the log's end.",
    ),
    Fault(
        "leaders-start-not-taken",
        "replication/partition.py",
        "        if offset > self.log.start_offset:\n            self.advance_start(",
        "        if False:\n            self.advance_start(",
        "A follower moves its log's start to the leader's: deleted records do not return with a failover.",
    ),
    Fault(
        "truncation-not-synced",
        "replication/partition.py",
        "            if self.log.truncations != truncations:\n                # Before",
        "            if False:\n                # Before",
        "A truncation is synced: a power cut could leave what was cut among what came after.",
    ),
    Fault(
        "doubtful-log-cut-after-it-led",
        "replication/replica_manager.py",
        "            self.unsynced_logs.pop(partition.log.topic_partition, None)\n",
        "            pass\n",
        "A log with which the machine went down is cut to what was synced, unless its broker has led since.",
    ),
    Fault(
        "doubtful-log-not-cut",
        "replication/replica_manager.py",
        "        if key in self.unsynced_logs:\n",
        "        if False:\n",
        "Of a log with which the machine went down only what was synced counts.",
    ),
    Fault(
        "divergence-not-told",
        "broker/fetch_reader.py",
        "            if requested.last_fetched_epoch >= 0 and diverges(data, partition):\n"
        "                return\n",
        "",
        "A leader tells a follower where its log diverges.",
    ),
    Fault(
        "diverging-fetch-counts",
        "broker/fetch_reader.py",
        "        if partition is None or data.diverging_end >= 0:\n            return\n",
        "        if partition is None:\n            return\n",
        "The fetch of a follower whose log diverges does not tell what it has.",
    ),
    Fault(
        "fetch-session-epoch-unchecked",
        "broker/fetch_session.py",
        "        if session.epoch != epoch:\n",
        "        if False:\n",
        "A fetch that is not the next of its session is refused.",
        reason="It matters in none of 70 seeds: fetches of a session come over one connection, in"
        " their order.",
        test="broker/test_fetch_session.py::test_a_fetch_with_the_wrong_session_epoch_is_refused",
    ),
)

LOG: Final = (
    Fault(
        "sequence-gap-accepted",
        "log/producer_state_manager.py",
        "        if first != expected and entry.epoch != NO_EPOCH:\n",
        "        if False:\n",
        "A batch of an idempotent producer follows the one before it without a gap.",
    ),
    Fault(
        "duplicate-stored",
        "log/producer_state_manager.py",
        "            if kept.last_sequence == last and kept.offset_delta == delta:\n",
        "            if False:\n",
        "A batch that is sent again is answered with the offset that it got.",
    ),
    Fault(
        "sequences-of-former-leader-kept",
        "log/producer_state_manager.py",
        "            forget_from(self.batches, first_of(last_sequence, offset_delta))\n",
        "            pass\n",
        "Where a leader took a batch for new that another one had, the producer goes on behind it.",
        reason="In none of the first 60 seeds does a leader take a batch for new that another one had: its"
        " log has to start behind that.",
        test="log/test_log_producers.py::test_a_batch_accepted_as_new_by_another_leader_is_a_duplicate_afterwards",
    ),
    Fault(
        "refused-batch-overtaken",
        "broker/produce_handler.py",
        "            if self.rejected.rejections and isinstance(append, BatchAppend):\n",
        "            if False:\n",
        "A batch behind one that was refused is refused, too.",
        reason="The sequence numbers keep the order: a producer is refused with another error, and gets"
        " its batches stored all the same.",
        test="broker/test_rejected_batches.py::test_batches_behind_a_rejected_one_get_the_same_error",
    ),
    Fault(
        "producers-survive-truncation",
        "log/log.py",
        "            pending.now_ms,\n        )\n        self.producer_state = producers\n",
        "            pending.now_ms,\n        )\n        self.producer_state.end_offset = self.end_offset\n",
        "What is known of producers is read again after a truncation.",
    ),
    Fault(
        "followers-note-no-producers",
        "log/log.py",
        "            if batch.producer_id >= 0:\n"
        "                self._update_producer(batch, marker, last_offset, batch.max_timestamp, now_ms)\n",
        "",
        "Followers note producers, so that they know a batch that is sent again when they lead.",
    ),
    Fault(
        "epochs-survive-truncation",
        "log/log.py",
        "        self.leader_epochs.truncate_end(int(self.end_offset), save=False)\n",
        "",
        "Leader epochs are cut with the log.",
    ),
    Fault(
        "empty-epoch-kept",
        "log/log.py",
        "            self._forget_empty_epochs()\n            return False\n",
        "            return False\n",
        "An epoch without records, which a follower led, is forgotten when it follows.",
        reason="Of the first 60 seeds only seed 41 finds it: a broker has to lead without a write, and to"
        " follow then without a restart.",
        test="replication/test_replica_fetcher.py::test_a_leader_epoch_without_records_is_removed",
    ),
    Fault(
        "epoch-begins-unnoted",
        "log/log.py",
        "        if leader_epoch != self._leader_epoch:\n"
        "            self.leader_epochs.assign(int(leader_epoch), int(self.end_offset), save=False)\n",
        "        str(leader_epoch)\n",
        "An epoch begins where the log ends when its leader begins to lead.",
    ),
    Fault(
        "epochs-below-start-kept",
        "log/leader_epoch_file_cache.py",
        "            del self.epochs[:gone], self.starts[:gone]\n            self.starts[0] = first\n",
        "            del self.epochs[: gone + 1], self.starts[: gone + 1]\n",
        "The epoch in which the log's start lies is kept, and begins there.",
    ),
    Fault(
        "emptied-log-forgets-its-epoch",
        "log/leader_epoch_file_cache.py",
        "        first = max(offset - 1, 0)\n",
        "        first = offset\n",
        "The leader epoch of the last record is known also when that is deleted.",
    ),
    Fault(
        "new-replica-of-an-emptied-log-lacks-its-epoch",
        "log/log.py",
        "            self._begin_epoch(leader_epoch, self.start_offset - 1)\n",
        "            pass\n",
        "A replica that begins where an emptied log ends takes the epoch of the last record from its leader.",
        reason="Its log has to be compared with one of a replica that missed much, after all others were lost"
        " and before anything is written.",
        test="replication/test_replica_fetcher.py::"
        "test_a_new_follower_of_an_emptied_log_gets_the_epoch_of_the_last_record",
    ),
    Fault(
        "epochs-of-a-killed-process-not-synced",
        "log/log_loader.py",
        "            log.durability.truncations += 1\n            self.leader_epochs.changes += 1\n",
        "            log.durability.truncations += 1\n",
        "A stop in order syncs the leader epochs that a process wrote which was killed.",
        reason="After the kill the log has to be emptied without a record of another epoch, and the broker to"
        " stop in order, before its machine loses its power. Seen once in 3,600 seeds.",
        test="log/test_log_last_epochs.py::test_the_last_epoch_survives_a_power_cut_after_a_clean_shutdown",
    ),
    Fault(
        "epoch-end-off-by-one-epoch",
        "log/leader_epoch_file_cache.py",
        "        return self.epochs[above - 1], self.starts[above]\n",
        "        return epoch, log_end\n",
        "An epoch ends where the next one begins.",
    ),
    Fault(
        "straddling-batch-end",
        "log/log.py",
        "        self.end_offset = offset if batch_offset < 0 or batch_offset > offset else batch_offset\n",
        "        self.end_offset = offset\n",
        "A batch that straddles the offset of a truncation goes as a whole.",
        reason="In none of the first 60 seeds is a log cut within a batch: leader epochs end between two"
        " batches, and replicas have the same batches.",
        test="log/test_log_append_read.py::test_a_log_truncated_within_a_batch_ends_at_the_start_of_the_batch",
    ),
    Fault(
        "recovery-point-survives-truncation",
        "log/durability.py",
        "        self.recovery_point = min(self.recovery_point, end_offset)\n",
        "",
        "What takes the place of records that were cut is not taken for synced.",
    ),
    Fault(
        "recovery-point-on-disk-survives-truncation",
        "replication/log_flusher.py",
        "                await self._checkpoints.write_overstated(one)\n",
        "",
        "A truncation is written to the checkpoint of recovery points before anything is appended.",
    ),
    Fault(
        "removals-taken-and-not-written",
        "replication/checkpoint_writer.py",
        "            await self._run(await with_pauses(taking))\n",
        "            await with_pauses(taking)\n",
        "A deletion is confirmed once no checkpoint on the disk has a line of the replica.",
    ),
    Fault(
        "recovery-point-on-disk-survives-recovery",
        "log/log_manager.py",
        "        self._write_lowered_checkpoints()\n",
        "",
        "A cut at the start is written to the checkpoint of recovery points before anything is appended.",
        reason="It takes two crashes: one between a cut and the write of the lowered checkpoint, and a"
        " power cut soon after the start that follows.",
        test="log/test_log_log_manager.py::test_a_truncation_at_startup_is_not_treated_as_synced_by_the_next_start",
    ),
    Fault(
        "sync-during-truncation-counts",
        "log/durability.py",
        "        if job.truncations != self.truncations:\n"
        "            return False  # The synced records may have been truncated and replaced.\n",
        "",
        "A sync that began before a truncation says nothing of the log after it.",
        reason="In none of the first 90 seeds is a log cut between the begin and the end of a sync.",
        test="log/test_log_crash.py::test_records_that_replace_truncated_records_during_a_sync_are_synced",
    ),
    Fault(
        "recovery-point-before-sync",
        "log/durability.py",
        "        job.base_offset = int(segments.active.base_offset)\n",
        "        self.recovery_point = max(self.recovery_point, end)\n"
        "        job.base_offset = int(segments.active.base_offset)\n",
        "The recovery point moves once the sync is done.",
    ),
    Fault(
        "active-segment-not-synced",
        "log/durability.py",
        "            elif whole and (segment.size > 0 or self.truncations > 0):\n"
        "                job.add(segment.file())\n",
        "            elif whole and (segment.size > 0 or self.truncations > 0):\n                pass\n",
        "A flush syncs the active segment.",
    ),
    Fault(
        "closed-segment-not-synced",
        "log/durability.py",
        "            if segment is not segments.active:\n                self._add_closed(job, at)\n",
        "            if segment is not segments.active:\n                job.add_path(segment.index.path)\n",
        "A flush syncs the segments that were rolled since the last one.",
    ),
    Fault(
        "directory-not-synced",
        "log/durability.py",
        "            segments.names_changed != self.names_synced\n"
        "            or self.leader_epochs.is_unsynced\n"
        "            or self.id_changed != self.id_synced\n",
        "            False\n",
        "A flush syncs the names of new segments.",
    ),
    Fault(
        "topic-id-not-synced",
        "log/durability.py",
        '            job.add_path(f"{segments.directory}/{PARTITION_METADATA}")\n',
        "            pass\n",
        "The first sync of a log syncs its topic's id: a topic made anew does not begin with its records.",
        test="log/test_log_topics_anew.py::test_files_left_by_a_power_cut_are_attributed_to_their_topic",
        reason="It takes a deletion and a new topic of the name while a broker is down after a power cut: one"
        " seed of thousands.",
    ),
    Fault(
        "failed-sync-ignored",
        "log/flush_job.py",
        "            for file in self._open:\n                file.sync()\n",
        "            for file in self._open:\n"
        "                try:\n"
        "                    file.sync()\n"
        "                except OSError:\n"
        "                    pass\n",
        "A sync that fails is no sync.",
    ),
    Fault(
        "failed-sync-tried-again",
        "replication/log_flusher.py",
        "                if not is_transient(problem) and not isinstance(problem, DiskFull):\n",
        "                if False:\n",
        "After a failed sync the directory is put aside: the next sync would succeed without the data.",
    ),
    Fault(
        "crash-taken-for-clean-stop",
        "log/log_directory_loader.py",
        "        remove_clean_shutdown(self.files, directory.file(CLEAN_SHUTDOWN), directory.path)\n",
        "",
        "The mark of a clean stop goes at the start, so that a crash after it is an unclean stop.",
    ),
    Fault(
        "epoch-begins-behind-compacted-batches",
        "log/log.py",
        "            self._begin_epoch(first.leader_epoch, begin)\n",
        "            self._begin_epoch(first.leader_epoch, first.base_offset)\n",
        "An epoch of a copy begins where the log ended before its first batch.",
    ),
    Fault(
        "earlier-epochs-not-found",
        "log/log_loader.py",
        "        recover_earlier_epochs(self.leader_epochs, segments, start, end)\n",
        "",
        "Records that a crash brings back have their leader epochs again.",
        reason="A power cut has to bring segments back that retention had removed, after the epochs were"
        " written without theirs.",
        test="log/test_log_recovery.py::test_records_restored_by_a_crash_have_their_leader_epochs",
    ),
    Fault(
        "former-leader-keeps-records-before-start",
        "replication/partition.py",
        "        if log.start_offset < end <= leader_start:\n",
        "        if False:\n",
        "A former leader keeps nothing before the start of its leader's log.",
        reason="The next leader's log has to start behind the end of the former leader's, as in 6 of 300"
        " seeds, and the former leader has to have records there that nobody else has.",
        test="replication/test_replica_fetcher.py::test_a_former_leader_keeps_no_record_before_the_log_start_offset_of_its_leader",
    ),
    Fault(
        "follower-refuses-batch-around-leaders-start",
        "replication/partition.py",
        "            if self.log.start_offset < end <= start_offset:\n",
        "            if False:\n",
        "A follower whose records were all deleted takes a batch within which the leader's log starts.",
        reason="Where it matters in the first 60 seeds, the batch begins where the follower's log ends,"
        " and is taken without the rule, too: a follower that ends within a batch of its leader has"
        " other batches.",
        test="replication/test_replica_manager.py"
        "::test_an_emptied_follower_appends_a_batch_that_contains_the_leader_log_start_offset",
    ),
    Fault(
        "damaged-tail-kept",
        "log/log_loader.py",
        "            if walk.fault:\n                self._truncate(",
        "            if False:\n                self._truncate(",
        "A recovery cuts the log at the first byte that is no good batch.",
    ),
    Fault(
        "cut-synced-before-names",
        "log/flush_job.py",
        "            if self.is_cut:\n",
        "            if False:\n",
        "A power cut in the sync of a truncation does not bring back the segments behind the cut.",
    ),
    Fault(
        "cut-during-sync-before-names",
        "log/log.py",
        "        if pending.gone and self.durability.is_flushing:\n",
        "        if False:\n",
        "A power cut after a truncation during a sync does not bring back the segments behind the cut.",
        reason="In none of the first 90 seeds are whole segments cut while a sync of the log is under way.",
        test="log/test_log_crash.py::test_a_power_cut_after_a_truncation_during_a_sync_leaves_no_gap",
    ),
    Fault(
        "cut-segments-come-back",
        "log/log_loader.py",
        "            self.files.sync_directory(self.directory)\n",
        "            pass\n",
        "A power cut after a recovery does not bring back the segments behind a cut.",
    ),
    Fault(
        "gap-after-a-loss",
        "log/log.py",
        "            self._append_empty(min(offset - self.end_offset, RELATIVE_OFFSET_MAX))\n",
        "            self.roll_over_gap(offset, now_ms)\n",
        "A new replica gets to the end of a log that went on after a loss.",
        reason="Nothing in the simulator damages what was synced, so that no log goes on after a loss.",
        test="replication/test_lost_records.py"
        "::test_a_new_replica_gets_in_sync_with_a_log_that_ends_in_a_gap",
    ),
    Fault(
        "hole-between-segments-kept",
        "log/log_loader.py",
        "            if not walk.fault and self._is_end_missing(walk, limit, last):\n",
        "            if False:\n",
        "A recovery cuts the log where a segment ends before the next one begins.",
    ),
    Fault(
        "offsets-below-start-given-again",
        "log/log_loader.py",
        "        if end < self.start_offset:\n",
        "        if False:\n",
        "Offsets before the log's start are not given out again after a loss.",
    ),
    Fault(
        "new-start-not-written",
        "replication/partition.py",
        "which then names the file.\n                self.save_start()\n",
        "which then names the file.\n",
        "A follower that begins anew tells of its start once that holds after a crash.",
    ),
    Fault(
        "damaged-log-trusted",
        "log/log_directory_loader.py",
        "            self.all.damaged.add(place.key)\n",
        "            pass\n",
        "A log that lost records although the machine went on is reported as lost.",
    ),
    Fault(
        "loss-not-noted-before-cut",
        "log/log_loader.py",
        "            self.before_loss()\n",
        "            pass\n",
        "A start that ends before its report of a loss was heeded leaves the loss to the next one.",
    ),
    Fault(
        "deletion-forgotten-before-rename",
        "log/log_manager.py",
        "        self.discard(log, now_ms)\n        self._forget(log)\n",
        "        self._forget(log)\n        self.discard(log, now_ms)\n",
        "A log whose directory could not be renamed is known until its deletion has worked.",
    ),
    Fault(
        "directory-of-another-topic-taken-over",
        "log/log_manager.py",
        "            if ZERO_ID not in (found, topic_id):\n",
        "            if False:\n",
        "A directory of another topic id does not become the partition of a topic made anew.",
        reason="Nothing in the simulator puts a directory back that the broker does not know of.",
        test="log/test_log_topics_anew.py"
        "::test_a_recreated_topic_does_not_get_records_of_a_restored_directory",
    ),
    Fault(
        "log-starts-not-written",
        "log/log_directories.py",
        "        return None if log is None or log.start_offset <= 0 else int(log.start_offset)\n",
        "        return None\n",
        "Where a log starts is written down when no file name tells it.",
    ),
    Fault(
        "retention-beyond-high-watermark",
        "log/retention.py",
        "        if not gone or segment.end_offset > high_watermark:\n",
        "        if not gone:\n",
        "Retention removes nothing that is not committed.",
    ),
    Fault(
        "retention-by-size-takes-one-more",
        "log/retention.py",
        "        answers.append(excess >= 0)\n",
        "        answers.append(excess + segment.size_bytes > 0)\n",
        "What retention leaves has at least retention.bytes.",
    ),
    Fault(
        "retention-by-time-too-early",
        "log/retention.py",
        "    return [now_ms - segment.last_ms > config.retention_ms for segment in segments]\n",
        "    return [now_ms - segment.last_ms > config.retention_ms // 4 for segment in segments]\n",
        "A segment goes once its newest record is older than retention.ms.",
    ),
    Fault(
        "segment-boundary-missed",
        "log/segment_list.py",
        "            if self.all[middle].base_offset <= offset:\n",
        "            if self.all[middle].base_offset < offset:\n",
        "The segment that begins at an offset holds it.",
    ),
    Fault(
        "power-cut-not-reported",
        "log/log_directory_loader.py",
        "        directory.may_have_lost = not directory.is_blank and not directory.clean and not is_same\n",
        "        directory.may_have_lost = False\n",
        "A broker whose machine went down says that it may have lost records.",
    ),
    Fault(
        "failed-sync-trusted-by-next-start",
        "log/log_directory_loader.py",
        "known == current and not is_distrusted\n",
        "known == current\n",
        "After a failed sync the next start takes the directory for one that went through a power cut.",
        reason="The disk has to refuse the mark that a sync has failed, in a directory beside others:"
        " simulated brokers have one.",
        test="log/test_log_log_manager.py"
        "::test_the_next_start_does_not_trust_the_page_cache_after_a_failed_sync",
    ),
    Fault(
        "empty-disk-not-reported",
        "log/log_directory_loader.py",
        "        directory.is_blank = not was_used and not has_logs\n",
        "        directory.is_blank = False\n",
        "A broker with an empty disk says that it has lost what it had.",
    ),
    Fault(
        "deletes-beyond-high-watermark",
        "broker/handlers/delete_records.py",
        "    if target < 0 or target > partition.high_watermark:\n",
        "    if target < 0 or target > partition.log.end_offset:\n",
        "DeleteRecords deletes up to the high watermark.",
        reason="Simulated administrators ask for no offset that nobody has read.",
        test="broker/test_delete_records.py::test_records_that_are_not_committed_are_not_deleted",
    ),
    Fault(
        "start-moved-on-while-written-not-told",
        "replication/partition.py",
        "            self.events.start_moved(self)\n        else:\n",
        "            pass\n        else:\n",
        "A follower whose start retention moves while it is written down writes it down again, and goes on.",
        reason="It matters in none of 300 seeds: retention has to come between two writes of one checkpoint.",
        test="replication/test_replica_manager.py::"
        "test_a_follower_continues_when_retention_advances_its_start_during_an_update",
    ),
    Fault(
        "start-told-before-written",
        "replication/partition.py",
        "        return self._flushing or self._start_unsaved\n",
        "        return self._flushing\n",
        "A follower tells its leader of a new start once it has written it down.",
    ),
    Fault(
        "start-that-found-no-room-told",
        "replication/log_start_checkpoint.py",
        "                if await self._checkpoints.log_starts_in([directory]):\n",
        "                if await self._checkpoints.log_starts_in([directory]) and False:\n",
        "A follower whose disk is full tells its leader of a new start once there was room to write it down.",
    ),
    Fault(
        "deletion-below-min-insync-acknowledged",
        "replication/partition.py",
        "        if self.delayed.deletions and self.commit_error() is None:\n",
        "        if self.delayed.deletions:\n",
        "DeleteRecords is acknowledged once min.insync.replicas are in sync: eligible replicas lack it.",
        reason="A deletion waits for replicas in sync even while they are not known to live. The set has"
        " to be below its minimum, and an eligible replica has to lead later that has not fetched it.",
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
        "deletion-not-written-acknowledged",
        "broker/handlers/delete_records.py",
        "        if error is None and problems:\n",
        "        if error is None and not problems and problems:\n",
        "DeleteRecords is acknowledged once the leader has written the start of its log down.",
    ),
)

CONTROLLER: Final = (
    Fault(
        "unfenced-controller-write",
        "controller/controller_context.py",
        "            await self.store.transact([fence(self._epoch_version), *operations])\n",
        "            await self.store.transact(list(operations))\n",
        "A controller that was replaced writes nothing.",
    ),
    Fault(
        "controller-epoch-not-raised",
        "controller/controller_context.py",
        "        epoch = ControllerEpochNode.decode(node.data) + 1 if node is not None else 1\n",
        "        epoch = ControllerEpochNode.decode(node.data) if node is not None else 1\n",
        "Each controller has an epoch of its own.",
    ),
    Fault(
        "failed-write-not-read-again",
        "controller/controller_context.py",
        "            # The store may have committed a cancelled write.\n            self._is_stale = True\n",
        "            # The store may have committed a cancelled write.\n",
        "After a write whose answer was lost the store is read again.",
    ),
    Fault(
        "unclean-election-always",
        "controller/leader_election.py",
        "    return available if (policy.unclean or is_unrecoverable) and not is_reporting else []\n",
        "    return [] if is_reporting else available\n",
        "A replica that is not in sync leads only where unclean.leader.election.enable says so.",
    ),
    Fault(
        "loser-stays-in-sync",
        "controller/leader_election.py",
        "    isr = [broker for broker in partition.isr if broker in living and broker not in lost]\n",
        "    isr = [broker for broker in partition.isr if broker in living]\n",
        "A replica that reports a loss leaves the in-sync set.",
    ),
    Fault(
        "loss-counted-against-recovered-leader",
        "controller/leader_election.py",
        "    is_reporting = any(not image.brokers[broker].lost.is_none for broker in readable)\n",
        "    is_reporting = False\n",
        "A broker is not elected by its log while its registration reports a loss: it would count once more.",
    ),
    Fault(
        "outdated-directory-trusted",
        "server/stale_directories.py",
        "                    directory.is_outdated = known is None or number < known\n",
        "                    directory.is_outdated = False\n",
        "The replicas of a data directory that was not in use at the last start are reported as lost.",
    ),
    Fault(
        "log-end-from-before-restart",
        "controller/unclean_recovery.py",
        "            if broker in image.brokers and image.brokers[broker].epoch != epoch\n",
        "            if broker not in image.brokers\n",
        "A log end counts for the registration under which the broker was asked.",
        reason="Where a broker was started since, all are asked again: an old answer is left only in the"
        " last round of an operator's election, with a restart in each round.",
        test="controller/test_controller_unclean_recovery.py"
        "::test_a_requested_unclean_election_ignores_log_ends_from_before_a_restart",
    ),
    Fault(
        "new-leader-in-old-epoch",
        "controller/leader_election.py",
        "    is_new_epoch = leader != partition.leader\n",
        "    is_new_epoch = False\n",
        "Each leader has an epoch of its own.",
    ),
    Fault(
        "offline-replica-elected",
        "controller/leader_election.py",
        "if broker in image.brokers and broker not in partition.offline\n",
        "if broker in image.brokers\n",
        "A replica whose disk failed does not lead.",
    ),
    Fault(
        "offline-for-good",
        "controller/leader_election.py",
        "            p if returned.isdisjoint(p.offline) else p.with_offline(p.offline - returned)\n",
        "            p\n",
        "A replica is offline until its broker registers again.",
    ),
    Fault(
        "preferred-leader-outside-isr",
        "controller/preferred_leader_election.py",
        "    return preferred in partition.isr and is_available(image, partition, preferred, stopping)\n",
        "    return is_available(image, partition, preferred, stopping)\n",
        "The preferred replica leads when it is in sync.",
    ),
    Fault(
        "successor-outside-isr",
        "controller/controlled_shutdown.py",
        "    leader = next((member for member in partition.replicas if member in isr), None)\n",
        "    leader = next(\n"
        "        (one for one in partition.replicas if one in image.brokers and one not in stopping), None\n"
        "    )\n",
        "Who leads in the place of a broker that stops is in sync.",
    ),
    Fault(
        "isr-of-former-epoch-written",
        "controller/alter_partition.py",
        'leader epoch", change.leader_epoch, partition.leader_epoch, _FENCED)\n',
        'leader epoch", partition.leader_epoch, partition.leader_epoch, _FENCED)\n',
        "A leader of a former epoch changes no in-sync set.",
        reason="The check is redundant but for its error: the partition epoch grows with each leader"
        " epoch, and the check of that one refuses every other set as well.",
        test="controller/test_controller_alter_partition.py::test_an_invalid_isr_is_rejected",
    ),
    Fault(
        "isr-over-unknown-state",
        "controller/alter_partition.py",
        '    _check_epoch(\n        f"partition {number}: partition epoch", change.partition_epoch,'
        " partition.partition_epoch, _OUTDATED\n"
        "    )\n",
        "",
        "An in-sync set is written over the state that its leader knows.",
    ),
    Fault(
        "member-epoch-unchecked",
        "controller/alter_partition.py",
        "    if epoch not in (ANY_EPOCH, registered.epoch):\n",
        "    if False:\n",
        "A member of the in-sync set that was started again since has to fetch first (KIP-903).",
    ),
    Fault(
        "member-epochs-not-told",
        "broker/alter_partition_manager.py",
        "            else int(replication.epoch_of(broker)),\n",
        "            else -1,\n",
        "A leader names the members of the set with the epochs in which they fetched.",
    ),
    Fault(
        "dead-member-accepted",
        "controller/alter_partition.py",
        '        return "is not live, and cannot be in sync"\n',
        '        return ""\n',
        "A broker that does not live is in no in-sync set.",
    ),
    Fault(
        "losing-member-accepted",
        "controller/alter_partition.py",
        "    if registered.lost.is_lost(topic, partition.partition):\n",
        "    if False:\n",
        "A broker that has yet to hear of its loss does not get in sync.",
    ),
    Fault(
        "older-epochs-believed-after-power-cut",
        "log/log_loader.py",
        "        if self.lost_unsynced:\n            # A power failure may have restored",
        "        if False:\n            # A power failure may have restored",
        "After a power cut the leader epochs of what was not synced are read from the batches.",
        reason="A log has to be cut and to follow an earlier leader, and two power cuts have to leave the"
        " batches, and not the epochs: one of some thousand seeds does that.",
        test="log/test_log_recovery.py::test_after_a_power_cut_the_leader_epochs_are_those_of_the_batches",
    ),
    Fault(
        "deleted-topic-taken-for-refusal",
        "broker/alter_partition_manager.py",
        '            log.info("%s-%d: %s", one.partition.topic, one.partition.index, result)\n',
        "            if result.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:\n"
        "                partitions.isr_refused(one.partition)\n                return\n",
        "An in-sync set of a topic that was deleted since may have been written: its members are waited for.",
        reason="The answer has to be lost, and the topic deleted before the set is asked for again: one of"
        " some thousand seeds does that.",
        test="broker/test_alter_partition_manager.py::test_a_change_that_may_have_been_written_is_sent_again",
    ),
    Fault(
        "lost-answer-taken-for-refusal",
        "broker/alter_partition_manager.py",
        "            if result.code not in REJECTIONS:\n",
        "            if False:\n",
        "An in-sync set whose answer was lost may have been written: until that is known its members are"
        " waited for.",
    ),
    Fault(
        "unheard-losses-elected-for-failed-disk",
        "controller/failover.py",
        "        await self.refresh_brokers()\n        # If it has registered again",
        "        # If it has registered again",
        "Before a leader is replaced whose disk fails, the losses that brokers have registered are read.",
    ),
    Fault(
        "failed-before-restart",
        "controller/failover.py",
        "return _epoch(self._context.image.brokers, broker_id) == known",
        "return True",
        "What failed at a broker before it was started again does not count after it.",
        reason="The report has to be handled between the next registration of the broker and the first look"
        " at it.",
        test="controller/test_controller_faults.py"
        "::test_replica_reports_count_for_the_registration_of_their_broker",
    ),
    Fault(
        "unheard-losses-elected-at-shutdown",
        "controller/leader_election_requests.py",
        "            await context.refresh_brokers()\n            check_stopping",
        "            check_stopping",
        "Before the leaders of a broker that stops are replaced, the losses that brokers have registered are"
        " read.",
    ),
    Fault(
        "dead-for-good",
        "controller/failover.py",
        "            if broker in registered and registered[broker].epoch == epoch\n",
        "            if broker in registered\n",
        "A broker that was found dead and has registered again lives.",
    ),
    Fault(
        "move-ends-early",
        "controller/reassignment.py",
        "    if not set(target) <= set(partition.isr):\n",
        "    if not set(target) & set(partition.isr):\n",
        "A move ends, and the old replicas go, once all the new ones are in sync.",
    ),
    Fault(
        "moved-away-leader-stays",
        "controller/reassignment.py",
        "    leader = _leader(image, partition, partition.leader, target, isr, stopping)\n"
        "    if leader == NO_BROKER:\n",
        "    leader = partition.leader\n    if leader == NO_BROKER:\n",
        "A leader that is moved away gives its leadership up.",
    ),
    Fault(
        "move-ends-in-old-epoch",
        "controller/reassignment.py",
        "    return next_state(arrived, leader, isr, policy, is_new_epoch=True)\n",
        "    return next_state(arrived, leader, isr, policy, is_new_epoch=False)\n",
        "The leader epoch grows with the end of a move, so that every replica takes notice.",
    ),
    Fault(
        "producer-ids-given-twice",
        "controller/producer_id_blocks.py",
        "            await store.transact([SetData(PRODUCER_ID_BLOCK, data, node.version)])\n",
        "            await store.transact([SetData(PRODUCER_ID_BLOCK, data)])\n",
        "A block of producer ids is given to one broker.",
    ),
    Fault(
        "deletion-ends-with-first-broker",
        "controller/admin_manager.py",
        "            if self._deletions.confirmed(name, broker_id):\n                done.append(topic)\n",
        "            self._deletions.confirmed(name, broker_id)\n            done.append(topic)\n",
        "The nodes of a deleted topic go once every broker has removed its replicas.",
    ),
)

ELECTIONS: Final = (
    Fault(
        "commit-below-min-insync",
        "replication/partition.py",
        "        if replication is None or self.is_under_min_isr:\n",
        "        if replication is None:\n",
        "Below min.insync.replicas the high watermark stands still: an eligible leader replica would lack"
        " records that consumers have read.",
    ),
    Fault(
        "commit-alone-below-min-insync",
        "replication/partition.py",
        "        return self.is_leader and len(self.isr) == 1 and not self.is_under_min_isr\n",
        "        return self.is_leader and len(self.isr) == 1\n",
        "A leader that is alone in sync commits nothing where min.insync.replicas is 2.",
    ),
    Fault(
        "more-replicas-wanted-than-there-are",
        "replication/partition.py",
        "        return count if 0 < count < self.min_insync_replicas else self.min_insync_replicas\n",
        "        return self.min_insync_replicas\n",
        "A commit takes all replicas where there are fewer than min.insync.replicas.",
    ),
    Fault(
        "arriving-replicas-count-for-min-insync",
        "coordination/topic_image.py",
        "        return min(min_insync_replicas, len(self.replicas) - len(self.adding))\n",
        "        return min(min_insync_replicas, len(self.replicas))\n",
        "Controller and leaders count the same for min.insync.replicas: no replicas that a move adds.",
        reason="It matters only for a partition that has fewer replicas than the minimum without those"
        " that a move adds.",
        test="controller/test_controller_alter_partition.py"
        "::test_min_insync_does_not_count_replicas_that_a_reassignment_adds",
    ),
    Fault(
        "eligible-replicas-forgotten",
        "controller/leader_election.py",
        "        if broker in complete and broker not in isr and",
        "        if broker in partition.isr and broker not in isr and",
        "A replica stays eligible while others leave the in-sync set after it.",
    ),
    Fault(
        "no-replica-eligible",
        "controller/leader_election.py",
        "    if len(isr) >= partition.min_insync(policy.min_insync_replicas):\n        return []\n",
        "    return []\n",
        "In-sync set and eligible leader replicas together do not fall below min.insync.replicas.",
    ),
    Fault(
        "eligible-above-min-insync",
        "controller/leader_election.py",
        "    if len(isr) >= partition.min_insync(policy.min_insync_replicas):\n",
        "    if False:\n",
        "A replica that leaves the in-sync set while enough are left for commits is not eligible.",
    ),
    Fault(
        "eligible-beside-another-min-insync",
        "controller/admin_manager.py",
        "        emptied = self._elr_changes(plan)\n",
        "        emptied: list[Plan] = []\n",
        "A change of min.insync.replicas empties the eligible leader replicas.",
    ),
    Fault(
        "eligible-beside-another-default-min-insync",
        "controller/admin_manager.py",
        "        if plan.broker == DEFAULT_ENTITY:\n            return plan_default",
        "        if False:\n            return plan_default",
        "A change of the default of min.insync.replicas empties the eligible leader replicas of topics that"
        " have no value of their own.",
    ),
    Fault(
        "leader-keeps-old-min-insync",
        "replication/hosted_topics.py",
        "            partition.set_min_insync(config.min_insync_replicas, now_ms)\n",
        "            pass\n",
        "A leader counts by another min.insync.replicas as soon as it has read it.",
    ),
    Fault(
        "leader-keeps-old-default-min-insync",
        "server/broker_server.py",
        "        if not changed:\n            return\n        time_slice",
        "        if True:\n            return\n        time_slice",
        "A leader follows the default of min.insync.replicas where the topic has no value of its own.",
        reason="It takes a change of the cluster's default while a topic without a value of its own is led.",
        test="server/test_server_election_settings.py"
        "::test_a_leader_applies_the_changed_min_insync_replicas_of_the_cluster",
    ),
    Fault(
        "controller-keeps-old-default-min-insync",
        "controller/election_settings.py",
        "        if known is None or known.config is not config or known.settings != image.broker_configs:\n",
        "        if known is None:\n",
        "The controller keeps the eligible leader replicas by the present default of min.insync.replicas.",
    ),
    Fault(
        "loser-stays-eligible",
        "controller/leader_election.py",
        "and broker not in isr and broker not in lost\n",
        "and broker not in isr\n",
        "A replica that reports a loss is not eligible any more.",
    ),
    Fault(
        "loser-elected-from-the-eligible",
        "controller/leader_election.py",
        "        complete = set(complete_replicas(partition, policy)).difference(lost)\n",
        "        complete = set(complete_replicas(partition, policy))\n",
        "A loss is heeded before anybody is elected.",
    ),
    Fault(
        "eligible-stay-after-recovery",
        "controller/leader_election.py",
        "partition_epoch=partition.partition_epoch + 1, elr=[]\n        )\n",
        "partition_epoch=partition.partition_epoch + 1\n        )\n",
        "What others hold beyond the log of a leader that was recovered counts no more.",
    ),
    Fault(
        "shorter-log-recovered",
        "controller/leader_election.py",
        "    return max(known, key=lambda broker: ends[broker], default=NO_BROKER) if ends else NO_BROKER\n",
        "    return min(known, key=lambda broker: ends[broker], default=NO_BROKER) if ends else NO_BROKER\n",
        "Of the replicas that may lack records the one with the highest last epoch leads, among these the"
        " longest log.",
    ),
    Fault(
        "log-end-of-leader-epoch",
        "broker/handlers/list_offsets.py",
        "        epoch = partition.log.leader_epochs.latest\n",
        "        epoch = partition.leader_epoch\n",
        "A replica tells the epoch of its last record, and not the one that it heard of.",
    ),
    Fault(
        "recovers-before-hopeless",
        "controller/leader_election.py",
        "partition.last_known_leader in available or "
        "set(partition.replicas) <= set(partition.lost_replicas)\n",
        "True\n",
        "A partition without eligible replicas waits for its last leader, or until all have reported a loss.",
    ),
    Fault(
        "blank-last-leader-recovered",
        "controller/leader_election.py",
        "is_gone = last_known in missing",
        "is_gone = False",
        "The last leader is not waited for when its log is gone.",
    ),
    Fault(
        "losses-not-remembered",
        "controller/leader_election.py",
        "{*lost, *partition.lost_replicas}.difference(isr)",
        "{*lost}.difference(isr)",
        "Losses that replicas report one after the other add up, so that a partition comes back.",
    ),
    Fault(
        "losses-not-stored",
        "coordination/cluster_image.py",
        "        tuple(partition.lost_replicas),\n",
        "",
        "The state in the store tells which replicas have reported a loss.",
    ),
    Fault(
        "eligible-not-stored",
        "coordination/cluster_image_loader.py",
        "        elr=state.elr,\n",
        "",
        "A new controller knows the eligible leader replicas.",
    ),
    Fault(
        "last-leader-not-stored",
        "coordination/cluster_image_loader.py",
        "        last_known_leader=state.last_known_leader,\n",
        "",
        "A new controller knows who led last.",
    ),
    Fault(
        "losses-unheard-by-new-controller",
        "controller/controller_context.py",
        "plan_takeover(before, losses, self",
        "plan_takeover(before, {}, self",
        "A new controller heeds the losses that are registered.",
    ),
    Fault(
        "unsynced-committed-after-disk-failure",
        "replication/partition.py",
        "        end = self._own_end()\n        if self._alone and self.high_watermark < end:\n",
        "        end = self._flushed_end if self._flushing else self.log.end_offset\n"
        "        if self._alone and self.high_watermark < end:\n",
        "A leader alone in sync commits nothing unsynced when its disk fails while a sync runs.",
        reason="A sync has to end well in the moment after the disk of the only replica in sync has failed.",
        test="replication/test_partition_leader.py"
        "::test_a_leader_with_a_failed_disk_commits_nothing_after_its_last_sync",
    ),
    Fault(
        "registered-meanwhile-not-waited-for",
        "controller/admin_manager.py",
        "[*_absence_check(broker_id), operation]",
        "[operation]",
        "The deletion of a topic waits for a broker that registers while it is being unregistered.",
        reason="A broker has to come back in the milliseconds between the controller's look and its write.",
        test="controller/test_controller_topic_deletion.py"
        "::test_a_deletion_waits_for_a_broker_that_registers_while_it_is_unregistered",
    ),
    Fault(
        "policy-change-keeps-eligible",
        "controller/admin_manager.py",
        "        emptied = self._elr_changes(plan)\n",
        "        emptied: list[Plan] = []\n",
        "A change of min.insync.replicas empties the eligible leader replicas with the same write.",
    ),
    Fault(
        "unseen-minimum-overwritten",
        "controller/admin_manager.py",
        "                Check(path, node.version) for path, node in zip(paths, nodes, strict=True)"
        " if node is not None\n",
        "                Check(path) for path, node in zip(paths, nodes, strict=True) if node is not None\n",
        "A change of settings overwrites no min.insync.replicas that somebody else has just written.",
        reason="Somebody has to write it in the milliseconds between the controller's look and its write,"
        " while replicas are eligible. Seen once in 3,500 seeds.",
        test="controller/test_controller_stored_min_insync_replicas.py::"
        "test_a_lower_minimum_written_after_the_check_is_applied",
    ),
    Fault(
        "min-insync-set-after-leading",
        "replication/replica_manager.py",
        "            partition.set_min_insync(config.min_insync_replicas, self.clock.monotonic_ms())\n",
        "",
        "A partition knows min.insync.replicas before it leads.",
        reason="A broker has to lead alone in sync below the minimum, with records that are not"
        " committed, by the first command about the partition since its start.",
        test="replication/test_replica_manager.py"
        "::test_a_new_leader_applies_min_insync_replicas_before_it_commits",
    ),
    Fault(
        "missing-log-not-reported",
        "server/lost_replicas.py",
        "    if found is None:\n        return True\n",
        "    if found is None:\n        return False\n",
        "A replica whose log is in no directory is reported as lost.",
        reason="A simulated broker has one data directory, and lacks single logs only where it had not"
        " made them yet, or where an old copy of the directory was put back.",
        test="server/test_lost_replicas.py::test_a_replaced_disk_reports_only_its_own_replicas",
    ),
    Fault(
        "loss-cleared-before-heeded",
        "server/broker_lifecycle.py",
        "                await self.applier.first_change_applied.wait()\n        except TimeoutError:\n",
        "                pass\n        except TimeoutError:\n",
        "A loss stays in the registration until a controller has told this broker what it leads.",
    ),
)

BROKER: Final = (
    Fault(
        "old-controller-obeyed",
        "broker/controller_request_handler.py",
        "        if request.controller_epoch < self._applier.controller_epoch:\n"
        "            log.warning(\n"
        '                "a request of broker',
        '        if False:\n            log.warning(\n                "a request of broker',
        "Commands of a controller that was replaced are refused.",
    ),
    Fault(
        "command-for-former-process-obeyed",
        "broker/controller_request_handler.py",
        "        if -1 < request.broker_epoch < self._applier.broker_epoch:\n",
        "        if False:\n",
        "A command for the process that ran before is not for this one.",
    ),
    Fault(
        "command-over-old-connection-obeyed",
        "broker/controller_request_handler.py",
        "        if UNKNOWN_CONNECTION < connection < self._newest_connection:\n",
        "        if False:\n",
        "What comes over a connection that the controller has replaced is refused.",
        reason="It matters in none of 300 seeds: over a simulated connection that was given up nothing"
        " comes any more.",
        test="broker/test_controller_requests.py::test_a_late_request_over_a_replaced_connection_is_refused",
    ),
    Fault(
        "late-stop-obeyed",
        "broker/controller_request_handler.py",
        "        if known is not None and -1 < state.leader_epoch < known.leader_epoch:\n",
        "        if False:\n",
        "A replica that was moved away and back is not removed by the late command of the first move.",
        reason="It matters in none of 300 seeds: no move comes back within the life of a command.",
        test="broker/test_controller_requests.py::"
        "test_a_late_stop_does_not_remove_a_replica_that_is_assigned_again",
    ),
    Fault(
        "lost-command-not-repeated",
        "broker/controller_channel_manager.py",
        "            newer, self._pending = self._pending, batch\n            self._pending.add(newer)\n",
        "",
        "A command that was not answered is sent again.",
    ),
    Fault(
        "unassigned-leader-leads-on",
        "replication/replica_manager.py",
        "            if key in assigned:\n",
        "            if True:\n",
        "A broker stops leading what the full state of a controller does not assign to it.",
    ),
    Fault(
        "leader-of-former-epoch-leads-on",
        "broker/controller_request_handler.py",
        "                if one.leader_epoch > known.leader_epoch:\n",
        "                if False:\n",
        "A broker stops leading what the full state of a controller says that others lead.",
        reason="It matters in none of 300 seeds: the command about the partition itself comes first.",
        test="broker/test_zombie_leaders.py::"
        "test_a_leader_stops_when_metadata_has_another_leader_in_a_later_epoch",
    ),
    Fault(
        "fenced-leader-leads-on",
        "broker/alter_partition_manager.py",
        "        elif result.code in FENCED:\n",
        "        elif False:\n",
        "A broker stops leading a partition whose in-sync set the controller refuses for another leader.",
        reason="It matters in 4 of 300 seeds: mostly the command about the next leader comes before the"
        " refusal.",
        test="broker/test_zombie_leaders.py::test_a_leader_stops_when_its_isr_is_refused_with_a_fenced_epoch",
    ),
    Fault(
        "stop-sent-twice",
        "broker/controller_channel_manager.py",
        "            batch.stops.clear()\n",
        "",
        "What StopReplica was answered for is not sent again: another replica may be there by now.",
    ),
    Fault(
        "timeout-answered-as-success",
        "broker/delayed_produce.py",
        "        for one in self.awaited:\n            one.response.fail(error)\n        self.awaited = []\n",
        "        self.awaited = []\n",
        "A produce that is not committed in time is answered as timed out.",
    ),
    Fault(
        "failed-append-answered-as-success",
        "broker/delayed_produce.py",
        "            elif error is not None:\n                one.response.fail(error)\n",
        "            elif error is not None:\n                pass\n",
        "A produce whose partition is not led here any more fails.",
    ),
    Fault(
        "remade-topic-keeps-log",
        "replication/replica_manager.py",
        "            list(self.deleting(name, entry.topic_id))\n            entry = None\n",
        "            entry = TopicEntry(name, topic_id, internal)\n"
        "            entry.partitions.extend(self.topics.by_name[name.encode()].partitions)\n",
        "A topic that is made anew begins with empty logs.",
        reason="It matters in none of 300 seeds: the partitions of the topic before are removed by its"
        " deletion, or with the full state of a new controller.",
        test="replication/test_replica_manager.py::test_a_recreated_topic_is_empty_after_a_missed_deletion",
    ),
    Fault(
        "leaders-end-of-any-epoch",
        "broker/replica_fetcher_manager.py",
        "                    current_leader_epoch=int(partition.leader_epoch),\n",
        "                    current_leader_epoch=-1,\n",
        "A follower asks for the leader's offsets in the epoch that it knows.",
    ),
    Fault(
        "end-offset-is-log-end",
        "broker/handlers/list_offsets.py",
        "    limit = partition.read_limits.limit_offset(request.replica_id, request.isolation_level)\n",
        "    limit = partition.log.end_offset\n",
        "ListOffsets tells consumers the high watermark.",
    ),
)

COORDINATION: Final = (
    Fault(
        "deletion-forgotten",
        "coordination/cluster_image_loader.py",
        "    for name in await _children(store, DELETE_TOPICS):\n",
        "    for name in []:\n",
        "A new controller goes on with the deletions that were begun.",
    ),
    Fault(
        "move-forgotten",
        "coordination/cluster_image_loader.py",
        "    adding, removing = assignment.adding.get(number), assignment.removing.get(number)\n",
        "    adding, removing = None, None\n",
        "A new controller goes on with the moves that were begun.",
    ),
    Fault(
        "remade-topic-taken-for-old",
        "coordination/cluster_image.py",
        "            if old is None or old.topic_id != topic.topic_id:\n",
        "            if old is None:\n",
        "A topic of the same name with another id is another topic.",
        reason="Brokers are nearly always told of the deletion before. Where they are not, they remove"
        " the former logs by the topic's id all the same, and what groups had committed for it stays.",
        test="broker/test_controller_requests.py::test_a_topic_that_gets_an_id_is_the_same_topic",
    ),
    Fault(
        "joined-broker-not-indexed",
        "coordination/topic_index.py",
        "            if new is not None:\n",
        "            if new is not None and old is None:\n",
        "A topic is found by each broker that has a replica of it, also by one that joins.",
    ),
    Fault(
        "registration-without-epoch",
        "coordination/cluster_image_loader.py",
        "BrokerImage(BrokerNode.decode(broker_id, node.data), node.creation_id)\n",
        "(known or {}).get(\n"
        "                broker_id, BrokerImage(BrokerNode.decode(broker_id, node.data), node.creation_id)\n"
        "            )\n",
        "A broker that has registered anew is known by its new epoch.",
    ),
    Fault(
        "cancelled-move-keeps-members",
        "controller/reassignment.py",
        "    isr = [broker for broker in partition.isr if broker in replicas]\n",
        "    isr = list(partition.isr)\n",
        "Replicas that a move does not keep leave the in-sync set.",
        reason="A move has to be cancelled, or replaced by another, after a replica that it adds got in"
        " sync.",
        test="controller/test_controller_reassignment.py::test_a_cancelled_reassignment_restores_the_original_replicas",
    ),
    Fault(
        "replica-joins-with-deleted-records",
        "replication/follower_replicas.py",
        "        if follower.start_offset < log_start:\n",
        "        if False:\n",
        "A follower that has not deleted what its leader has does not get in sync.",
        reason="A follower has to reach the high watermark with records that its leader has deleted, although"
        " each fetch tells it the leader's start.",
        test="replication/test_follower_replicas.py::test_a_replica_with_records_deleted_by_the_leader_may_not_join_the_isr",
    ),
    Fault(
        "unknown-start-not-waited-for",
        "replication/follower_replicas.py",
        "            if follower.start_offset < least and (\n",
        "            if 0 <= follower.start_offset < least and (\n",
        "DeleteRecords waits for a live replica of which no start is known.",
    ),
    Fault(
        "retention-counts-uncommitted-bytes",
        "log/retention.py",
        "    log_bytes = committed_bytes(log, high_watermark)\n",
        "    log_bytes = int(log.size_bytes)\n",
        "Records that are not committed take no committed ones away.",
    ),
    Fault(
        "stopped-move-keeps-new-replicas",
        "coordination/topic_image.py",
        "        return [broker for broker in self.replicas if broker not in self.adding]\n",
        "        return list(self.replicas)\n",
        "A move that is stopped goes back to the replicas that there were before it.",
        reason="Moves are stopped in 3 of 100 seeds: most have ended by then.",
        test="controller/test_controller_reassignment.py::test_a_cancelled_reassignment_restores_the_original_replicas",
    ),
    Fault(
        "stopped-move-keeps-one-replica",
        "controller/reassignment.py",
        "    least = min(len(complete), moved.min_insync(policy.min_insync_replicas))\n",
        "    least = min(len(complete), 1)\n",
        "A move that is stopped keeps as many replicas with every committed record as commits take.",
        reason="A move has to be stopped after replicas that it adds got in sync, while others have not.",
        test="controller/test_controller_reassignment.py::"
        "test_a_stopped_reassignment_keeps_min_insync_complete_replicas",
    ),
)

GROUPS: Final = (
    Fault(
        "uncommitted-position-shown",
        "groups/offset_commits.py",
        "    group.in_flight.update(partitions)\n",
        "    group.in_flight.update(partitions)\n"
        "    for record, value in committed:\n"
        "        group.offsets.setdefault(record.topic, {})[record.partition] = value\n",
        "A group's position is shown once it is committed.",
    ),
    Fault(
        "uncommitted-groups-loaded",
        "broker/offsets_topic.py",
        "        await _wait_until_committed(found, end)\n",
        "",
        "A new coordinator shows groups once all that it has read of them is committed.",
    ),
    Fault(
        "failed-commit-answered-as-success",
        "groups/group_coordinator_shard.py",
        "        error = self._outcome(write)\n",
        "        self._outcome(write)\n        error = ErrorCode.NONE\n",
        "A commit that was not written is answered with an error.",
    ),
    Fault(
        "overdue-commit-answered-as-success",
        "groups/group_coordinator_shard.py",
        "                    error = APPEND_ERRORS[ErrorCode.REQUEST_TIMED_OUT]\n",
        "                    error = ErrorCode.NONE\n",
        "A commit that is not written in time is answered with an error.",
    ),
    Fault(
        "commit-of-old-generation",
        "groups/offset_commits.py",
        "        if request.generation != group.generation:\n",
        "        if False:\n",
        "A member of a former generation commits nothing.",
    ),
    Fault(
        "commit-of-stranger",
        "groups/membership.py",
        "    return ErrorCode.NONE if member_id in group.members else ErrorCode.UNKNOWN_MEMBER_ID\n",
        "    return ErrorCode.NONE\n",
        "Who is no member of a group is refused.",
    ),
    Fault(
        "sync-of-old-generation",
        "groups/membership.py",
        "    if request.generation != group.generation:\n"
        "        return ErrorCode.ILLEGAL_GENERATION\n"
        "    if _differs(",
        "    if _differs(",
        "A member of a former generation gets no assignment.",
    ),
    Fault(
        "heartbeat-of-old-generation",
        "groups/membership.py",
        "    if generation != group.generation:\n",
        "    if False:\n",
        "A member of a former generation is told so with its next heartbeat.",
    ),
    Fault(
        "generation-not-raised",
        "groups/rebalance.py",
        "    group.generation += 1\n",
        "    group.generation = max(group.generation, 1)\n",
        "Each rebalance has a generation of its own.",
    ),
    Fault(
        "generation-not-loaded",
        "groups/group_metadata.py",
        "        self.generation = value.generation\n",
        "        self.generation = 0\n",
        "Generations go on where the last coordinator left them.",
    ),
    Fault(
        "silent-member-stays",
        "groups/rebalance.py",
        "    elif not member.awaits_response:\n",
        "    elif False:\n",
        "A member that is not heard of leaves the group.",
    ),
    Fault(
        "absent-member-stays",
        "groups/rebalance.py",
        "    for member in absent:\n",
        "    for member in list[Member]():\n",
        "A member that does not join a rebalance in time is out.",
    ),
    Fault(
        "stale-group-cache",
        "groups/group_coordinator.py",
        "        del self._shards[partition]\n"
        "        del self._by_number[shard.number]\n"
        "        shard.close()\n",
        "        pass\n",
        "A broker that leads the groups' partition again reads it again.",
    ),
    Fault(
        "late-resignation-obeyed",
        "groups/group_coordinator.py",
        "        if shard is None or (epoch is not None and epoch < shard.epoch):\n",
        "        if shard is None:\n",
        "A resignation of a former epoch does not end the present coordinator.",
        reason="The broker tells leaderships in their order and without epochs, so that none comes late.",
        test="groups/test_groups_group_coordinator.py::test_news_of_an_older_epoch_are_ignored",
    ),
    Fault(
        "groups-read-to-high-watermark",
        "broker/offsets_topic.py",
        "        end = int(found.log.end_offset)\n",
        "        end = int(found.high_watermark)\n",
        "A new coordinator reads the log to its end: what is acknowledged may lie above its high watermark.",
    ),
    Fault(
        "positions-outlive-topic",
        "groups/group_metadata_manager.py",
        "        records = [\n"
        "            record for group in self.groups.values()"
        " for record in offset_commits.tombstones(group, topics)\n"
        "        ]\n",
        "        records: list[OffsetsRecord] = []\n",
        "What was committed for a topic goes with the topic.",
    ),
    Fault(
        "stable-positions-not-awaited",
        "groups/group_coordinator.py",
        "            await shard.appends_ended()\n",
        "            pass\n",
        "With require_stable a group's position is told after the commits under way.",
        reason="Simulated clients ask without require_stable, which is for transactions.",
        test="groups/test_groups_group_coordinator.py::test_nothing_is_answered_before_it_is_committed",
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
        "An assignment counts in the generation for which it was made.",
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
)
