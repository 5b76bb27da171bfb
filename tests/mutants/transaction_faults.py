"""The planted faults of transactions: coordinator, markers, fencing, producer state, pending offsets."""

from __future__ import annotations

from typing import Final

from planting import Fault

_KIND: Final = "transactions"
_MANAGER: Final = "transactions/transaction_state_manager.py"
_METADATA: Final = "transactions/transaction_metadata.py"
_CHANNELS: Final = "transactions/transaction_marker_channel_manager.py"
_MARKERS: Final = "broker/transaction_markers.py"
_PRODUCERS: Final = "log/producer_state_manager.py"
_OPEN: Final = "log/partition_transactions.py"
_PRODUCE: Final = "broker/transaction_guard.py"
_GROUPS: Final = "groups/group_metadata_manager.py"


def _fault(name: str, file: str, old: str, new: str, rule: str, reason: str = "", test: str = "") -> Fault:
    return Fault(name, file, old, new, rule, reason, test, _KIND)


COORDINATOR: Final = (
    _fault(
        "transaction-request-of-fenced-producer",
        _MANAGER,
        "        if found.producer_epoch != producer.epoch or found.is_kept:\n",
        "        if found.is_kept:\n",
        "A fenced producer adds no partitions to a transaction.",
    ),
    _fault(
        "partitions-added-to-decided-transaction",
        _MANAGER,
        "        elif self._is_busy(name) or before.state in PREPARED:\n"
        "            refusal = AddPartitionsResult",
        "        elif self._is_busy(name):\n            refusal = AddPartitionsResult",
        "A transaction whose markers are being written gets no further partitions.",
    ),
    _fault(
        "partitions-added-while-busy",
        _MANAGER,
        "        elif self._is_busy(name) or before.state in PREPARED:\n"
        "            refusal = AddPartitionsResult",
        "        elif before.state in PREPARED:\n            refusal = AddPartitionsResult",
        "A transactional id handles one change at a time.",
    ),
    _fault(
        "unknown-partition-verified",
        _MANAGER,
        "            one: ErrorCode.NONE if one in found.partitions else ErrorCode.TRANSACTION_ABORTABLE\n",
        "            one: ErrorCode.NONE\n",
        "A partition is verified only if it is in the transaction.",
    ),
    _fault(
        "decided-transaction-verified",
        _MANAGER,
        "        if found.state in PREPARED:\n            return dict.fromkeys(",
        "        if False:\n            return dict.fromkeys(",
        "No partition is verified while the markers of its transaction are being written.",
    ),
    _fault(
        "end-by-fenced-producer",
        _MANAGER,
        "        if not _is_valid_epoch(found.state, is_current, is_repeated, has_version_2):\n",
        "        if False:\n",
        "A fenced producer ends no transaction.",
    ),
    _fault(
        "end-while-busy",
        _MANAGER,
        "        if self._is_busy(request.transactional_id):\n            return ErrorCode.CONCURRENT",
        "        if False:\n            return ErrorCode.CONCURRENT",
        "A transaction ends after the write before it has ended.",
    ),
    _fault(
        "commit-of-aborted-transaction-confirmed",
        _MANAGER,
        "            return (ErrorCode.NONE if same else ErrorCode.INVALID_TXN_STATE), same\n",
        "            return ErrorCode.NONE, True\n",
        "A request for the other end than that of the transaction is refused.",
    ),
    _fault(
        "new-producer-keeps-open-transaction",
        _MANAGER,
        "        elif before.state is TransactionState.ONGOING:\n            self._fence",
        "        elif False:\n            self._fence",
        "A new producer has the transaction of the former one aborted.",
    ),
    _fault(
        "new-producer-with-the-same-epoch",
        _METADATA,
        "    epoch = before.producer_epoch + 1\n",
        "    epoch = max(before.producer_epoch, 0)\n",
        "A new producer has the next epoch.",
    ),
    _fault(
        "fence-without-epoch",
        _METADATA,
        "        producer_epoch=min(before.producer_epoch + 1, FENCED_EPOCH), last",
        "        producer_epoch=before.producer_epoch, last",
        "The abort of a transaction by the coordinator fences its producer.",
    ),
    _fault(
        "any-epoch-goes-on",
        _METADATA,
        "    elif expected_epoch == before.producer_epoch or before.producer_epoch == NO_PRODUCER_EPOCH:\n",
        "    elif True:\n",
        "Only the last producer goes on after an error (KIP-360).",
    ),
    _fault(
        "partitions-replaced",
        _METADATA,
        "        partitions=partitions if begins else before.partitions | partitions,\n",
        "        partitions=partitions,\n",
        "Partitions are added to those of the transaction.",
    ),
    _fault(
        "version-2-keeps-epoch",
        _METADATA,
        "    if client_version >= EPOCH_BUMP_VERSION:\n        epoch, last",
        "    if False:\n        epoch, last",
        "With transaction version 2 each transaction has its own epoch.",
    ),
    _fault(
        "decision-not-resumed",
        _MANAGER,
        "            if name in self.prepared and name not in self._unmarked:\n",
        "            if False:\n",
        "A new coordinator writes the markers of decided transactions.",
    ),
    _fault(
        "complete-after-first-marker",
        _MANAGER,
        "        unmarked.discard(partition)\n        if not unmarked:\n",
        "        unmarked.discard(partition)\n        if True:\n",
        "A transaction is complete after the last of its markers.",
    ),
    _fault(
        "marker-of-another-transaction-counts",
        _MANAGER,
        "        if unmarked is None or found is None or _producer_of(found) != producer:\n",
        "        if unmarked is None or found is None:\n",
        "A marker counts for the transaction with its epoch.",
        reason="A transaction ends once all its markers are written, so that none of them comes later.",
        test="transactions/test_transaction_state_manager.py"
        "::test_a_marker_of_another_transaction_does_not_count",
    ),
    _fault(
        "decision-acts-before-commit",
        _MANAGER,
        "        then = EndStored(waiter=waiter, transactional_id=name, metadata=after)\n"
        "        self._append(name, after, then)\n",
        "        then = EndStored(waiter=waiter, transactional_id=name, metadata=after)\n"
        "        self._append(name, after, then)\n"
        "        self._send_markers(name, after, now)\n",
        "Markers are written after the decision is committed.",
    ),
    _fault(
        "failed-decision-acts",
        _MANAGER,
        "            if error is ErrorCode.NONE and found is not None:\n                self._send_markers",
        "            if found is not None:\n                self._send_markers",
        "A decision whose write has failed has no markers.",
    ),
    _fault(
        "late-write-not-busy",
        _MANAGER,
        "        elif isinstance(then, EndStored) and then.waiter is not None:\n",
        "        elif isinstance(then, EndStored) and then.waiter is not None:\n"
        "            self.pending.discard(then.transactional_id)\n",
        "An id stays busy until its write has ended.",
    ),
    _fault(
        "completion-not-repeated",
        _MANAGER,
        "SetTimer(key=key, deadline_ms=now.monotonic_ms + COMPLETION_RETRY_MS)",
        "SetTimer(key=key, deadline_ms=now.monotonic_ms + 1_000_000)",
        "The write that completes a transaction is repeated.",
    ),
    _fault(
        "waiting-requests-write-again-after-failure",
        _MANAGER,
        "        if error is ErrorCode.NONE:\n            self._run_deferred",
        "        if True:\n            self._run_deferred",
        "Requests that wait for a failed write are refused.",
    ),
    _fault(
        "transactions-never-time-out",
        _MANAGER,
        "            if one.has_timeout and one.start_ms + one.timeout_ms < now.wall_ms and not",
        "            if one.has_timeout and one.start_ms + one.timeout_ms < 0 and not",
        "A transaction is aborted after its timeout.",
    ),
    _fault(
        "two-phase-commit-times-out",
        "broker/handlers/init_producer_id.py",
        "timeout_ms=NO_TIMEOUT_MS if request.enable2_pc else request.transaction_timeout_ms,",
        "timeout_ms=request.transaction_timeout_ms,",
        "A transaction of a two-phase commit does not time out (KIP-939).",
    ),
    _fault(
        "prepared-transaction-not-kept",
        _MANAGER,
        "        elif before.state is TransactionState.ONGOING and request.keeps_prepared:\n",
        "        elif False:\n",
        "A new producer can keep the prepared transaction of the former one (KIP-939).",
    ),
    _fault(
        "kept-transaction-with-the-epoch-of-its-producer",
        _METADATA,
        "        ProducerIdAndEpoch(latest.producer_id, latest.epoch + 1)\n        if producer_id",
        "        ProducerIdAndEpoch(latest.producer_id, latest.epoch)\n        if producer_id",
        "The former producer of a kept transaction is fenced.",
    ),
    _fault(
        "time-out-while-busy",
        _MANAGER,
        " < now.wall_ms and not self._is_busy(name):\n",
        " < now.wall_ms:\n",
        "A transaction does not time out while its end is being written.",
    ),
)

