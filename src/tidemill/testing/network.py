"""The links of a broker or a cluster, and what can be done to them: cuts, and answers with errors."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from typing import Any, Final

from tidemill.testing.child import Child
from tidemill.testing.network_process import ANY, BROKERS, CLIENTS, HOST, RESET, SILENT, STORE

WAYS: Final = (SILENT, RESET)
WAIT_S: Final = 30.0


class InjectedError:
    """Answers that are replaced by an error; made by ``fail_next``."""

    def __init__(self, network: Network, target: str, rule: int, what: str) -> None:
        self._network = network
        self._target = target
        self._rule = rule
        self._what = what

    @property
    def left(self) -> int:
        """How many answers will be replaced yet."""
        command = {"do": "left", "target": self._target, "rule": self._rule}
        return int(self._network.ask(command)["left"])

    def wait(self, timeout_s: float = WAIT_S) -> None:
        """Returns once all were replaced. TimeoutError when clients do not ask so often in that time."""
        deadline = time.monotonic() + timeout_s
        while (left := self.left) > 0:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self._what}: {left} are left after {timeout_s:g} s")
            time.sleep(0.01)

    def cancel(self) -> None:
        """Replaces no more answers."""
        self._network.forget(self._target, self._rule)

    def __enter__(self) -> InjectedError:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()


class Network:
    """A process through whose ports all links lead. Ends are ``"clients"``, ``"store"``, or a broker's id."""

    def __init__(self) -> None:
        self._directory = tempfile.mkdtemp(prefix="tidemill-network-")
        self._child = Child("tidemill.testing.network_process", os.path.join(self._directory, "network.log"))

    @property
    def log(self) -> str:
        """What its process has logged."""
        return self._child.log

    def start(self) -> Network:
        """Starts the process."""
        self._child.start()
        return self

    def close(self) -> None:
        """Ends it, and every connection with it."""
        try:
            self._child.stop()
        finally:
            shutil.rmtree(self._directory, ignore_errors=True)

    def ask(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Has the process do something; its answer. It has been done when this returns."""
        return self._child.ask(command)

    # Ports

    def open(self, kind: str, target: str, source: str = "") -> int:
        """Opens a port; it refuses connections until it leads somewhere."""
        return int(self.ask({"do": "open", "kind": kind, "target": target, "source": source})["port"])

    def lead(self, port: int, host: str, to: int) -> None:
        """Has a port lead there, as soon as somebody listens."""
        self.ask({"do": "lead", "port": port, "host": host, "to": to})

    def listen(self, port: int) -> None:
        """Has a port take connections at once."""
        self.ask({"do": "listen", "port": port})

    def refuse(self, port: int) -> None:
        """Has a port refuse connections until somebody listens where it leads."""
        self.ask({"do": "refuse", "port": port})

    # Faults

    def cut(self, one: str | int, other: str | int, how: str = SILENT) -> None:
        """Nothing passes between two any more."""
        if how not in WAYS:
            raise ValueError(f"how={how!r}: a link is cut in one of the ways {', '.join(WAYS)}")
        self.ask({"do": "cut", "ends": [str(one), str(other)], "how": how})

    def heal(self, one: str | int | None = None, other: str | int | None = None) -> None:
        """Ends a cut; all of them when none is named."""
        ends = None if one is None else [str(one), str(other)]
        self.ask({"do": "heal", "ends": ends})

    def fail_next(
        self,
        target: str | int | None,
        api: str | int,
        error: str | int,
        times: int,
        client_id: str | None,
        *,
        carried_out: bool,
    ) -> InjectedError:
        """Replaces the next answers of a broker (None: of any) to its clients.

        ValueError for names that do not exist.
        """
        from tidemill.testing.error_responses import api_named, error_named, has_error

        key, code = api_named(api), error_named(error)
        if times < 1:
            raise ValueError(f"times={times}: at least one answer is replaced")
        if not has_error(key):
            raise ValueError(f"answers to {key.name} have no error code")
        name = ANY if target is None else str(target)
        rule = self.ask(
            {
                "do": "fail",
                "target": name,
                "api": int(key),
                "code": int(code),
                "times": times,
                "client_id": client_id,
                "carried_out": carried_out,
            }
        )["rule"]
        return InjectedError(self, name, int(rule), f"{code.name} in answers to {key.name}")

    def forget(self, target: str, rule: int | None = None) -> None:
        """Replaces no more answers of a broker: by one rule, or by all when none is named."""
        self.ask({"do": "forget", "target": target, "rule": rule})


__all__ = ["BROKERS", "CLIENTS", "HOST", "STORE", "InjectedError", "Network"]
