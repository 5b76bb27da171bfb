"""The planted faults of losses: the handling of loss reports, and failed syncs during a stop."""

from __future__ import annotations

from typing import Final

from planting import Fault

_LOOK: Final = "await context.parts.refresh_brokers()\n"

LOSSES: Final = (
    Fault(
        "requested-election-without-registrations",
        "controller/leader_election_requests.py",
        f"        {_LOOK}        again = dict",
        "        again = dict",
        "The controller reads the registrations before an election that an operator requests.",
    ),
    Fault(
        "leader-balance-without-registrations",
        "controller/leader_election_requests.py",
        f"            {_LOOK}            percentage",
        "            percentage",
        "The controller reads the registrations before it returns leadership to preferred replicas.",
    ),
    Fault(
        "renewed-registration-leads-after-failed-write",
        "controller/controller_context.py",
        "                stopping=self.stopping() | renewed,\n",
        "                stopping=self.stopping(),\n",
        "After a failed write a broker with a new registration does not lead before its losses are"
        " processed.",
        reason="The response to a write that left a partition without a leader must be lost, and the broker"
        " must return with a loss before the next change.",
        test="controller/test_controller_unanswered.py"
        "::test_a_restarted_broker_with_losses_is_not_elected_after_a_store_outage",
    ),
    Fault(
        "recovery-without-registrations",
        "controller/unclean_recovery.py",
        f"            {_LOOK}",
        "",
        "The controller reads the registrations before the recovery of a partition.",
    ),
    Fault(
        "reassignment-ends-without-registrations",
        "controller/reassignment_requests.py",
        f"        {_LOOK}        plans = self._planned()\n",
        "        plans = self._planned()\n",
        "The controller reads the registrations before a reassignment removes replicas.",
    ),
    Fault(
        "reassignment-starts-without-registrations",
        "controller/reassignment_requests.py",
        f"            {_LOOK}            if node is not None and",
        "            if node is not None and",
        "The controller reads the registrations before it starts a reassignment, which may complete at once.",
    ),
    Fault(
        "loss-counts-for-later-partitions",
        "controller/lost_replica_reports.py",
        "        if state is not None and state.creation_id > _reported_at(image.brokers[broker]):\n",
        "        if False:\n",
        "A loss report does not count for partitions that were created after it.",
    ),
    Fault(
        "losses-of-new-registration-count-for-new-topics",
        "controller/failover.py",
        "        losses = await reported_losses(context.store, image, unhandled)\n",
        "        losses = {one: living[one].lost for one in unhandled if not living[one].lost.is_none}\n",
        "A topic may be created on a broker with a new registration before the controller reads its losses.",
        reason="A topic must be created between a registration with losses and the next read of the"
        " registrations.",
        test="controller/test_controller_unclean_recovery.py"
        "::test_a_topic_created_before_a_restart_was_noticed_has_lost_nothing",
    ),
    Fault(
        "unconfirmed-removal-reports-losses-again",
        "server/broker_registration.py",
        "            self._registration = cleared = registration._replace(lost=NOTHING_LOST)\n"
        "            self._is_clearing = True\n",
        "            cleared = registration._replace(lost=NOTHING_LOST)\n"
        "            self._is_clearing = True\n",
        "Losses whose removal from the registration has no response are not reported again.",
    ),
    Fault(
        "outdated-states-in-full-request",
        "broker/controller_request_batch.py",
        "            self.states.clear()\n            self.new_replicas.clear()\n"
        "            self.metadata.clear()\n",
        "            pass\n",
        "A full LeaderAndIsr contains no state that was pending before.",
        reason="The controller must treat a live broker as dead, and a partition must be reassigned from it"
        " before the full request.",
        test="broker/test_controller_channel_manager.py"
        "::test_a_full_batch_replaces_the_pending_states_of_a_broker",
    ),
    Fault(
        "eligible-with-enough-in-sync",
        "controller/leader_election.py",
        "    if partition.leader != NO_BROKER and len(partition.isr) >= minimum:\n",
        "    if False:\n",
        "No replica is eligible while enough replicas are in sync, for any list in the store.",
        reason="An administrator must write a lower minimum directly to the store, and the leader must"
        " commit by it and end, before a controller has removed the list.",
        test="controller/test_controller_leader_election.py"
        "::test_a_replica_eligible_under_a_higher_minimum_is_not_elected_under_a_lower_one",
    ),
    Fault(
        "log-of-former-topic-stays",
        "log/log_directories.py",
        "        return self.may_rebuild(topic_partition) or topic_partition in self.of_deleted_topics",
        "        return topic_partition in self.of_deleted_topics",
        "A replica that was reported as missing starts empty in place of the log of a former topic.",
        reason="A follower starts empty anyway: the only replica of a topic must be offline while the topic"
        " is deleted and recreated.",
        test="replication/test_replica_manager.py"
        "::test_a_leader_replaces_the_log_of_a_former_topic_with_an_empty_log",
    ),
    Fault(
        "log-of-deleted-topic-not-replaced",
        "server/lost_replica_detection.py",
        "    logs.dirs.of_deleted_topics = frozenset(key for key in logs.logs if key.topic not in others)\n",
        "",
        "The log of a topic that was deleted before a start does not keep a later topic of the same name"
        " offline.",
        reason="The topic must be recreated between the start of the broker and its registration, while its"
        " former session lasts.",
        test="server/test_lost_replica_detection.py::test_finds_the_logs_of_deleted_topics",
    ),
    Fault(
        "truncated-log-not-flushed-at-shutdown",
        "log/durability.py",
        "        self._clean_end_offset = -1  # The log may reach the same end again with other records.\n",
        "",
        "The next shutdown flushes a truncated log, for any log end offset.",
        reason="It needs a clean shutdown, then another record at the same offset, then a power failure"
        " after the next shutdown.",
        test="log/test_log_crash.py::test_a_clean_shutdown_syncs_different_records_with_the_same_end_offset",
    ),
    Fault(
        "emptied-log-not-flushed-at-shutdown",
        "log/durability.py",
        "        self._clean_end_offset = -1\n"
        "        self.recovery_point = min(self.recovery_point, base_offset)",
        "        self.recovery_point = min(self.recovery_point, base_offset)",
        "The next shutdown flushes an emptied log, for any log end offset.",
        reason="It needs a clean shutdown, then another record at the same offset, then a power failure"
        " after the next shutdown.",
        test="log/test_log_crash.py::test_a_clean_shutdown_syncs_different_records_with_the_same_end_offset",
    ),
    Fault(
        "failed-flush-ignored-in-shutdown",
        "replication/log_flusher.py",
        "await asyncio.shield(self.under_way.start(self._flush_one(one, job)))",
        "await self._flush_one(one, job)",
        "A shutdown that cancels the waiting requests detects a failed flush.",
    ),
    Fault(
        "failed-flush-not-recorded-before-shutdown",
        "replication/replica_manager.py",
        "        # The failed syncs among these tasks have started to mark their directories.\n"
        "        await asyncio.gather(*self._marking, return_exceptions=True)\n",
        "",
        "A shutdown with a failed flush writes no clean shutdown file.",
        reason="The shutdown must end during the write of the files in a thread.",
        test="replication/test_failed_syncs.py::test_shutdown_waits_until_a_failed_sync_is_recorded",
    ),
    Fault(
        "controller-replaced-while-reading",
        "controller/controller_context.py",
        "        self.election.check_active()  # Without a write, the session is unverified so far.\n",
        "",
        "A controller that was replaced while it read the store writes nothing.",
        reason="A session must end while a new controller reads a store that needs no write.",
        test="controller/test_controller_faults.py"
        "::test_a_controller_replaced_while_it_reads_the_store_announces_nothing",
    ),
)
