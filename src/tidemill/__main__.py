"""``python -m tidemill`` and the script ``tidemill``: run the command line, handle ctrl-C during imports."""

from __future__ import annotations

import sys

from tidemill import _interrupts

INTERRUPTED = 130


def main() -> None:
    """Runs the command line, and exits with its exit code."""
    serves = sys.argv[1:2] == ["serve"]
    try:
        if serves:
            _interrupts.watch()
        from tidemill.cli.main import main as command

        command()
    except KeyboardInterrupt:
        # Only before the start of the command, which handles ctrl-C itself.
        sys.exit(0 if serves else INTERRUPTED)


if __name__ == "__main__":
    main()
