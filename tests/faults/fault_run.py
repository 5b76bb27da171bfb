"""Causes faults in a cluster under load, from a seed, and checks the history of its clients.

    make faults FAULTS=100 SEED=1 KINDS=kill-leader,cut-pair

The run uses the faults that the machine permits (only root may cut networks, fill disks and cut their power),
and prints the omitted ones. The faults are divided into runs, each with a separate cluster. A run without
errors is not repeated for the same source: an interrupted series continues where it stopped. A run with
errors keeps its files in a directory that it names; otherwise it removes them.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import statistics
import struct
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from fault_checker import check
from fault_history import History, Places, read
from fault_kinds import TOGETHER, Kind, Target, possible, together
from fault_load import Load, read_all
from fault_results import Results, source_digest
from fault_stage import BROKERS, Stage, stage

TOPIC = "faults"
LOOSE = "faults-loose"
"""The topic that is not synced with each message."""
PARTITIONS = 4
LOOSE_PARTITIONS = 2
PAUSE_S = 0.0125
"""Of each writer, by partition and message: the number of messages does not grow with the partitions."""
SETTLE_S = 90.0
OFFSETS = "__consumer_offsets"
NEVER = str(2**63 - 1)
LOG_OVERHEAD, LAST_OFFSET_DELTA = 12, 23
"""Of a batch: the bytes before its length counts, and where the last record's offset is."""
ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "build" / "faults"
SOURCES = ("src/tidemill", "tests/faults")
WRONG_SHOWN = 20
RUN_FAULTS = 20
"""Faults of one run."""


class Done(NamedTuple):
    """A fault and its cost. Times in seconds."""

    kind: str
    detail: str
    gap_s: float
    """The longest time in which some partition acknowledged nothing, until all was in sync again."""
    settled_s: float
    """From the end of the fault until all was in sync and written to."""


class Verdict(NamedTuple):
    """The result of a run."""

    done: list[Done]
    wrong: list[str]
    counts: dict[str, int]


class Run:
    """A cluster, its clients, and its faults."""

    def __init__(
        self, place: Stage, base: Path, random: Random, partitions: int, say: Callable[[str], None]
    ) -> None:
        self.stage = place
        self.base = base
        self.synced = Places(TOPIC, partitions)
        self.loose = Places(LOOSE, LOOSE_PARTITIONS, partitions)
        self.target = Target(place, random, TOPIC, self._note_loss)
        self.history = History(base / "history.jsonl", partitions + LOOSE_PARTITIONS)
        self.done: list[Done] = []
        self.wrong: list[str] = []
        self.is_settled = False
        """Whether all was in sync after the last fault."""
        self._say = say

    def begin(self) -> None:
        """Creates the topics, and waits until the clients have started."""
        with self.stage.admin() as admin:
            admin.create_topic(TOPIC, self.synced.partitions, BROKERS)
            admin.create_topic(LOOSE, LOOSE_PARTITIONS, BROKERS, configs={"flush.messages": NEVER})
        pause_s = PAUSE_S * self.synced.partitions
        self.load = Load(self.history, self.stage, self.synced, self.loose, pause_s)
        self.load.start()
        self._settle("the start")
        self.history.add("settled", kind="the start")

    def _note_loss(self, numbers: Iterable[int], what: str) -> None:
        self.history.add("loss", brokers=list(numbers), what=what)

    def _settle(self, after: str) -> bool:
        began = self.history.now
        left = self.stage.await_in_sync([TOPIC, LOOSE, OFFSETS], SETTLE_S)
        while not left and not self.history.acknowledged_since(began):
            if self.history.now > began + SETTLE_S:
                left = "a partition acknowledges nothing"
            time.sleep(0.02)
        if left:
            self.wrong.append(f"not settled {SETTLE_S:g} s after {after}: {left}")
        self.is_settled = not left
        return self.is_settled

    def do(self, name: str, kind: Kind) -> bool:
        """Runs one fault. Returns False if the cluster does not recover."""
        self.is_settled = False
        self.history.begin_gap()
        fault = kind(self.target)
        detail = next(fault)
        self.history.add("fault", kind=name, detail=detail)
        try:
            for _ in fault:
                pass
        except Exception as problem:  # noqa: BLE001 - whatever it is, the run tells of it
            self.wrong.append(f"{name} {detail}: {type(problem).__name__}: {problem}")
            return False
        self.history.add("healed", kind=name)
        healed = self.history.now
        is_settled = self._settle(f"{name} {detail} at {healed:.1f} s")
        self.history.add("settled", kind=name)
        one = Done(name, detail, self.history.gap(), self.history.now - healed)
        self.done.append(one)
        self._say(
            f"{self.history.now:7.1f} s  {name:28} {detail:30} gap {one.gap_s:5.2f} s, "
            f"settled after {one.settled_s:5.2f} s, {self.history.acknowledged} acknowledged"
        )
        self.wrong += [text for text in self.load.failures() if text not in self.wrong]
        return is_settled and not self.wrong

    def end(self) -> Verdict:
        """Stops the clients, reads all partitions, and checks the history."""
        held: dict[Places, list[range]] = {}
        if self.is_settled:
            self.load.end_writers()
            held = {
                one: read_all(self.stage.bootstrap, one, self.history) for one in (self.synced, self.loose)
            }
            self.load.end_readers(held[self.synced])
            self.wrong += [text for text in self.load.failures() if text not in self.wrong]
        self.history.close()
        for number, broker in self.stage.brokers.items():
            if broker.running and broker.stop() != 0:
                self.wrong.append(f"broker {number} did not stop in order")
        self.wrong += self.stage.complaints()
        counts: dict[str, int] = {}
        if held:
            for places, ranges in held.items():
                self.wrong += differing_replicas(self.stage, places, ranges)
            found, counted = check(read(self.history.path), self.load.known, self.loose.all)
            self.wrong += [f"{one.kind}: {one.text}" for one in found]
            counts = {**counted, "epoch changes": self.load.epoch_changes}
        if self.wrong:
            for number, broker in self.stage.brokers.items():
                # Its disk is removed with the stage.
                shutil.copytree(broker.data_dir, self.base / str(number) / "data", dirs_exist_ok=True)
        return Verdict(self.done, self.wrong, counts)


