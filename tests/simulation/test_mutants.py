"""The check of the checker: every deliberate bug is found. One that is not found is a missing invariant."""

from __future__ import annotations

import pytest

from sim.install import installed
from sim.mutants import MUTANTS, Mutant
from sim.order_mutants import ORDER_MUTANTS
from sim.plan import make_plan
from sim.run import run_plan

ALL = (*MUTANTS, *ORDER_MUTANTS)
#: A mutant must be found within this many seeds of the place where its hunt begins.
WITHIN = 2000


def test_there_are_enough_mutants_and_each_has_a_name_of_its_own() -> None:
    assert len({mutant.name for mutant in ALL}) == len(ALL) >= 15


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_the_simulator_finds(mutant: Mutant) -> None:
    with installed():
        assert not run_plan(make_plan(mutant.seed))[0].violation, "the seed fails without the mutant, too"
        with mutant.alive():
            for seed in range(mutant.seed, mutant.seed + WITHIN):
                if run_plan(make_plan(seed))[0].violation:
                    return
    pytest.fail(f"not found within {WITHIN} seeds")
