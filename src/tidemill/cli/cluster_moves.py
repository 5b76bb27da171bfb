"""Parts of ``tidemill cluster`` that move data and leaderships: decommission, rebalance, elect."""

from __future__ import annotations

import click

COMMANDS: list[click.Command] = []