MARKERS: Final = (
    _fault(
        "failed-marker-counts",
        _CHANNELS,
        "        else:\n            self._retry(one)\n\n    def _written",
        "        else:\n            self._written(one)\n\n    def _written",
        "A marker that could not be written is sent again.",
    ),
    _fault(
        "unanswered-marker-counts",
        _CHANNELS,
        "errors.get(key, ErrorCode.REQUEST_TIMED_OUT)",
        "errors.get(key, ErrorCode.NONE)",
        "A marker without a response is sent again.",
    ),
    _fault(
        "marker-without-leader-counts",
        _CHANNELS,
        "            else:\n                self._retry(one)\n",
        "            else:\n                self._written(one)\n",
        "A marker waits for a leader of its partition.",
    ),
    _fault(
        "uncommitted-marker-counts",
        _MARKERS,
        "            self._waiting.append((len(self.errors), commit))\n",
        "            asyncio.gather(commit, return_exceptions=True)\n",
        "A marker counts when it is committed.",
    ),
    _fault(
        "marker-without-coordinator-epoch",
        _MARKERS,
        "    return MarkerToWrite(marker.producer, marker.is_commit, one.coordinator_epoch(), marker",
        "    return MarkerToWrite(marker.producer, marker.is_commit, 0, marker",
        "A marker has the epoch of its coordinator.",
    ),
    _fault(
        "marker-of-former-coordinator",
        _PRODUCERS,
        "        if coordinator_epoch < entry.coordinator_epoch:\n",
        "        if False:\n",
        "A partition refuses markers of a former coordinator.",
    ),
    _fault(
        "coordinator-epoch-forgotten",
        _PRODUCERS,
        "        entry.coordinator_epoch = marker.coordinator_epoch\n",
        "",
        "A partition knows the epoch of the coordinator of the last marker.",
    ),
    _fault(
        "marker-of-fenced-producer",
        _PRODUCERS,
        "        if epoch < entry.epoch or is_late:\n",
        "        if is_late:\n",
        "A partition refuses markers of an earlier epoch.",
    ),
    _fault(
        "late-marker-ends-next-transaction",
        _PRODUCERS,
        "        if epoch < entry.epoch or is_late:\n",
        "        if epoch < entry.epoch:\n",
        "A repeated marker does not end the next transaction (KIP-890).",
    ),
)

