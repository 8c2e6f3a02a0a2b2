"""How many workers an instance holds: the profiles must fit what instances really register."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from infra.config import ENVIRONMENTS
from muster.blueprint import DENSE, WORKER_PROFILES, WORKERS
from muster.capacity import CONTAINER_FILES, FILES_PER_TASK, room


@pytest.mark.parametrize("profile", WORKER_PROFILES)
def test_a_profile_fits_on_what_an_instance_registers(profile: str) -> None:
    seen = room(profile)

    assert seen.registered_mb < seen.fleet.instance.memory_mb
    assert seen.fits, seen.tightest
    assert seen.headroom >= 0 <= seen.free_mb
    assert FILES_PER_TASK < CONTAINER_FILES


def test_the_seeds_workers_are_bound_by_cpu() -> None:
    seen = room("seed")
    assert (seen.tightest.name, seen.tightest.room, seen.headroom) == ("CPU units", 32, 2)


def test_a_dense_instance_holds_at_least_two_hundred_users() -> None:
    assert room("dense").fleet.tasks_per_instance >= 200
    assert DENSE.task.soft_memory_mb < WORKERS.task.soft_memory_mb


def test_the_worst_case_never_promises_more_memory_than_there_is() -> None:
    for profile in WORKER_PROFILES:
        seen = room(profile)
        task, planned = seen.fleet.task, seen.fleet.tasks_per_instance
        used = seen.at_hard_limit * task.hard_memory_mb + (planned - seen.at_hard_limit) * task.soft_memory_mb
        assert used <= seen.for_tasks_mb


def test_an_instance_that_registers_too_little_does_not_fit() -> None:
    assert not room("dense", registered_mb=8000).fits


def test_an_environment_chooses_its_profile_by_name() -> None:
    assert replace(ENVIRONMENTS["dev"], profile="dense").fleet is DENSE
    assert {environment.fleet for environment in ENVIRONMENTS.values()} == {WORKERS}
    with pytest.raises(ValueError, match="give one of seed, dense"):
        replace(ENVIRONMENTS["dev"], profile="crowded")


def test_the_command_tells_the_same_in_json() -> None:
    words = [sys.executable, "-m", "cli.main", "capacity", "--profile", "dense", "--json"]
    said = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    seen = room("dense")
    assert (said["workers_per_instance"], said["at_hard_limit"]) == (200, seen.at_hard_limit)
