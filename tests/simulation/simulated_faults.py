"""The faults of a simulated world and their times: drawn from the seed.

Swarm testing: each run has some kinds of faults, and times some of them to phases of changes
(:mod:`change_phases`), so that over many seeds every pair of a fault and a phase occurs.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import TYPE_CHECKING

from tidemill.log.file_names import CLEAN_SHUTDOWN, LOG

if TYPE_CHECKING:
    from simulated_disk import SimulatedFiles

    from simulation import Node, Simulation

AT_ONCE_S = 0.03
SHORT_S = 0.3
LONG_S = 3.0
AWAY_S = 4.0
AIM_DELAY_S_MEAN = 0.004
"""How long after the begin of a phase an aimed fault comes."""
RECOVERY_S = 6.0
"""A cluster works again within this time after a fault."""

REPLICATION_FAULTS = (
    "kill",
    "power cut of one",
    "power cut of two",
    "power cut of all",
    "lost disk",
    "lost disk of the last in-sync replica",
    "power cut of the last in-sync replica",
    "dropped sync",
    "disk error",
    "pause",
    "cut one way",
    "cut off",
    "resets",
    "clock",
)
CUT_FROM_STORE = "cut from the store"
LOST_DISKS_OF_OTHERS = "lost disks of all others"
"""Where an operator is on duty: else nothing is written any more."""
DISK_PUT_BACK = "disk put back"
LATE_STORE = "late store"
FAILING_STOP = "stop while a sync fails"
LEADER_AND_CONTROLLER = "kill of leader and controller"
"""In shares of the seeds."""
FULL_DISK = "full disk"
"""In a share of the seeds."""
FULL_DISKS_AIMED = 5
"""At DeleteRecords, which writes where a log starts."""
RARE_AIMED = 3
"""Each of the rare faults at what it is for."""
HARSH = (
    LOST_DISKS_OF_OTHERS,
    "power cut of two",
    "power cut of all",
    "lost disk of the last in-sync replica",
    "power cut of the last in-sync replica",
)
"""Faults after which a partition may forget what was acknowledged, so that much is excused."""
COORDINATOR_FAULTS = ("kill of the transaction coordinator", "pause of the transaction coordinator")
"""Where there are transactional producers."""
OTHERS_AWAY = "all brokers but the transaction coordinator away"
LEADER_AHEAD = "end of a leader ahead of its followers"
ONLY_REPLICA_AWAY = "only replica of a partition away"
ONLY_AIMED = (OTHERS_AWAY, LEADER_AHEAD, ONLY_REPLICA_AWAY)
"""Where there are transactional producers, at the phases of these."""
CLUSTER_FAULTS = (
    *REPLICATION_FAULTS,
    "store connection",
    "session end",
    "controller session end",
    "shutdown",
)


class Faults:
    """Causes faults from time to time, and ends them later."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.random = random = simulation.random
        self.events = simulation.events
        self.promises = simulation.promises
        self.phases = simulation.phases
        self._breaks: dict[str, Callable[[Node], bool]] = {
            "kill": self.kill,
            "power cut of one": lambda node: self._cut_power_of(1, node),
            "power cut of two": lambda node: self._cut_power_of(2, node),
            "power cut of all": lambda node: self._cut_power_of(3, node),
            "lost disk": self.lose_disk,
            "lost disk of the last in-sync replica": lambda node: self._isolate(node, self.lose_disk),
            "power cut of the last in-sync replica": lambda node: self._isolate(node, self.cut_power),
            "dropped sync": self.drop_sync,
            "disk error": self.fail_disk,
            "pause": self.pause,
            "cut one way": self.cut_one_way,
            "cut off": self.cut_off,
            "resets": self.reset,
            "clock": self.turn_clock,
            **simulation.cluster_faults(),
        }
        if simulation.variations.has_full_disks:
            self._breaks[FULL_DISK] = self.fill_disk
        self._is_harsh = random.random() < 0.5
        names = [name for name in self._breaks if self._is_harsh or name not in HARSH]
        usual = [name for name in names if name not in ONLY_AIMED]
        self._names = [name for name in usual if random.random() < 0.5] or usual
        """Some faults are found only where others are rare."""
        self._weights = [random.choice((1, 1, 3)) for _ in self._names]
        for name, weight in ((LOST_DISKS_OF_OTHERS, 1), (FULL_DISK, 3), (LATE_STORE, 2), (FAILING_STOP, 1)):
            if name in names and name not in self._names:
                # Few seeds may have it.
                self._names.append(name)
                self._weights.append(weight)
        self._pause_s = random.choice((0.3, 0.8, 2.0, 4.0))
        pairs = [(name, phase) for name in usual for phase in simulation.phase_names]
        self._aimed = random.sample(pairs, min(len(pairs), random.choice((0, 8, 16, 24))))
        aims = (
            (LATE_STORE, "broker start"),
            (LATE_STORE, "move copying"),
            (LEADER_AND_CONTROLLER, "min.insync.replicas changed"),
        )
        self._aimed += [aim for aim in aims if aim[0] in names] * RARE_AIMED
        self._aimed += simulation.own_aims()
        if FULL_DISK in names:
            self._aimed += [(FULL_DISK, "DeleteRecords asked")] * FULL_DISKS_AIMED
        self._forgotten: Node | None = None
        """A node with a replica that all others have lost: it is killed soon after it has read that."""
        self.phases.on_begin = self._aim
        self.ended = False
        self.quiet_from_s = 0.0
        """From when on no fault explains that nothing works."""
        self.disturbed_s = 0.0
        self.alone_until_s = 0.0
        """Until then nothing else breaks: some faults matter only when they last."""

    async def run(self) -> None:
        """Causes faults until :attr:`ended`."""
        while True:
            await asyncio.sleep(self.random.expovariate(1 / self._pause_s))
            if self.ended:
                return
            (name,) = self.random.choices(self._names, self._weights)
            self.break_now(name)

    def break_now(self, name: str) -> None:
        """Causes a fault, and counts the current phases."""
        node = self.random.choice(self.simulation.nodes)
        if self.ended or self.simulation.loop.time() < self.alone_until_s or not self._breaks[name](node):
            return
        self.events.count("faults")
        self.events.count(f"fault {name}")
        self._disturb(0.0)
        for phase in self.phases.under_way():
            self.events.count(f"{name} during {phase}")

    def _aim(self, phase: str) -> None:
        if self._forgotten is not None and phase in ("truncation", "log emptied"):
            node, self._forgotten = self._forgotten, None
            self.later(lambda: self.kill(node) and None, SHORT_S)
        for pair in self._aimed:
            name, aimed = pair
            if aimed == phase and self.random.random() < 0.8:
                self._aimed.remove(pair)
                delay_s = self.random.choice((0.0, self.random.expovariate(1 / AIM_DELAY_S_MEAN)))
                self._break_at(self.simulation.loop.time() + delay_s, name)
                return

    def _break_at(self, at_s: float, name: str) -> None:
        self.simulation.network.world_timer(at_s, lambda: self.break_now(name))

    def _disturb(self, during_s: float) -> None:
        """A fault lasts for this time, and the cluster recovers after it."""
        now = self.simulation.loop.time()
        until_s = now + during_s + RECOVERY_S
        self.disturbed_s += max(0.0, until_s - max(self.quiet_from_s, now))
        self.quiet_from_s = max(self.quiet_from_s, until_s)

    def later(self, undo: Callable[[], None], mean_s: float | None = None, after_s: float = 0.0) -> None:
        """Ends a fault, after ``after_s`` and a short or a long time."""
        if mean_s is None:
            mean_s = self.random.choice((AT_ONCE_S, SHORT_S, SHORT_S, LONG_S))
        delay_s = after_s + self.random.expovariate(1 / mean_s)
        self._disturb(delay_s)
        self.simulation.network.world_timer(self.simulation.loop.time() + delay_s, undo)

    def _report(self, text: str) -> None:
        self.events.add(f"*** {text}", "the world")

    # -- processes and machines

    def kill(self, node: Node, back_s_mean: float | None = None, back_s_min: float = 0.0) -> bool:
        """Ends the process; its machine and its files stay."""
        if not node.is_running:
            return False
        self._report(f"{node.name} is killed")
        node.stop()
        node.files.kill()
        self.simulation.network.process_ended(node.machine)
        self.later(node.boot, back_s_mean, back_s_min)
        return True

    def may_lose(self, node: Node) -> bool:
        """Half of the seeds keep a replica of everything, so that nothing is excused.

        The others do so until a record is acknowledged: no leader could be elected after that, and a seed
        would check nothing.
        """
        is_harsh = self._is_harsh and self.simulation.batches_acknowledged > 0
        return is_harsh or self.promises.may_lose(node.node_id)

    def cut_power(self, node: Node) -> bool:
        """The machine loses its power: unsynced data may be lost."""
        if not node.machine.is_up or not self.may_lose(node):
            return False
        self._report(f"{node.name} loses its power")
        if node.is_running:
            node.stop()
        node.files.power_cut(self.random)
        self.simulation.network.power_lost(node.machine)
        if node.files.exists(f"/data/{CLEAN_SHUTDOWN}"):
            # The process had stopped cleanly, or had just started: all data were on the disk, and still
            # count.
            self.events.count("power cuts after a clean stop")
        else:
            self.promises.replicas_lost(node.node_id, everything=False)
        self.simulation.check_synced(node)

        def back() -> None:
            self.simulation.network.power_back(node.machine)
            if self.simulation.variations.has_full_starts and self.random.random() < 0.6 and not self.ended:
                self.events.count("starts after power cuts on full disks")
                self._fill(node, LONG_S, None)
            node.boot()

        self.later(back)
        return True

    def _cut_power_of(self, count: int, first: Node) -> bool:
        others = [node for node in self.simulation.nodes if node is not first]
        chosen = [first, *self.random.sample(others, count - 1)]
        done = [self.cut_power(node) for node in chosen]
        return any(done)

    def lose_disk(self, node: Node) -> bool:
        """The process ends, and the machine has another disk."""
        if not node.is_running or not self.may_lose(node):
            return False
        self._report(f"{node.name} loses its disk")
        node.stop()
        node.files.kill()
        node.put_in_disk()
        self.simulation.network.process_ended(node.machine)
        self.promises.replicas_lost(node.node_id, everything=True)
        self.simulation.disk_changed(node)
        self.later(node.boot)
        return True

    def put_disk_back(self, node: Node) -> bool:
        """The machine has another disk until its broker is in sync again. Then the former disk returns."""
        former = node.files
        if not self.lose_disk(node):
            return False
        self._await_in_sync(node, former, self.simulation.loop.time())
        return True

    def _await_in_sync(self, node: Node, former: SimulatedFiles, lost_s: float) -> None:
        now = self.simulation.loop.time()
        histories = self.promises.partitions.values()
        # Until its broker has registered with the other disk, the former one has all its acknowledged
        # records.
        is_in_sync = self.promises.has_registered_since(node.node_id, lost_s) and any(
            node.node_id in history.holders.isr for history in histories
        )
        if node.is_running and is_in_sync and self.may_lose(node):
            self._report(f"{node.name} has its former disk again")
            self.events.count("former disks put back")
            node.stop()
            node.files.kill()
            former.heal()  # Its fault was to be repaired while the other disk was in use.
            node.change_disk(former)
            self.simulation.network.process_ended(node.machine)
            self.promises.replicas_lost(node.node_id, everything=True)
            self.simulation.disk_changed(node)
            self.later(node.boot)
        elif now < lost_s + 2 * LONG_S and not self.ended:
            self._disturb(0.0)
            again = lambda: self._await_in_sync(node, former, lost_s)  # noqa: E731
            self.simulation.network.world_timer(now + 0.05, again)

    def _isolate(self, node: Node, lose: Callable[[Node], bool]) -> bool:
        """Kills all others, waits until the node is the only in-sync replica of some partition, and destroys
        its data.
        """
        if not node.is_running or not node.machine.is_up:
            return False
        node = self.leading(node)
        for other in self.simulation.nodes:
            if other is not node:
                self.kill(other, back_s_mean=1.5)
        self._await_alone(node, lose, self.simulation.loop.time() + 2 * LONG_S)
        return True

    def lose_others(self, node: Node) -> bool:
        """The node is stopped until it is in no ISR. Then all others lose their disks."""
        if not node.is_running or not node.machine.is_up:
            return False
        if self.random.random() < 0.5:
            self.kill(node, back_s_mean=AWAY_S)
        else:
            others = [name for name in self.simulation.machine_names() if name != node.name]
            self.cut([pair for name in others for pair in ((node.name, name), (name, node.name))], AWAY_S)
        self._await_out_of_sync(node, self.simulation.loop.time() + 2 * LONG_S)
        return True

    def _await_out_of_sync(self, node: Node, deadline_s: float) -> None:
        now = self.simulation.loop.time()
        histories = self.promises.partitions.values()
        if not any(node.node_id in history.holders.isr for history in histories):
            self.events.count("replicas that all others have forgotten")
            self._forgotten = node if self.random.random() < 0.5 else None
            for other in self.simulation.nodes:
                if other is not node:
                    self.lose_disk(other)
        elif now < deadline_s and not self.ended:
            self._disturb(0.0)
            again = lambda: self._await_out_of_sync(node, deadline_s)  # noqa: E731
            self.simulation.network.world_timer(now + 0.05, again)

    def leading(self, node: Node) -> Node:
        """Returns a node that leads a partition, if possible."""
        leaders = [one for one in self.simulation.nodes if any(part.is_leader for part in one.partitions)]
        return node if node in leaders or not leaders else self.random.choice(leaders)

    def _await_alone(self, node: Node, lose: Callable[[Node], bool], deadline_s: float) -> None:
        now = self.simulation.loop.time()
        histories = self.promises.partitions.values()
        if any(history.holders.isr == (node.node_id,) for history in histories):
            self.events.count("last in-sync replicas that lost records")
            lose(node)
        elif now < deadline_s and not self.ended:
            self._disturb(0.0)
            again = lambda: self._await_alone(node, lose, deadline_s)  # noqa: E731
            self.simulation.network.world_timer(now + 0.05, again)

    def pause(self, node: Node) -> bool:
        """The process is suspended, and does not notice."""
        process = node.process
        if not node.is_running or process.paused:
            return False
        self._report(f"{node.name} stands still")
        process.paused = True

        def go_on() -> None:
            if process.paused:
                self.events.add(f"*** {node.name} goes on", "the world")
                self.simulation.loop.resume(process)
                self.promises.deposed.woken(node.node_id, self.simulation.loop.time())

        self.later(go_on)
        return True

    def turn_clock(self, node: Node) -> bool:
        """The machine's wall clock is set to another time."""
        node.clock.skew_ms = self.random.choice((-60_000, -1000, 0, 700, 30_000))
        self.promises.clock_turned(node.clock.skew_ms)
        self._report(f"the clock of {node.name} is {node.clock.skew_ms} ms off")
        return True

    def fail_disk(self, node: Node) -> bool:
        """The disk fails some operation; later it works, and a start reads its content."""
        if not node.is_running:
            return False
        operation = self.random.choice(("append", "sync", "sync", "open", "replace"))
        self._report(f"the disk of {node.name} fails ({operation})")
        node.files.fail(operation, "/data/", errno.EIO, times=self.random.choice((1, 3)))
        self.repair_later(node)
        return True

    def fill_disk(self, node: Node) -> bool:
        """The disk is full for a while, and no written data is lost.

        At the end the process continues; or all processes are killed, and the unwritten data of this process
        matter, since it returns first.
        """
        if not node.is_running or node.files.is_full:
            return False
        all_end = self.random.random() < 0.5

        def end_all() -> None:
            for one in self.simulation.nodes:
                self.kill(one, back_s_mean=AT_ONCE_S if one is node else LONG_S)

        self._fill(node, self.random.choice((SHORT_S, LONG_S)), end_all if all_end else None)
        return True

    def _fill(self, node: Node, mean_s: float, ended: Callable[[], None] | None) -> None:
        """The disk is full for a while; then ``ended`` is called, or a refused replica is created."""
        self._report(f"the disk of {node.name} is full")
        files = node.files
        files.is_full = True

        def make_room() -> None:
            self._report(f"the disk of {node.name} has room")
            files.is_full = False
            if ended is not None and not self.ended:
                ended()
            elif self._misses_replica(node):
                # A replica that could not be created is created at the next start.
                self.events.count("starts for a replica that a full disk had refused")
                self.kill(node)

        self.later(make_room, mean_s)

    def _misses_replica(self, node: Node) -> bool:
        here = {(one.topic, int(one.index)) for one in node.partitions if not one.is_offline}
        histories = self.promises.partitions.items()
        return any(node.node_id in known.replicas and tp not in here for tp, known in histories)

    def drop_sync(self, node: Node) -> bool:
        """A sync fails, and the system drops the unwritten pages: a start finds the old ones."""
        if not node.is_running or not self.may_lose(node):
            return False
        self._report(f"the disk of {node.name} drops what it was to sync")
        node.files.drop_syncs(LOG, self.random.choice((1, 3)))
        self.repair_later(node)
        return True

    def repair_later(self, node: Node, mean_s: float | None = None) -> None:
        """The disk works again after a while, and a start reads it."""

        def repair() -> None:
            node.files.heal()
            # The current process: it may have met the fault, and stopped using its directory.
            self.kill(node)

        self.later(repair, mean_s)

    # -- the network

    def cut_one_way(self, node: Node) -> bool:
        """Packets from the machine to another one do not arrive, but packets in the other direction do."""
        other = self.random.choice(self.simulation.machine_names())
        if other == node.name:
            return False
        self.cut([(node.name, other) if self.random.random() < 0.5 else (other, node.name)])
        return True

    def cut_off(self, node: Node) -> bool:
        """The machine and some others cannot reach each other."""
        others = [name for name in self.simulation.machine_names() if name != node.name]
        chosen = [name for name in others if self.random.random() < 0.7]
        if not chosen:
            return False
        self.cut([pair for name in chosen for pair in ((node.name, name), (name, node.name))])
        return True

    def cut(self, pairs: list[tuple[str, str]], mean_s: float | None = None, after_s: float = 0.0) -> None:
        """Packets between these machines do not arrive for a while, and for ``after_s`` at least."""
        self._report(f"nothing arrives between {pairs}")
        network = self.simulation.network
        for pair in pairs:
            network.cut_off(*pair)

        def mend() -> None:
            self.events.add(f"*** mended: {pairs}", "the world")
            network.mend(pairs)

        self.later(mend, mean_s, after_s)

    def reset(self, node: Node) -> bool:
        """Some connections of the machine break."""
        mine = [one for one in self.simulation.network.connections() if one.machine is node.machine]
        chosen = [one for one in mine if self.random.random() < 0.5]
        self._report(f"connections of {node.name} break")
        for one in chosen:
            self.simulation.network.reset(one)
        return bool(chosen)
