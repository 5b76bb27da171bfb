"""The faults that can be done to a stage: each a generator that does it, says what it did, and undoes it."""

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
    """A stage, and the random choices of what is done to it."""

    def __init__(
        self, stage: Stage, random: Random, topic: str, note_loss: Callable[[Iterable[int], str], None]
    ) -> None:
        """``note_loss`` is called before brokers lose their disks or what they had not synced."""
        self.stage = stage
        self.random = random
        self.topic = topic
        self._note_loss = note_loss

    def cut_power(self, numbers: Iterable[int]) -> None:
        """What brokers had not synced is gone."""
        self._note_loss(numbers, "power")
        self.stage.cut_power(numbers)

    def replace_disk(self, number: int) -> None:
        """All that a broker had is gone."""
        self._note_loss([number], "disk")
        self.stage.replace_disk(number)

    def leader(self) -> int:
        """The leader of some partition, or any broker when that is not known."""
        leaders = [one for one in self.stage.leaders(self.topic) if one > 0]
        return self.random.choice(leaders) if leaders else self.broker()

    def follower(self) -> int:
        """A broker that leads as little as possible."""
        leaders = self.stage.leaders(self.topic)
        return min(self.stage.brokers, key=lambda one: (leaders.count(one), self.random.random()))

    def is_last(self, number: int) -> bool:
        """Whether no other broker has an in-sync replica of the topic."""
        states = self.stage.states([self.topic])
        return bool(states) and all(state.isr == [number] for state in states.values())

    def controller(self) -> int:
        """The controller, or any broker when that is not known."""
        return self.stage.controller() or self.broker()

    def broker(self) -> int:
        """Any broker."""
        return self.random.choice(list(self.stage.brokers))

    def hold(self, low_s: float, high_s: float) -> None:
        """Lets the fault be for a while."""
        time.sleep(self.random.uniform(low_s, high_s))


Fault = Generator[str, None, None]
Kind = Callable[[Target], Fault]


def start(broker: PlacedBroker) -> None:
    """Starts a broker as a supervisor would: again, when it cannot reach ZooKeeper, which may be cut off."""
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
    """Kill -9, and a start some time later: before the end of the old session, or after."""

    def fault(target: Target) -> Fault:
        number = choose(target)
        broker = target.stage.brokers[number]
        broker.kill()
        yield f"broker {number}"
        target.hold(0, SESSION_S * 1.5)
        start(broker)

    return fault


def kill_several(count: int) -> Kind:
    """Kill -9 of several brokers at once."""

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
    """A session ends behind the broker's back."""

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
    """A stop in order, and a start."""

    def fault(target: Target) -> Fault:
        number = choose(target)
        target.stage.brokers[number].stop()
        yield f"broker {number}"
        start(target.stage.brokers[number])

    return fault


def rolling_restart(target: Target) -> Fault:
    """One broker after the other, each when the one before is in sync."""
    yield ""
    for number in target.stage.brokers:
        target.stage.brokers[number].stop()
        start(target.stage.brokers[number])
        target.stage.settle([target.topic], 60)


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
    """Two brokers do not reach each other."""
    one, other = target.random.sample(list(target.stage.brokers), 2)
    yield from _cut(target, [(one, other)])


def cut_controller(target: Target) -> Fault:
    """The controller and another broker do not reach each other."""
    one = target.controller()
    other = target.random.choice([number for number in target.stage.brokers if number != one])
    yield from _cut(target, [(one, other)])


def cut_from_store(choose: Callable[[Target], int]) -> Kind:
    """A broker does not reach ZooKeeper; clients and brokers reach it."""

    def fault(target: Target) -> Fault:
        yield from _cut(target, [(choose(target), STORE)])

    return fault


def cut_from_brokers(choose: Callable[[Target], int]) -> Kind:
    """A broker reaches no other broker, but ZooKeeper and clients."""

    def fault(target: Target) -> Fault:
        one = choose(target)
        yield from _cut(target, [(one, other) for other in target.stage.brokers if other != one])

    return fault


def isolate(choose: Callable[[Target], int]) -> Kind:
    """A broker reaches neither the others nor ZooKeeper; clients reach it."""

    def fault(target: Target) -> Fault:
        one = choose(target)
        others = [other for other in target.stage.brokers if other != one]
        yield from _cut(target, [(one, other) for other in [*others, STORE]])

    return fault


def full_disk(choose: Callable[[Target], int]) -> Kind:
    """A broker's disk has no room."""

    def fault(target: Target) -> Fault:
        number = choose(target)
        disk = target.stage.machines[number].disk
        disk.fill(target.random.choice([0, 4096, 65536]))
        try:
            yield f"broker {number}"
            target.hold(1, SESSION_S * 2)
        finally:
            disk.clear()
        # What a disk that was full has broken is mended by a start, as an operator would do.
        if not target.stage.brokers[number].running:
            start(target.stage.brokers[number])

    return fault


def slow_disk(target: Target) -> Fault:
    """A disk takes little of what is written to it. A fault at the same time may have ended a broker."""
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
    """A broker's machine loses its power."""
    target.cut_power([number])


def replace_disk(target: Target, number: int) -> None:
    """A broker's disk is replaced by an empty one."""
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
    """Several brokers lose their power at once, and start in any order."""

    def fault(target: Target) -> Fault:
        numbers = target.random.sample(list(target.stage.brokers), count)
        target.cut_power(numbers)
        yield f"brokers {numbers}"
        target.hold(0, SESSION_S)
        start_later(target, target.random.sample(numbers, count))

    return fault


def start_later(target: Target, numbers: Iterable[int]) -> None:
    """Starts brokers in this order, the later ones while the first lead already, or not yet."""
    for number in numbers:
        start(target.stage.brokers[number])
        target.hold(0, SESSION_S)


def harm_last(do: Harm) -> Kind:
    """All brokers but one are killed, and the last one in sync loses its power or its disk."""

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
    """The faults that can be done on this machine, and why the others cannot."""
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
    """Two faults of different kinds, the second while the first goes on.

    Brokers that were ended start last: without ZooKeeper, or room on the disk, none would. At most one of the
    two destroys something: what two brokers lost may have been all that was in sync.
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
