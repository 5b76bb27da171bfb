"""The faults that can be done to a stage: each a generator that does it, says what it did, and undoes it."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Generator
from random import Random

from fault_disks import no_slow_disks, no_small_disks
from fault_network import STORE, unavailable
from fault_stage import SESSION_S, SLOW_DISK, PlacedBroker, Stage

from tidemill.testing.broker import BrokerFailed

SLOW_BYTES_PER_S = 20_000
START_S = 60.0


class Target:
    """A stage, and the random choices of what is done to it."""

    def __init__(self, stage: Stage, random: Random, topic: str) -> None:
        self.stage = stage
        self.random = random
        self.topic = topic

    def leader(self) -> int:
        """The leader of some partition, or any broker when that is not known."""
        leaders = [one for one in self.stage.leaders(self.topic) if one > 0]
        return self.random.choice(leaders) if leaders else self.broker()

    def follower(self) -> int:
        """A broker that leads as little as possible."""
        leaders = self.stage.leaders(self.topic)
        return min(self.stage.brokers, key=lambda one: (leaders.count(one), self.random.random()))

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
        disk = target.stage.disks[number]
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
    """A disk takes little of what is written to it."""
    disk, broker = target.stage.disks[SLOW_DISK], target.stage.brokers[SLOW_DISK]
    pid = broker.pid
    disk.slow_down(pid, SLOW_BYTES_PER_S)
    try:
        yield f"broker {SLOW_DISK}, {SLOW_BYTES_PER_S} bytes/s"
        target.hold(2, SESSION_S * 3)
    finally:
        disk.speed_up(pid)


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
ALL: dict[str, Kind] = {**SIMPLE, **NETWORK, **DISKS, **SLOW}
TOGETHER = "two-at-once"


def possible() -> tuple[dict[str, Kind], list[str]]:
    """The faults that can be done on this machine, and why the others cannot."""
    found = dict(SIMPLE)
    reasons = []
    for kinds, reason in ((NETWORK, unavailable()), (DISKS, no_small_disks()), (SLOW, no_slow_disks())):
        if reason:
            reasons.append(f"without {', '.join(kinds)}: {reason}")
        else:
            found |= kinds
    return found, reasons


def together(target: Target, kinds: dict[str, Kind]) -> Fault:
    """Two faults of different kinds, the second while the first goes on.

    Brokers that were ended start last: without ZooKeeper, or room on the disk, none would.
    """
    names = target.random.sample([name for name in kinds if "rolling" not in name], 2)
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
    return name.startswith(("kill-", "restart-")) and name != "kill-zookeeper"


def _finish(fault: Fault) -> None:
    for _ in fault:
        pass
