"""``python -m tidemill`` and the script ``tidemill``: the command, and quiet about ctrl-C while it loads."""

from __future__ import annotations

import sys

from tidemill import _interrupts

INTERRUPTED = 130


def main() -> None:
    """Runs the command line and ends the process with its exit code."""
    serves = sys.argv[1:2] == ["serve"]
    try:
        if serves:
            _interrupts.watch()
        from tidemill.cli.main import main as command

        command()
    except KeyboardInterrupt:
        # Only before the command had begun; what it does with ctrl-C is its own matter.
        sys.exit(0 if serves else INTERRUPTED)


if __name__ == "__main__":
    main()
