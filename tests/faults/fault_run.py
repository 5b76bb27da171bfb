"""Does faults to a cluster under load, from a seed, and checks what its clients did and saw.

    make faults FAULTS=100 SEED=1 KINDS=kill-leader,cut-pair

It does what the machine allows (only root may cut networks and fill disks), and says what it leaves out.
A run keeps its files in a directory that it names when something was wrong, and removes it otherwise.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

from fault_checker import check
from fault_history import History, read
from fault_kinds import TOGETHER, Kind, Target, possible, together
from fault_load import Load, read_all
from fault_stage import BROKERS, Stage, stage

TOPIC = "faults"
PARTITIONS = 4
PAUSE_S = 0.0125
"""Of each writer, by partition: the number of messages does not grow with the partitions."""
SETTLE_S = 90.0
OFFSETS = "__consumer_offsets"


class Done(NamedTuple):
    """One fault, and what it cost. Times in seconds."""

    kind: str
    detail: str
    gap_s: float
    """The longest time in which some partition acknowledged nothing, until all was in sync again."""
    settled_s: float
    """From the end of the fault until all was in sync and written to."""


class Verdict(NamedTuple):
    """What a run came to."""

    done: list[Done]
    wrong: list[str]
    counts: dict[str, int]


class Run:
    """One cluster, its clients, and the faults that are done to them."""

    def __init__(
        self, place: Stage, base: Path, random: Random, partitions: int, say: Callable[[str], None]
    ) -> None:
        self.stage = place
        self.base = base
        self.partitions = partitions
        self.target = Target(place, random, TOPIC)
        self.history = History(base / "history.jsonl", partitions)
        self.done: list[Done] = []
        self.wrong: list[str] = []
        self._say = say

    def begin(self) -> None:
        """Makes the topic, and lets the clients start."""
        with self.stage.admin() as admin:
            admin.create_topic(TOPIC, self.partitions, BROKERS)
        pause_s = PAUSE_S * self.partitions
        self.load = Load(self.history, TOPIC, self.partitions, self.stage.bootstrap, pause_s)
        self.load.start()
        self._settle("the start")

    def _settle(self, after: str) -> bool:
        began = self.history.now
        left = self.stage.settle([TOPIC, OFFSETS], SETTLE_S)
        while not left and not self.history.acknowledged_since(began):
            if self.history.now > began + SETTLE_S:
                left = "a partition acknowledges nothing"
            time.sleep(0.02)
        if left:
            self.wrong.append(f"not settled {SETTLE_S:g} s after {after}: {left}")
        return not left

    def do(self, name: str, kind: Kind) -> bool:
        """Does one fault. False when the cluster does not come back."""
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
        """Ends the clients, reads everything, and checks it."""
        if not self.wrong:
            self.load.end_writers()
            ends = read_all(self.stage.bootstrap, TOPIC, self.partitions, self.history)
            self.load.end_readers(ends)
            self.wrong += self.load.failures()
        self.history.close()
        for number, broker in self.stage.brokers.items():
            if broker.running and broker.stop() != 0:
                self.wrong.append(f"broker {number} did not stop in order")
        self.wrong += self.stage.complaints()
        counts: dict[str, int] = {}
        if not self.wrong:
            self.wrong += differing_replicas(self.stage, self.partitions)
            found, counted = check(read(self.history.path), self.load.idempotent, self.load.known_readers)
            self.wrong += [f"{one.kind}: {one.text}" for one in found]
            counts = {**counted, "epoch changes": self.load.epoch_changes}
        if self.wrong:
            for number, broker in self.stage.brokers.items():
                # Its disk goes with the stage.
                shutil.copytree(broker.data_dir, self.base / str(number) / "data", dirs_exist_ok=True)
        return Verdict(self.done, self.wrong, counts)


def differing_replicas(place: Stage, partitions: int) -> list[str]:
    """Partitions whose replicas do not hold the same bytes; all brokers have stopped in order."""
    wrong = []
    for partition in range(partitions):
        held = {}
        for number, broker in place.brokers.items():
            segments = sorted(Path(broker.data_dir, f"{TOPIC}-{partition}").glob("*.log"))
            held[number] = b"".join(segment.read_bytes() for segment in segments)
        if len(set(held.values())) != 1:
            sizes = {number: len(data) for number, data in held.items()}
            wrong.append(f"the replicas of {TOPIC}-{partition} differ; bytes by broker: {sizes}")
    return wrong


def do_faults(
    base: Path,
    seed: int,
    faults: int,
    kinds: Sequence[str],
    say: Callable[[str], None],
    partitions: int = PARTITIONS,
) -> Verdict:
    """A whole run: ``faults`` of these kinds (all that are possible, when there are none) from ``seed``."""
    random = Random(seed)
    known, reasons = possible()
    for reason in reasons:
        say(reason)
    chosen = {name: kind for name, kind in known.items() if not kinds or name in kinds}
    if not kinds or TOGETHER in kinds:
        chosen[TOGETHER] = lambda target: together(target, known)
    with stage(base, isolated=True) as place:
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
    """A table of what the kinds of faults cost, and what was wrong."""
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
    lines += [f"WRONG: {text}" for text in verdict.wrong]
    return "\n".join(lines)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--kinds", default="", help="names of faults, with commas between them")
    parser.add_argument("--partitions", type=int, default=PARTITIONS)
    parser.add_argument("--keep", action="store_true", help="keep the files in any case")
    chosen = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="tidemill-faults-"))
    print(f"seed {chosen.seed}, {chosen.faults} faults, files in {base}", flush=True)
    kinds = [name for name in chosen.kinds.split(",") if name]
    verdict = do_faults(
        base,
        chosen.seed,
        chosen.faults,
        kinds,
        lambda text: print(text, flush=True),
        chosen.partitions,
    )
    print(report(verdict))
    if verdict.wrong or chosen.keep:
        print(f"the files are in {base}; again with --seed {chosen.seed}")
    else:
        shutil.rmtree(base)
    return 1 if verdict.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
