"""What goes wrong in a simulated world, and when: drawn from the seed."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import TYPE_CHECKING

from simulated_disk import SimulatedFiles

if TYPE_CHECKING:
    from simulation import Node, Simulation

AT_ONCE_S = 0.03
SHORT_S = 0.3
LONG_S = 4.0


class Faults:
    """Breaks something every now and then, and mends it later."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.random = simulation.random
        self.events = simulation.events
        kinds: list[Callable[[Node], None]] = [
            self.kill,
            self.cut_power,
            self.lose_disk,
            self.pause,
            self.cut_one_way,
            self.cut_off,
            self.reset,
            self.turn_clock,
            self.fail_disk,
            *simulation.cluster_faults(),
        ]
        self._kinds = [kind for kind in kinds if self.random.random() < 0.6] or kinds
        """Each run has its own sorts of trouble: some are found only where others are rare."""
        self._weights = [self.random.choice((1, 1, 3)) for _ in self._kinds]
        self._pause_s = self.random.choice((0.04, 0.15, 0.5, 1.5))
        self.ended = False

    async def run(self) -> None:
        """Breaks things until :attr:`ended`."""
        while True:
            await asyncio.sleep(self.random.expovariate(1 / self._pause_s))
            if self.ended:
                return
            node = self.random.choice(self.simulation.nodes)
            (kind,) = self.random.choices(self._kinds, self._weights)
            kind(node)

    def later(self, undo: Callable[[], None]) -> None:
        """Mends what was broken, after a short or a long time."""
        mean_s = self.random.choice((AT_ONCE_S, SHORT_S, SHORT_S, LONG_S))
        loop = self.simulation.loop
        self.simulation.network.world_timer(loop.time() + self.random.expovariate(1 / mean_s), undo)

    def _tell(self, text: str) -> None:
        self.events.count("faults")
        self.events.add(f"*** {text}", "the world")

    # -- processes and machines

    def kill(self, node: Node) -> None:
        """The process is gone; its machine, and what it wrote, stay."""
        if not node.is_running:
            return
        self._tell(f"{node.name} is killed")
        self.events.count("kills")
        node.stop()
        node.files.kill()
        self.simulation.network.process_ended(node.machine)
        self.later(node.boot)

    def cut_power(self, node: Node) -> None:
        """The machine stops: what was not synced may be gone. Only where others have it, too."""
        if not node.is_running or not self.simulation.promises.may_lose_power(node.node_id):
            return
        self._tell(f"{node.name} loses its power")
        self.events.count("power cuts")
        node.stop()
        node.files.power_cut(self.random)
        self.simulation.network.power_lost(node.machine)
        self.simulation.promises.power_lost(node.node_id)

        def back() -> None:
            self.simulation.network.power_back(node.machine)
            node.boot()

        self.later(back)

    def lose_disk(self, node: Node) -> None:
        """The process is gone, and another disk is in the machine. Only where others have what it had."""
        if not node.is_running or not self.simulation.promises.may_lose_power(node.node_id):
            return
        self._tell(f"{node.name} loses its disk")
        self.events.count("lost disks")
        node.stop()
        node.files.kill()
        node.files = SimulatedFiles(self.simulation.loop)
        self.simulation.network.process_ended(node.machine)
        self.simulation.promises.power_lost(node.node_id)
        self.later(node.boot)

    def pause(self, node: Node) -> None:
        """The process stands still, and does not know."""
        process = node.process
        if not node.is_running or process.paused:
            return
        self._tell(f"{node.name} stands still")
        self.events.count("pauses")
        process.paused = True

        def go_on() -> None:
            if process.paused:
                self.events.add(f"*** {node.name} goes on", "the world")
                self.simulation.loop.resume(process)

        self.later(go_on)

    def turn_clock(self, node: Node) -> None:
        """The machine's wall clock is set to another time."""
        node.clock.skew_ms = self.random.choice((-60_000, -1000, 0, 700, 30_000))
        self._tell(f"the clock of {node.name} is {node.clock.skew_ms} ms off")

    def fail_disk(self, node: Node) -> None:
        """The disk refuses something; later it does not, and a start reads what is there."""
        if not node.is_running:
            return
        operation = self.random.choice(("append", "sync", "sync", "open", "replace"))
        self._tell(f"the disk of {node.name} fails ({operation})")
        self.events.count("disk faults")
        node.files.fail(operation, "/data/", errno.EIO, times=self.random.choice((1, 3)))

        def repair() -> None:
            node.files.heal()
            # Whichever process runs by now: it may have met the fault, and put its directory aside.
            self.kill(node)

        self.later(repair)

    # -- the network

    def cut_one_way(self, node: Node) -> None:
        """What the machine sends to one other does not arrive, but the other way it does."""
        other = self.random.choice(self.simulation.machine_names())
        if other != node.name:
            pair = (node.name, other) if self.random.random() < 0.5 else (other, node.name)
            self._cut([pair])

    def cut_off(self, node: Node) -> None:
        """The machine and some others do not reach each other."""
        others = [name for name in self.simulation.machine_names() if name != node.name]
        chosen = [name for name in others if self.random.random() < 0.7]
        self._cut([pair for name in chosen for pair in ((node.name, name), (name, node.name))])

    def _cut(self, pairs: list[tuple[str, str]]) -> None:
        if not pairs:
            return
        self._tell(f"nothing arrives between {pairs}")
        self.events.count("cuts")
        network = self.simulation.network
        for pair in pairs:
            network.cut_off(*pair)

        def mend() -> None:
            self.events.add(f"*** mended: {pairs}", "the world")
            network.mend(pairs)

        self.later(mend)

    def reset(self, node: Node) -> None:
        """Some connections of the machine break."""
        mine = [one for one in self.simulation.network.connections() if one.machine is node.machine]
        for one in mine:
            if self.random.random() < 0.5:
                self.events.count("resets")
                self.simulation.network.reset(one)
        self._tell(f"connections of {node.name} break")