def differing_replicas(place: Stage, places: Places, held: list[range]) -> list[str]:
    """Returns partitions whose replicas differ; all brokers had a clean shutdown."""
    wrong = []
    for partition, offsets in enumerate(held):
        found = {}
        for number, broker in place.brokers.items():
            segments = sorted(Path(broker.data_dir, f"{places.topic}-{partition}").glob("*.log"))
            data = b"".join(segment.read_bytes() for segment in segments)
            found[number] = data[first_batch(data, offsets.start) :]
        if len(set(found.values())) != 1:
            sizes = {number: len(data) for number, data in found.items()}
            wrong.append(f"the replicas of {places.topic}-{partition} differ; bytes by broker: {sizes}")
    return wrong


def first_batch(data: bytes, offset: int) -> int:
    """Returns the base offset of the batch with an offset: earlier batches may be deleted, or not yet."""
    position = 0
    while position < len(data):
        base, size = struct.unpack_from(">qi", data, position)
        (last,) = struct.unpack_from(">i", data, position + LAST_OFFSET_DELTA)
        if base + last >= offset:
            break
        position += LOG_OVERHEAD + size
    return position


def do_faults(
    base: Path,
    seed: int,
    faults: int,
    kinds: Sequence[str],
    say: Callable[[str], None],
    partitions: int = PARTITIONS,
) -> Verdict:
    """Runs ``faults`` faults of these kinds (of all possible kinds by default) from ``seed``."""
    random = Random(seed)
    known, reasons = possible()
    for reason in reasons:
        say(reason)
    chosen = {name: kind for name, kind in known.items() if not kinds or name in kinds}
    if not kinds or TOGETHER in kinds:
        chosen[TOGETHER] = lambda target: together(target, known)
    with stage(base, isolated=True, log__flush__interval__messages="1") as place:
        run = Run(place, base, random, partitions, say)
        names: list[str] = []
        try:
            run.begin()
            for _ in range(faults):
                if not names:
                    names = random.sample(sorted(chosen), len(chosen))
                name = names.pop()
                if run.wrong or not run.do(name, chosen[name]):
                    break
        finally:
            for broker in place.brokers.values():
                if broker.running:
                    broker.signal(signal.SIGCONT)
        return run.end()


