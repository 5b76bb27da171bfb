"""The faults of a stage: each is a generator that causes the fault, yields its description, and ends it."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Generator, Iterable
from random import Random

from fault_disks import no_devices, no_slow_disks, no_small_disks
from fault_network import STORE, unavailable
from fault_stage import SESSION_S, PlacedBroker, Stage

from tidemill.testing.broker import BrokerFailed

SLOW_BYTES_PER_S = 20_000
START_S = 60.0
SHRUNK_S = 30.0


class Target:
    """A stage, and the random choices of a fault."""

    def __init__(
        self, stage: Stage, random: Random, topic: str, note_loss: Callable[[Iterable[int], str], None]
    ) -> None:
        """``note_loss`` is called before brokers lose their disks or their unsynced data."""
        self.stage = stage
        self.random = random
        self.topic = topic
        self._note_loss = note_loss

    def cut_power(self, numbers: Iterable[int]) -> None:
        """Brokers lose their unsynced data."""
        self._note_loss(numbers, "power")
        self.stage.cut_power(numbers)

    def replace_disk(self, number: int) -> None:
        """A broker loses all its data."""
        self._note_loss([number], "disk")
        self.stage.replace_disk(number)

    def leader(self) -> int:
        """Returns the leader of some partition, or any broker if none is known."""
        leaders = [one for one in self.stage.leaders(self.topic) if one > 0]
        return self.random.choice(leaders) if leaders else self.broker()

    def follower(self) -> int:
        """Returns the broker with the fewest leaderships."""
        leaders = self.stage.leaders(self.topic)
        return min(self.stage.brokers, key=lambda one: (leaders.count(one), self.random.random()))

    def is_last(self, number: int) -> bool:
        """Whether no other broker has an in-sync replica of the topic."""
        states = self.stage.states([self.topic])
        return bool(states) and all(state.isr == [number] for state in states.values())

    def controller(self) -> int:
        """Returns the controller, or any broker if none is known."""
        return self.stage.controller() or self.broker()

    def broker(self) -> int:
        """Returns any broker."""
        return self.random.choice(list(self.stage.brokers))

    def hold(self, low_s: float, high_s: float) -> None:
        """Keeps the fault for a while."""
        time.sleep(self.random.uniform(low_s, high_s))


Fault = Generator[str, None, None]
Kind = Callable[[Target], Fault]


def start(broker: PlacedBroker) -> None:
    """Starts a broker as a supervisor does: again if it cannot reach ZooKeeper."""
    deadline = time.monotonic() + START_S
    while True:
        try:
            broker.start()
        except BrokerFailed as problem:
            if "ZooKeeper" not in str(problem) or time.monotonic() > deadline:
                raise
        else:
            return


def kill(choose: Callable[[Target], int]) -> Kind:
    """Kill -9, and a start some time later: before or after the end of the old session."""

    def fault(target: Target) -> Fault:
        number = choose(target)
        broker = target.stage.brokers[number]
        broker.kill()
        yield f"broker {number}"
        target.hold(0, SESSION_S * 1.5)
        start(broker)

    return fault


def kill_several(count: int) -> Kind:
    """Kill -9 of several brokers at the same time."""

    def fault(target: Target) -> Fault:
        numbers = target.random.sample(list(target.stage.brokers), count)
        for number in numbers:
            target.stage.brokers[number].kill()
        yield f"brokers {numbers}"
        target.hold(0, SESSION_S)
        for number in numbers:
            start(target.stage.brokers[number])

    return fault


def pause(choose: Callable[[Target], int], low_s: float, high_s: float) -> Kind:
    """SIGSTOP, and SIGCONT some time later."""

    def fault(target: Target) -> Fault:
        number = choose(target)
        broker = target.stage.brokers[number]
        broker.signal(signal.SIGSTOP)
        try:
            yield f"broker {number}"
            target.hold(low_s, high_s)
        finally:
            broker.signal(signal.SIGCONT)

    return fault


def kill_zookeeper(target: Target) -> Fault:
    """Kill -9 of ZooKeeper, and a start with its data."""
    target.stage.zookeeper.kill()
    yield ""
    target.hold(0, SESSION_S * 1.5)
    target.stage.zookeeper.start()


def pause_zookeeper(target: Target) -> Fault:
    """SIGSTOP of ZooKeeper."""
    target.stage.zookeeper.pause()
    try:
        yield ""
        target.hold(0.5, SESSION_S * 1.5)
    finally:
        target.stage.zookeeper.resume()


def expire(choose: Callable[[Target], int]) -> Kind:
    """Expires the session of a broker in ZooKeeper."""

    def fault(target: Target) -> Fault:
        number = choose(target)
        before = target.stage.registered(number)
        is_done = target.stage.expire_session(number)
        yield f"broker {number}{'' if is_done else ': it has none'}"
        deadline = time.monotonic() + SESSION_S
        while target.stage.registered(number) in (0, before) and time.monotonic() < deadline:
            time.sleep(0.02)

    return fault


def restart(choose: Callable[[Target], int]) -> Kind:
    """A clean stop, and a start."""

    def fault(target: Target) -> Fault:
        number = choose(target)
        target.stage.brokers[number].stop()
        yield f"broker {number}"
        start(target.stage.brokers[number])

    return fault


def rolling_restart(target: Target) -> Fault:
    """A rolling restart; each broker waits until the previous one is in sync."""
    yield ""
    for number in target.stage.brokers:
        target.stage.brokers[number].stop()
        start(target.stage.brokers[number])
        target.stage.await_in_sync([target.topic], 60)


def _cut(target: Target, pairs: list[tuple[int, int]]) -> Fault:
    net = target.stage.network
    if net is None:
        raise RuntimeError(unavailable())
    for one, other in pairs:
        net.cut(one, other)
    try:
        yield str(pairs)
        target.hold(1, SESSION_S * 3)
    finally:
        for one, other in pairs:
            net.join(one, other)


def cut_pair(target: Target) -> Fault:
    """Two brokers cannot reach each other."""
    one, other = target.random.sample(list(target.stage.brokers), 2)
    yield from _cut(target, [(one, other)])


def cut_controller(target: Target) -> Fault:
    """The controller and another broker cannot reach each other."""
    one = target.controller()
    other = target.random.choice([number for number in target.stage.brokers if number != one])
    yield from _cut(target, [(one, other)])


def cut_from_store(choose: Callable[[Target], int]) -> Kind:
    """A broker cannot reach ZooKeeper; clients and brokers reach the broker."""

    def fault(target: Target) -> Fault:
        yield from _cut(target, [(choose(target), STORE)])

    return fault


def cut_from_brokers(choose: Callable[[Target], int]) -> Kind:
    """A broker reaches ZooKeeper and clients, but no other broker."""

    def fault(target: Target) -> Fault:
        one = choose(target)
        yield from _cut(target, [(one, other) for other in target.stage.brokers if other != one])

    return fault


def isolate(choose: Callable[[Target], int]) -> Kind:
    """A broker reaches neither other brokers nor ZooKeeper; clients reach the broker."""

    def fault(target: Target) -> Fault:
        one = choose(target)
        others = [other for other in target.stage.brokers if other != one]
        yield from _cut(target, [(one, other) for other in [*others, STORE]])

    return fault


def full_disk(choose: Callable[[Target], int]) -> Kind:
    """The disk of a broker is full."""

    def fault(target: Target) -> Fault:
        number = choose(target)
        disk = target.stage.machines[number].disk
        disk.fill(target.random.choice([0, 4096, 65536]))
        try:
            yield f"broker {number}"
            target.hold(1, SESSION_S * 2)
        finally:
            disk.clear()
        # A start repairs the effects of a full disk, as an operator would do.
        if not target.stage.brokers[number].running:
            start(target.stage.brokers[number])

    return fault


def slow_disk(target: Target) -> Fault:
    """The write rate of a disk is limited. A concurrent fault may have ended a broker."""
    running = [number for number, broker in target.stage.brokers.items() if broker.running]
    number = target.random.choice(running)
    disk, pid = target.stage.machines[number].disk, target.stage.brokers[number].pid
    disk.slow_down(pid, SLOW_BYTES_PER_S)
    try:
        yield f"broker {number}, {SLOW_BYTES_PER_S} bytes/s"
        target.hold(2, SESSION_S * 3)
    finally:
        disk.speed_up(pid)


Harm = Callable[[Target, int], None]


def cut_power(target: Target, number: int) -> None:
    """The machine of a broker loses its power."""
    target.cut_power([number])


def replace_disk(target: Target, number: int) -> None:
    """The disk of a broker is replaced by an empty disk."""
    target.replace_disk(number)


def harm(choose: Callable[[Target], int], do: Harm) -> Kind:
    """A broker loses its power or its disk, and starts some time later."""

    def fault(target: Target) -> Fault:
        number = choose(target)
        do(target, number)
        yield f"broker {number}"
        target.hold(0, SESSION_S * 1.5)
        start(target.stage.brokers[number])

    return fault


def cut_power_of(count: int) -> Kind:
    """Several brokers lose their power at the same time, and start in any order."""

    def fault(target: Target) -> Fault:
        numbers = target.random.sample(list(target.stage.brokers), count)
        target.cut_power(numbers)
        yield f"brokers {numbers}"
        target.hold(0, SESSION_S)
        start_later(target, target.random.sample(numbers, count))

    return fault


def start_later(target: Target, numbers: Iterable[int]) -> None:
    """Starts brokers in this order, the later ones before or after the first leads."""
    for number in numbers:
        start(target.stage.brokers[number])
        target.hold(0, SESSION_S)


def harm_last(do: Harm) -> Kind:
    """All brokers but one are killed, and the last in-sync broker loses its power or its disk."""

    def fault(target: Target) -> Fault:
        last = target.leader()
        others = [number for number in target.stage.brokers if number != last]
        for number in others:
            target.stage.brokers[number].kill()
        deadline = time.monotonic() + SHRUNK_S
        while not target.is_last(last) and time.monotonic() < deadline:
            time.sleep(0.1)
        target.hold(0, 1)
        do(target, last)
        yield f"broker {last}, the last of {target.topic}"
        numbers = [*others, last]
        start_later(target, target.random.sample(numbers, len(numbers)))

    return fault


SIMPLE: dict[str, Kind] = {
    "kill-leader": kill(Target.leader),
    "kill-follower": kill(Target.follower),
    "kill-controller": kill(Target.controller),
    "kill-two": kill_several(2),
    "kill-all": kill_several(3),
    "kill-zookeeper": kill_zookeeper,
    "pause-leader": pause(Target.leader, SESSION_S * 1.3, SESSION_S * 2),
    "pause-follower": pause(Target.follower, SESSION_S * 1.3, SESSION_S * 2),
    "pause-controller": pause(Target.controller, SESSION_S * 1.3, SESSION_S * 2),
    "pause-shortly": pause(Target.broker, 0.2, SESSION_S * 0.8),
    "pause-zookeeper": pause_zookeeper,
    "expire-leader": expire(Target.leader),
    "expire-controller": expire(Target.controller),
    "restart-leader": restart(Target.leader),
    "restart-controller": restart(Target.controller),
    "rolling-restart": rolling_restart,
}
NETWORK: dict[str, Kind] = {
    "cut-pair": cut_pair,
    "cut-controller": cut_controller,
    "cut-leader-from-store": cut_from_store(Target.leader),
    "cut-controller-from-store": cut_from_store(Target.controller),
    "cut-leader-from-brokers": cut_from_brokers(Target.leader),
    "cut-controller-from-brokers": cut_from_brokers(Target.controller),
    "isolate-leader": isolate(Target.leader),
    "isolate-controller": isolate(Target.controller),
}
DISKS: dict[str, Kind] = {
    "full-disk-leader": full_disk(Target.leader),
    "full-disk-follower": full_disk(Target.follower),
}
SLOW: dict[str, Kind] = {"slow-disk": slow_disk}
LOSSES: dict[str, Kind] = {
    "power-cut-leader": harm(Target.leader, cut_power),
    "power-cut-follower": harm(Target.follower, cut_power),
    "power-cut-two": cut_power_of(2),
    "power-cut-all": cut_power_of(3),
    "power-cut-last": harm_last(cut_power),
    "empty-disk-leader": harm(Target.leader, replace_disk),
    "empty-disk-follower": harm(Target.follower, replace_disk),
    "empty-disk-controller": harm(Target.controller, replace_disk),
    "empty-disk-last": harm_last(replace_disk),
}
ALL: dict[str, Kind] = {**SIMPLE, **NETWORK, **DISKS, **SLOW, **LOSSES}
ALONE = ("rolling-restart", "power-cut-two", "power-cut-all", "power-cut-last", "empty-disk-last")
"""Never with a second fault: they end, or wait for, several brokers."""
TOGETHER = "two-at-once"


def possible() -> tuple[dict[str, Kind], list[str]]:
    """Returns the faults that are possible on this machine, and the reasons for the others."""
    found = dict(SIMPLE)
    reasons = []
    for kinds, reason in (
        (NETWORK, unavailable()),
        (DISKS, no_small_disks()),
        (SLOW, no_slow_disks()),
        (LOSSES, no_devices()),
    ):
        if reason:
            reasons.append(f"without {', '.join(kinds)}: {reason}")
        else:
            found |= kinds
    return found, reasons


def together(target: Target, kinds: dict[str, Kind]) -> Fault:
    """Two faults of different kinds, the second during the first.

    Ended brokers start last: without ZooKeeper, or with a full disk, none would start. At most one of the two
    destroys data: the losses of two brokers may include all in-sync replicas.
    """
    names: list[str] = []
    while len(names) < 2 or (names[0] in LOSSES and names[1] in LOSSES):
        names = target.random.sample([name for name in kinds if name not in ALONE], 2)
    with contextlib.ExitStack() as starts, contextlib.ExitStack() as others:
        said = []
        for name in names:
            fault = kinds[name](target)
            said.append(f"{name} {next(fault)}".strip())
            (starts if is_start(name) else others).callback(_finish, fault)
            target.hold(0, 1)
        yield " and ".join(said)


def is_start(name: str) -> bool:
    """Whether a fault ends with the start of brokers."""
    return name.startswith(("kill-", "restart-", "power-", "empty-")) and name != "kill-zookeeper"


def _finish(fault: Fault) -> None:
    for _ in fault:
        pass
