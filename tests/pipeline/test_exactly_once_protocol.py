"""The protocol of the exactly-once sink keeps its promises in simulated worlds, and needs each rule."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest
from sink_world import World

from tidemill.pipeline.exactly_once import batch_state, protocol

SEEDS, SEEDS_A_TEST = 3000, 500
FAULT_SEEDS = 6000
"""So many seeds at most find a planted fault."""


class PlantedFault(NamedTuple):
    """An edit that leaves out one rule."""

    rule: str
    module: ModuleType
    text: str
    replacement: str
    second: tuple[str, str] | None = None
    """Another text with its replacement, where a rule is checked twice."""
    first_seed: int = 0
    """The seeds are tried from this one on: few seeds find a fault that needs a rare order of events."""


FAULTS = {
    "listed-after-read": PlantedFault(
        "Transactions are listed before the control topic is read.",
        protocol,
        """    listed = yield from ask(ListTransactions(batch.query))
    state = yield from ask(ReadControl(batch))
    written =""",
        """    state = yield from ask(ReadControl(batch))
    listed = yield from ask(ListTransactions(batch.query))
    written =""",
    ),
    "decision-after-newer-begin": PlantedFault(
        "A decision is not valid after the begin of a newer attempt.",
        batch_state,
        "self.is_superseded(decision.token) or decision.token in",
        "decision.token in",
    ),
    "decision-after-abandon": PlantedFault(
        "A decision is not valid after the abandon of its attempt.",
        batch_state,
        " or decision.token in self._abandoned",
        "",
    ),
    "validity-not-checked": PlantedFault(
        "An attempt ends its transactions only after it has read that its decision is valid.",
        protocol,
        """    if offset not in state.valid_offsets or state.valid is None:
        raise Superseded(_superseded(batch))
    skipped = frozenset(one.task for one in missing)
    yield from _complete(batch, token, state.valid, written, skipped, skips_lost_rows=skips_lost_rows)
""",
        """    skipped = frozenset(one.task for one in missing)
    decided = ValidDecision(offset, decision, frozenset())
    yield from _complete(batch, token, decided, written, skipped, skips_lost_rows=skips_lost_rows)
""",
    ),
    "aborted-without-abandon": PlantedFault(
        "An attempt appends abandon before it aborts its transactions.",
        protocol,
        """    offset = yield from ask(AppendControl(Abandon(batch, token)))
    state = yield from ask(ReadControl(batch, offset))
""",
        """    state = yield from ask(ReadControl(batch))
""",
        first_seed=1200,
    ),
    "winners-aborted": PlantedFault(
        "An attempt does not abort the transactions of a valid decision.",
        protocol,
        "_abort(one for one in written if one not in kept)",
        "_abort(written)",
    ),
    "others-winners-aborted": PlantedFault(
        "The commit does not abort the transactions that it has chosen.",
        protocol,
        """    yield from _abort(one for one in listed if one not in kept)
    offset =""",
        """    yield from _abort(listed)
    offset =""",
    ),
    "superseded-attempt-goes-on": PlantedFault(
        "A commit stops if a newer attempt has begun: it would abort the transactions of that.",
        protocol,
        """    if state.is_superseded(token):
        raise Superseded(_superseded(batch))
    decision, missing =""",
        "    decision, missing =",
    ),
    "only-own-done-counts": PlantedFault(
        "A batch is done if a later one is.",
        batch_state,
        "self.is_done = self._done_number >= self.batch.number",
        "self.is_done = self._done_number == self.batch.number",
    ),
    "other-rows-for-lost-ones": PlantedFault(
        "Lost rows are replaced by the same rows.",
        protocol,
        ".rows == winner.rows), None)",
        ".rows.rows == winner.rows.rows), None)",
        (
            "and rows.rows not in [one.rows for one in",
            "and rows.rows.rows not in [one.rows.rows for one in",
        ),
    ),
    "lost-transactions-ignored": PlantedFault(
        "A winner that was aborted is written again.",
        protocol,
        """        if outcome is Outcome.ABORTED:
            lost.append(winner)