PARTITIONS: Final = (
    _fault(
        "batch-of-fenced-producer",
        _PRODUCERS,
        "        if epoch < entry.epoch:\n",
        "        if False:\n",
        "A partition refuses batches of an earlier epoch.",
        reason="The coordinator refuses the partition of such a batch first, and a marker voids its answer.",
        test="log/test_log_producers.py"
        "::test_an_old_producer_epoch_is_fenced_and_a_new_one_starts_at_sequence_0",
    ),
    _fault(
        "marker-without-epoch",
        _PRODUCERS,
        "        if entry.epoch != epoch:\n",
        "        if False:\n",
        "A marker fences the epochs before its own.",
    ),
    _fault(
        "verification-survives-marker",
        _PRODUCERS,
        "            if guard.is_voided_by(epoch):\n",
        "            if False:\n",
        "A marker voids the verifications before it.",
    ),
    _fault(
        "verification-not-checked",
        _PRODUCE,
        "    if guard is not None and not guard.end():\n",
        "    if False:\n",
        "A batch is appended only if its verification is still valid.",
    ),
    _fault(
        "batch-not-verified",
        _PRODUCE,
        "            if batch.is_transactional and not state.has_transaction(",
        "            if False and not state.has_transaction(",
        "A batch that begins a transaction in a partition is verified.",
    ),
    _fault(
        "refused-verification-ignored",
        "broker/add_partitions_to_txn_manager.py",
        "            if error is ErrorCode.NONE:\n",
        "            if True:\n",
        "A batch is refused if its partition is not in the transaction.",
    ),
    _fault(
        "open-transaction-not-in-snapshot",
        _PRODUCERS,
        "                    entry.transaction_first_offset,\n                )",
        "                    NO_OFFSET,\n                )",
        "The snapshot of producers has their open transactions.",
    ),
    _fault(
        "open-transaction-not-restored",
        _PRODUCERS,
        "            if entry.transaction_first_offset >= 0:\n                self.transactions.begin(",
        "            if False:\n                self.transactions.begin(",
        "A start knows the open transactions of the snapshot.",
    ),
    _fault(
        "abort-not-indexed",
        _PRODUCERS,
        "        if marker.control_type != ABORT or entry is None or",
        "        if True or entry is None or",
        "An abort has an entry in the index of aborted transactions.",
    ),
    _fault(
        "stable-before-marker-is-committed",
        _OPEN,
        "        while seen < len(ended) and ended[seen][1] < high_watermark:\n",
        "        while seen < len(ended):\n",
        "A transaction is unstable until its marker is committed.",
    ),
    _fault(
        "stable-after-oldest-transaction",
        _OPEN,
        "        for first, producer_id in self._open.items():\n",
        "        for first, producer_id in reversed(self._open.items()):\n",
        "The last stable offset waits for the oldest open transaction.",
    ),
    _fault(
        "ended-transaction-stays-open",
        _OPEN,
        "        self._open.pop(int(first_offset), None)\n",
        "",
        "A marker ends the transaction of its producer.",
    ),
    _fault(
        "truncation-keeps-transactions",
        "log/log.py",
        "        self.producer_state = producers\n\n    def _forget",
        "        producers.transactions = self.producer_state.transactions\n"
        "        self.producer_state = producers\n\n    def _forget",
        "A truncation removes the transactions that began after it.",
    ),
    _fault(
        "state-read-again-keeps-transactions",
        _PRODUCERS,
        "        self.entries.clear()\n        self.transactions.clear()\n        self.end_offset = 0\n",
        "        self.entries.clear()\n        self.end_offset = 0\n",
        "A state that is read again has no transactions that were read before.",
        reason="A recovery reads it again only after a batch with a wrong offset, which no torn write of"
        " the simulated disks leaves.",
        test="log/test_log_producers.py::test_a_state_that_is_read_again_has_no_earlier_transactions",
    ),
)

