"""``python -m tidemill`` and the script ``tidemill``: run the command line, handle signals during imports."""

from __future__ import annotations

import sys

from tidemill import _interrupts


def main() -> None:
    """Runs the command line, and exits with its exit code."""
    try:
        _interrupts.watch()
        from tidemill.cli.main import main as command

        command()
    except KeyboardInterrupt:
        # Only before the start of the command, which handles signals itself.
        sys.exit(_interrupts.exit_code(sys.argv[1:]))


if __name__ == "__main__":
    main()
