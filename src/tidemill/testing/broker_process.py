"""A broker whose disk a test can fill or slow down.

``python -m tidemill.testing.broker_process STATE serve ...``: runs ``tidemill serve ...`` with the file port
of :mod:`tidemill.testing.disk_files` on top of the real one.
"""

from __future__ import annotations

import runpy
import sys

from tidemill.testing.disk import DiskState


def main() -> None:
    """Installs the disk, and runs ``python -m tidemill`` with the other arguments."""
    state = DiskState(sys.argv.pop(1))

    from tidemill.coordination import embedded_store
    from tidemill.server import broker_server
    from tidemill.testing.disk_files import DiskDatabase, DiskFiles

    DiskDatabase.state = state
    embedded_store.database_class = DiskDatabase
    broker_server.make_files = lambda: DiskFiles(state)

    runpy.run_module("tidemill", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