PENDING_OFFSETS: Final = (
    _fault(
        "transactional-offsets-at-once",
        "groups/offset_commits.py",
        "    if request.producer is not None:\n        producer_id",
        "    if False:\n        producer_id",
        "Offsets in a transaction take effect with its commit.",
    ),
    _fault(
        "aborted-offsets-take-effect",
        "groups/transactional_offsets.py",
        "            if is_commit and offset is not None:\n                topic, partition = key\n",
        "            if offset is not None:\n                topic, partition = key\n",
        "Offsets of an aborted transaction have no effect.",
    ),
    _fault(
        "failed-marker-commits-offsets",
        _GROUPS,
        "        if error is ErrorCode.NONE:\n            self.transaction_ended",
        "        if True:\n            self.transaction_ended",
        "A marker that is not in the log ends no transaction of offsets.",
    ),
    _fault(
        "unstable-offsets-returned",
        "broker/handlers/offset_fetch.py",
        "    if (name, index) in unstable:\n",
        "    if False:\n",
        "With require_stable no offset is returned while a transaction has another one.",
    ),
    _fault(
        "loaded-abort-commits-offsets",
        "groups/offsets_loader.py",
        "int(stored.producer_id), kind == COMMIT)",
        "int(stored.producer_id), True)",
        "A new coordinator drops the offsets of aborted transactions.",
    ),
    _fault(
        "loaded-offsets-take-effect-at-once",
        "groups/offsets_loader.py",
        "    if stored.is_transactional and isinstance(change, OffsetRecord):\n",
        "    if False:\n",
        "A new coordinator keeps the offsets of open transactions pending.",
    ),
    _fault(
        "offsets-not-verified",
        "broker/handlers/txn_offset_commit.py",
        "            if error is not ErrorCode.NONE:\n                return dict.fromkeys(offsets, error)\n"
        "        return await",
        "            if False:\n                return dict.fromkeys(offsets, error)\n        return await",
        "Offsets are refused if their partition is not in the transaction.",
    ),
)

COMPACTED: Final = (
    _fault(
        "aborted-records-not-compacted",
        "log/cleaned_transaction_metadata.py",
        "        if producer_id in self._aborted:\n",
        "        if False:\n",
        "Compaction removes the records of aborted transactions.",
    ),
    _fault(
        "aborted-records-replace-others",
        "log/cleaner_passes.py",
        "                elif not (batch.is_transactional and transactions.is_aborted(batch)):\n",
        "                elif not transactions.is_aborted(batch) or True:\n",
        "A record of an aborted transaction replaces no record of its key.",
    ),
    _fault(
        "open-transactions-compacted",
        "log/log_cleaner_manager.py",
        "min(int(log.last_stable_offset(high_watermark)), ",
        "min(high_watermark, ",
        "Compaction stops at the last stable offset: an open transaction may be aborted.",
    ),
    _fault(
        "marker-removed-with-records",
        "log/cleaner_passes.py",
        "            discarded = marker_may_go and batch.has_delete_horizon and batch.base",
        "            discarded = marker_may_go or batch.has_delete_horizon and batch.base",
        "A marker stays for delete.retention.ms after the last record of its transaction.",
    ),
)

TRANSACTIONS: Final = (*COORDINATOR, *MARKERS, *PARTITIONS, *PENDING_OFFSETS, *COMPACTED)
