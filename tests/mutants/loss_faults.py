"""The planted faults of losses: the handling of loss reports, and failed syncs during a stop."""

from __future__ import annotations

from typing import Final

from planting import Fault

_LOOK: Final = "await context.refresh_brokers()\n"

LOSSES: Final = (
    Fault(
        "elects-as-asked-without-look",
        "controller/leader_election_requests.py",
        f"        {_LOOK}        again = dict",
        "        again = dict",
        "The controller reads the registrations before an election that somebody asked for.",
    ),
    Fault(
        "balances-without-look",
        "controller/leader_election_requests.py",
        f"            {_LOOK}            percentage",
        "            percentage",
        "The controller reads the registrations before leaderships return to preferred replicas.",
    ),
    Fault(
        "renewed-registration-leads-after-failed-write",
        "controller/controller_context.py",
        "                stopping=self.stopping() | renewed,\n",
        "                stopping=self.stopping(),\n",
        "After a write that failed a broker that has registered anew leads nothing before its losses were"
        " heeded.",
        reason="The answer to a write that left a partition without a leader has to be lost, and the"
        " broker to come back with a loss before the next change.",
        test="controller/test_controller_unanswered.py"
        "::test_a_restarted_broker_with_losses_is_not_elected_after_a_store_outage",
    ),
    Fault(
        "recovers-without-look",
        "controller/unclean_recovery.py",
        f"            {_LOOK}",
        "",
        "The controller reads the registrations before a partition recovers.",
    ),
    Fault(
        "move-ends-without-look",
        "controller/reassignment_requests.py",
        f"        {_LOOK}        plans = self._planned()\n",
        "        plans = self._planned()\n",
        "The controller reads the registrations before a move drops replicas.",
    ),
    Fault(
        "move-begins-without-look",
        "controller/reassignment_requests.py",
        f"            {_LOOK}            if node is not None and",
        "            if node is not None and",
        "The controller reads the registrations before it begins a move, which may end at once.",
    ),
    Fault(
        "loss-reported-of-what-was-made-since",
        "controller/lost_replica_reports.py",
        "        if state is not None and state.creation_id > _reported_at(image.brokers[broker]):\n",
        "        if False:\n",
        "A report of losses says nothing of partitions that were made after it.",
    ),
    Fault(
        "losses-of-new-registration-count-for-new-topics",
        "controller/failover.py",
        "        losses = await reported_losses(context.store, image, unhandled)\n",
        "        losses = {one: living[one].lost for one in unhandled if not living[one].lost.is_none}\n",
        "A topic may be made on a broker that registered anew, before the controller reads its report.",
        reason="A topic has to be made between a registration with losses and the first look at it.",
        test="controller/test_controller_unclean_recovery.py"
        "::test_a_topic_created_before_a_restart_was_noticed_has_lost_nothing",
    ),
    Fault(
        "unanswered-removal-reports-losses-again",
        "server/broker_registration.py",
        "            self._registration = cleared = registration._replace(lost=NOTHING_LOST)\n"
        "            self._is_clearing = True\n",
        "            cleared = registration._replace(lost=NOTHING_LOST)\n"
        "            self._is_clearing = True\n",
        "Losses whose removal from the registration was not answered are not reported again.",
    ),
    Fault(
        "outdated-states-in-whole-command",
        "broker/controller_request_batch.py",
        "            self.states.clear()\n            self.new_replicas.clear()\n"
        "            self.metadata.clear()\n",
        "            pass\n",
        "What a broker is told as a whole holds nothing that was pending before.",
        reason="A broker has to be taken for dead while it lives, and a partition to move away from it"
        " before it is told everything.",
        test="broker/test_controller_channel_manager.py"
        "::test_a_full_batch_replaces_the_pending_states_of_a_broker",
    ),
    Fault(
        "eligible-beside-enough-in-sync",
        "controller/leader_election.py",
        "    if partition.leader != NO_BROKER and len(partition.isr) >= minimum:\n",
        "    if False:\n",
        "No replica is eligible beside enough replicas in sync, whatever list of them is in the store.",
        reason="Somebody has to lower the minimum past all brokers, and the leader to commit by it and to"
        " end, before a controller has emptied the list.",
        test="controller/test_controller_leader_election.py"
        "::test_a_replica_eligible_under_a_higher_minimum_is_not_elected_under_a_lower_one",
    ),
    Fault(
        "former-topics-missing-log-stays",
        "log/log_directories.py",
        "        return self.may_rebuild(topic_partition) or topic_partition in self.of_deleted_topics",
        "        return topic_partition in self.of_deleted_topics",
        "A replica that was reported missing begins empty over the log of a former topic.",
        reason="A replica that follows begins empty in any case: the only replica of a topic has to be"
        " away while the topic is deleted and made anew.",
        test="replication/test_replica_manager.py"
        "::test_a_leader_replaces_the_log_of_a_former_topic_with_an_empty_log",
    ),
    Fault(
        "log-of-deleted-topic-not-replaced",
        "server/lost_replicas.py",
        "    logs.dirs.of_deleted_topics = frozenset(key for key in logs.logs if key.topic not in others)\n",
        "",
        "A log of a topic that was deleted before a start keeps no later topic of the name offline.",
        reason="The topic has to be made again between the broker's start and its registration, while its"
        " former session lasts.",
        test="server/test_lost_replicas.py::test_finds_the_logs_of_deleted_topics",
    ),
    Fault(
        "cut-log-not-synced-at-stop",
        "log/durability.py",
        "        self._clean_end_offset = -1  # The log may reach the same end again with other records.\n",
        "",
        "A log that was cut is synced by the next stop, wherever it ends then.",
        reason="It takes a stop in order, then another record at the same offset, then a power cut after the"
        " next stop.",
        test="log/test_log_crash.py::test_a_clean_shutdown_syncs_different_records_with_the_same_end_offset",
    ),
    Fault(
        "emptied-log-not-synced-at-stop",
        "log/durability.py",
        "        self._clean_end_offset = -1\n"
        "        self.recovery_point = min(self.recovery_point, base_offset)",
        "        self.recovery_point = min(self.recovery_point, base_offset)",
        "A log that was emptied is synced by the next stop, wherever it ends then.",
        reason="It takes a stop in order, then another record at the same offset, then a power cut after the"
        " next stop.",
        test="log/test_log_crash.py::test_a_clean_shutdown_syncs_different_records_with_the_same_end_offset",
    ),
    Fault(
        "failed-sync-unheard-in-stop",
        "replication/log_flusher.py",
        "await asyncio.shield(self.under_way.start(self._flush_one(one, job)))",
        "await self._flush_one(one, job)",
        "A stop hears of a sync that fails while it cancels whoever waits for it.",
    ),
    Fault(
        "failed-sync-not-marked-before-stop",
        "replication/replica_manager.py",
        "        # The failed syncs among these tasks have started to mark their directories.\n"
        "        await asyncio.gather(*self._marking, return_exceptions=True)\n",
        "",
        "A stop that hears of a sync that failed leaves no mark of a clean shutdown.",
        reason="The stop has to end in the moment that a thread takes to write the marks.",
        test="replication/test_failed_syncs.py::test_shutdown_waits_until_a_failed_sync_is_recorded",
    ),
    Fault(
        "office-lost-while-read-begins",
        "controller/controller_context.py",
        "        self.check_active()  # Without a write, the session is unverified so far.\n",
        "",
        "A controller that lost the office while it read the store writes nothing.",
        reason="A session has to end while a new controller reads the store, which has nothing to write.",
        test="controller/test_controller_faults.py"
        "::test_a_controller_replaced_while_it_reads_the_store_announces_nothing",
    ),
)