def report(verdict: Verdict) -> str:
    """Prints a table of the costs of each kind of fault, and the errors."""
    kinds: dict[str, list[Done]] = defaultdict(list)
    for one in verdict.done:
        kinds[one.kind].append(one)
    lines = [f"{'fault':28} {'times':>5}  {'gap, median and longest':>24}  {'settled':>8}"]
    for kind, found in sorted(kinds.items()):
        gaps = [one.gap_s for one in found]
        settled = max(one.settled_s for one in found)
        lines.append(
            f"{kind:28} {len(found):5}  {statistics.median(gaps):11.2f} {max(gaps):10.2f} s  {settled:6.2f} s"
        )
    counts = verdict.counts
    lines.append(
        f"{len(verdict.done)} faults; {counts.get('ack', 0)} messages acknowledged, {counts.get('fail', 0)} "
        f"failed, {counts.get('repeated', 0)} repeated by writers that are not idempotent, "
        f"{counts.get('records', 0)} records polled, {counts.get('epoch changes', 0)} changes of epochs"
    )
    lines.append(
        f"{counts.get('deleted', 0)} deletions of records; lost and excused: "
        f"{counts.get('excused by a new leader', 0)} messages with acks=1 by a new leader, "
        f"{counts.get('excused by power cuts of all', 0)} by power cuts of all that had them"
    )
    lines += [f"WRONG: {text}" for text in verdict.wrong[:WRONG_SHOWN]]
    if len(verdict.wrong) > WRONG_SHOWN:
        kinds_of_wrong = Counter(text.partition(":")[0] for text in verdict.wrong)
        lines.append(f"WRONG: {len(verdict.wrong)} in all: {dict(kinds_of_wrong)}")
    return "\n".join(lines)


def main() -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, help="of the first run; the others have those that follow")
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--kinds", default="", help="names of faults, with commas between them")
    parser.add_argument("--partitions", type=int, default=PARTITIONS)
    parser.add_argument("--keep", action="store_true", help="keep the files in any case")
    parser.add_argument("--anew", action="store_true", help="do also what was done for this source")
    chosen = parser.parse_args()
    # Networks and disks are removed in every case.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(f"broken off; what was done is in {RESULTS}"))
    kinds = [name for name in chosen.kinds.split(",") if name]
    results = Results(RESULTS / f"{source_digest(ROOT, SOURCES)}.jsonl", anew=chosen.anew)
    first = chosen.seed if chosen.seed is not None else results.first_seed
    verdicts = []
    for seed, faults in enumerate(pieces(chosen.faults), first):
        key = {"seed": seed, "faults": faults, "kinds": kinds, "partitions": chosen.partitions}
        verdict = verdict_of(results.find(key))
        if verdict is None:
            verdict = one_run(seed, faults, kinds, chosen.partitions, keep=chosen.keep)
            if not verdict.wrong:
                results.add(key, verdict._asdict())
        else:
            print(f"seed {seed}, {faults} faults: done before, for the same source", flush=True)
        verdicts.append(verdict)
        if verdict.wrong:
            break
    print(report(summed(verdicts)))
    return 1 if verdicts[-1].wrong else 0


def pieces(faults: int) -> list[int]:
    """Splits the faults into runs."""
    return [min(RUN_FAULTS, faults - done) for done in range(0, faults, RUN_FAULTS)]


def verdict_of(known: dict[str, Any] | None) -> Verdict | None:
    """Returns the stored result of a run."""
    if known is None:
        return None
    return Verdict([Done(*one) for one in known["done"]], known["wrong"], known["counts"])


def summed(verdicts: Iterable[Verdict]) -> Verdict:
    """Returns the sum of all results."""
    counts: Counter[str] = Counter()
    for one in verdicts:
        counts.update(one.counts)
    done = [fault for one in verdicts for fault in one.done]
    return Verdict(done, [text for one in verdicts for text in one.wrong], dict(counts))


def one_run(seed: int, faults: int, kinds: Sequence[str], partitions: int, *, keep: bool) -> Verdict:
    """Runs in a separate directory, which is kept after an error."""
    base = Path(tempfile.mkdtemp(prefix="tidemill-faults-"))
    print(f"seed {seed}, {faults} faults, files in {base}", flush=True)
    verdict = do_faults(base, seed, faults, kinds, lambda text: print(text, flush=True), partitions)
    if verdict.wrong or keep:
        print(f"the files are in {base}; again with --seed {seed} --faults {faults}", flush=True)
    else:
        shutil.rmtree(base)
    return verdict


if __name__ == "__main__":
    sys.exit(main())
