"""Several ZooKeeper servers that replicate one tree."""

from __future__ import annotations

from types import TracebackType

from tidemill.testing.zookeeper import PORTS_TRIED_MAX, ZooKeeper, ZooKeeperFailed, free_ports


class Ensemble:
    """``with Ensemble(3) as ensemble:`` starts this number of servers, which replicate one tree."""

    def __init__(self, count: int = 3) -> None:
        self._count = count
        self.servers = self._with_free_ports()

    def _with_free_ports(self) -> list[ZooKeeper]:
        count = self._count
        ports = free_ports(3 * count)
        settings = {"initLimit": "50", "syncLimit": "50", "standaloneEnabled": "false"}
        for number in range(count):
            peer, election = ports[3 * number : 3 * number + 2]
            settings[f"server.{number + 1}"] = f"127.0.0.1:{peer}:{election}"
        servers = [ZooKeeper(settings, member=number) for number in range(1, count + 1)]
        for number, server in enumerate(servers):
            server.port = ports[3 * number + 2]
        return servers

    @property
    def address(self) -> str:
        """``host:port,host:port,...``, for ``zookeeper.connect``."""
        return ",".join(server.address for server in self.servers)

    def __enter__(self) -> Ensemble:
        for tries_left in reversed(range(PORTS_TRIED_MAX)):
            try:
                for server in self.servers:
                    server.launch(server.port)
                for server in self.servers:
                    server.wait_ready()
                break
            except BaseException as error:
                self.close()
                if not tries_left or not isinstance(error, ZooKeeperFailed):
                    raise
                # Another program may have taken one of the ports.
                self.servers = self._with_free_ports()
        return self

    def close(self) -> None:
        """Ends all servers."""
        for server in self.servers:
            server.close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
