"""``python -m tidemill`` is the ``tidemill`` command."""

from tidemill.cli.main import main

if __name__ == "__main__":
    main()