""",
        """        if outcome is Outcome.ABORTED:
            pass
""",
    ),
    "committed-counts-as-lost": PlantedFault(
        "A winner that has ended already may be committed.",
        protocol,
        "    return (yield from ask(FindOutcome(winner)))\n",
        "    return Outcome.ABORTED\n",
    ),
    "strays-listed-after-done-is-read": PlantedFault(
        "Transactions of a later batch are not aborted.",
        protocol,
        """    listed = yield from ask(ListTransactions(batch.query))
    state = yield from ask(ReadControl(batch))
    if state.is_done:
        yield from _abort(written)
        return
    if lost:
""",
        """    state = yield from ask(ReadControl(batch))
    if state.is_done:
        return
    listed = yield from ask(ListTransactions(batch.query))
    if lost:
""",
        first_seed=3600,
    ),
    "written-after-done": PlantedFault(
        "A task aborts what it has written after the batch was done.",
        protocol,
        "    return not state.is_done and _offset(",
        "    return _offset(",
    ),
    "written-after-the-decision": PlantedFault(
        "A task aborts what it has written after the batch was decided.",
        protocol,
        "    return not state.is_done and _offset(state.valid) == _offset(valid)\n",
        "    return not state.is_done\n",
        first_seed=5400,
    ),
    "strays-of-a-done-batch-stay": PlantedFault(
        "The commit of a batch that is done aborts what a former driver has left open.",
        protocol,
        "_abort(written if state.unfinished else dict.fromkeys([*listed, *written]))",
        "_abort(written)",
        first_seed=9400,
    ),
    "later-batch-taken-for-strays": PlantedFault(
        "The commit of a batch that is done aborts nothing of a later batch that has begun.",
        protocol,
        "_abort(written if state.unfinished else dict.fromkeys([*listed, *written]))",
        "_abort(dict.fromkeys([*listed, *written]))",
    ),
    "empty-attempt-does-not-begin": PlantedFault(
        "An attempt without rows begins as well.",
        protocol,
        "    if not any(one.has_rows for one in messages):\n",
        "    if False:\n",
    ),
}


def with_fault(fault: PlantedFault) -> ModuleType:
    """Returns the protocol with a planted fault."""
    modules = {}
    for module in (batch_state, protocol):
        text = Path(str(module.__file__)).read_text()
        edits = [(fault.text, fault.replacement), *([fault.second] if fault.second else [])]
        for old, new in edits if module is fault.module else ():
            assert text.count(old) == 1, f"the fault fits {text.count(old)} times: {old}"
            text = text.replace(old, new)
        edited = ModuleType(module.__name__)
        known = sys.modules[module.__name__]
        # Dataclasses look for their module there.
        sys.modules[module.__name__] = edited
        try:
            exec(compile(text, f"{module.__name__} with a fault", "exec"), vars(edited))
            if module is protocol:
                vars(edited)["BatchState"] = modules[batch_state].BatchState
                vars(edited)["ValidDecision"] = modules[batch_state].ValidDecision
        finally:
            sys.modules[module.__name__] = known
        modules[module] = edited
    return modules[protocol]


def faults_of(seed: int, code: ModuleType = protocol) -> list[str]:
    """Returns the broken promises of a seed."""
    world = World(seed, code)
    world.run()
    return list(world.faults())


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_A_TEST))
def test_each_row_is_committed_once(first: int) -> None:
    for seed in range(first, first + SEEDS_A_TEST):
        assert faults_of(seed) == [], seed


@pytest.mark.parametrize("name", FAULTS)
def test_each_rule_is_needed(name: str) -> None:
    code = with_fault(FAULTS[name])
    seeds = range(FAULTS[name].first_seed, FAULTS[name].first_seed + FAULT_SEEDS)
    assert any(faults_of(seed, code) for seed in seeds), FAULTS[name].rule
