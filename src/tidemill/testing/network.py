"""The links of a broker or a cluster, and their faults: cuts, and error responses."""

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
    """Responses that are replaced by an error; created by ``fail_next``."""

    def __init__(self, network: Network, target: str, rule: int, what: str) -> None:
        self._network = network
        self._target = target
        self._rule = rule
        self._what = what

    @property
    def left(self) -> int:
        """The number of responses still to be replaced."""
        command = {"do": "left", "target": self._target, "rule": self._rule}
        return int(self._network.execute(command)["left"])

    def wait(self, timeout_s: float = WAIT_S) -> None:
        """Waits until all were replaced. Raises TimeoutError when clients send too few requests."""
        deadline = time.monotonic() + timeout_s
        while (left := self.left) > 0:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self._what}: {left} are left after {timeout_s:g} s")
            time.sleep(0.01)

    def cancel(self) -> None:
        """Stops replacing responses."""
        self._network.forget(self._target, self._rule)

    def __enter__(self) -> InjectedError:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()


class Network:
    """A process whose ports all links pass through. Ends are ``"clients"``, ``"store"``, or a broker id."""

    def __init__(self) -> None:
        self._directory = tempfile.mkdtemp(prefix="tidemill-network-")
        self._child = Child("tidemill.testing.network_process", os.path.join(self._directory, "network.log"))

    @property
    def log(self) -> str:
        """The log of the process."""
        return self._child.log

    def start(self) -> Network:
        """Starts the process."""
        self._child.start()
        return self

    def close(self) -> None:
        """Ends the process, and so every connection."""
        try:
            self._child.stop()
        finally:
            shutil.rmtree(self._directory, ignore_errors=True)

    def execute(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Sends a command to the process. Returns its response, after the command was executed."""
        return self._child.execute(command)

    # Ports

    def open(self, kind: str, target: str, source: str = "") -> int:
        """Opens a port; it refuses connections until :meth:`lead`."""
        return int(self.execute({"do": "open", "kind": kind, "target": target, "source": source})["port"])

    def lead(self, port: int, host: str, to: int) -> None:
        """Sets the destination of a port; it accepts connections once the destination listens."""
        self.execute({"do": "lead", "port": port, "host": host, "to": to})

    def listen(self, port: int) -> None:
        """Makes a port accept connections immediately."""
        self.execute({"do": "listen", "port": port})

    def refuse(self, port: int) -> None:
        """Makes a port refuse connections until its destination listens."""
        self.execute({"do": "refuse", "port": port})

    # Faults

    def cut(self, one: str | int, other: str | int, how: str = SILENT) -> None:
        """Cuts the link between two ends: nothing passes."""
        if how not in WAYS:
            raise ValueError(f"how={how!r}: it must be one of {', '.join(WAYS)}")
        self.execute({"do": "cut", "ends": [str(one), str(other)], "how": how})

    def heal(self, one: str | int | None = None, other: str | int | None = None) -> None:
        """Ends a cut; without arguments all cuts."""
        ends = None if one is None else [str(one), str(other)]
        self.execute({"do": "heal", "ends": ends})

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
        """Replaces the next responses of a broker (None: of any) to its clients by an error.

        Raises ValueError for names that do not exist.
        """
        from tidemill.testing.error_responses import api_named, error_named, has_error

        key, code = api_named(api), error_named(error)
        if times < 1:
            raise ValueError(f"times={times}: it must be at least 1")
        if not has_error(key):
            raise ValueError(f"responses of {key.name} have no error code")
        name = ANY if target is None else str(target)
        rule = self.execute(
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
        return InjectedError(self, name, int(rule), f"{code.name} in responses of {key.name}")

    def forget(self, target: str, rule: int | None = None) -> None:
        """Removes one rule of a broker, or without ``rule`` all of them."""
        self.execute({"do": "forget", "target": target, "rule": rule})


__all__ = ["BROKERS", "CLIENTS", "HOST", "STORE", "InjectedError", "Network"]
