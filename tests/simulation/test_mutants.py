"""The check of the checker: every deliberate bug is found. One that is not found is a missing invariant."""

from __future__ import annotations

import pytest

from sim.install import installed
from sim.mutants import FOUND_WITHIN, MUTANTS, Mutant
from sim.order_mutants import ORDER_MUTANTS
from sim.plan import make_plan
from sim.run import run_plan

ALL = (*MUTANTS, *ORDER_MUTANTS)


def test_there_are_enough_mutants_and_each_has_a_name_of_its_own() -> None:
    assert len({mutant.name for mutant in ALL}) == len(ALL) >= 15


def test_a_hunt_goes_through_the_first_two_thousand_seeds_wherever_it_begins() -> None:
    for begin in (0, 1228, FOUND_WITHIN, FOUND_WITHIN + 149):
        seeds = list(Mutant("any", "", "", "", seed=begin).hunt)
        assert sorted(seeds) == list(range(2000))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_the_simulator_finds(mutant: Mutant) -> None:
    with installed():
        with mutant.alive():
            found = next((seed for seed in mutant.hunt if run_plan(make_plan(seed))[0].violation), None)
        assert found is not None, f"in none of the seeds below {FOUND_WITHIN}"
        assert not run_plan(make_plan(found))[0].violation, f"seed {found} fails without the mutant, too"
