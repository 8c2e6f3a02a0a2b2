"""The check of the checker: the job world finds every deliberate bug in the job code."""

from __future__ import annotations

import pytest

from sim.jobs.install import installed
from sim.jobs.mutants import MUTANTS
from sim.jobs.plan import make_plan
from sim.jobs.run import run_plan
from sim.mutants import FOUND_WITHIN, Mutant


def test_there_are_enough_mutants_and_each_has_a_name_of_its_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 8


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_job_world_finds(mutant: Mutant) -> None:
    with installed():
        with mutant.alive():
            found = next((seed for seed in mutant.hunt if run_plan(make_plan(seed))[0].violation), None)
        assert found is not None, f"in none of the seeds below {FOUND_WITHIN}"
        assert not run_plan(make_plan(found))[0].violation, f"seed {found} fails without the mutant, too"
