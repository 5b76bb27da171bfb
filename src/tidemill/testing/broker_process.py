"""A broker whose disk a test fills or slows down.

``python -m tidemill.testing.broker_process STATE serve ...``: as ``tidemill serve ...``, with the file port
of :mod:`tidemill.testing.disk_files` over the real one.
"""

from __future__ import annotations

import runpy
import sys

from tidemill.testing.disk import DiskState


def main() -> None:
    """Puts the disk in place, and runs ``python -m tidemill`` with the other arguments."""
    state = DiskState(sys.argv.pop(1))

    from tidemill.coordination import embedded
    from tidemill.server import app
    from tidemill.testing.disk_files import DiskDatabase, DiskFiles

    DiskDatabase.state = state
    embedded.database_class = DiskDatabase
    app.make_files = lambda: DiskFiles(state)

    runpy.run_module("tidemill", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
