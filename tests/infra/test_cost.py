"""`muster cost`: the arithmetic, and that it speaks of the environments that are deployed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from infra.config import ENVIRONMENTS
from muster import blueprint
from muster.cost import (
    FOOTPRINTS,
    Load,
    Prices,
    compute_of,
    million_starts,
    monthly,
    worker_hosts,
)
from tests.infra.synthesis import Synth


@pytest.mark.parametrize("name", sorted(FOOTPRINTS))
def test_a_footprint_is_the_one_of_its_environment(name: str) -> None:
    environment, footprint = ENVIRONMENTS[name], FOOTPRINTS[name]
    assert footprint.zones == environment.availability_zones
    assert footprint.nat_gateways == environment.nat_gateways
    assert bool(footprint.endpoints) is environment.interface_endpoints
    assert footprint.api_hosts == environment.api.minimum
    assert footprint.least_worker_hosts == environment.workers.minimum
    assert footprint.pool_target == environment.pool_target
    assert footprint.valkey_node == environment.valkey_node
    assert footprint.valkey_nodes == environment.valkey_replicas + 1
    assert footprint.waf is environment.waf


def test_counts_come_from_the_templates(prod: Synth) -> None:
    assert FOOTPRINTS["prod"].alarms == len(prod.resources("observability", "AWS::CloudWatch::Alarm"))
    endpoints = prod.resources("network", "AWS::EC2::VPCEndpoint").values()
    assert FOOTPRINTS["prod"].endpoints == sum(e["VpcEndpointType"] == "Interface" for e in endpoints)


def test_thirty_users_share_a_host_and_none_needs_none() -> None:
    dev = FOOTPRINTS["dev"]
    assert [worker_hosts(dev, users) for users in (0, 1, 30, 31, 1000)] == [0, 1, 1, 2, 34]
    assert worker_hosts(FOOTPRINTS["prod"], 0) == 1


def test_an_idle_dev_pays_for_no_worker_and_a_user_costs_what_hosts_and_secrets_cost() -> None:
    prices = Prices.load()
    idle = monthly(FOOTPRINTS["dev"], Load(), prices)
    assert idle["worker instances"] == 0
    used = monthly(FOOTPRINTS["dev"], Load(users=30), prices)
    host = prices.values["hour"]["r6i.large"] * 730 + 30 * prices.values["month"]["disk_gb"]
    assert used["worker instances"] == pytest.approx(host)
    assert used["secrets"] - idle["secrets"] == pytest.approx(30 * prices.values["month"]["secret"])
    assert used["Valkey"] == idle["Valkey"]


def test_sharing_an_instance_is_weighed_against_a_task_and_an_instance_of_ones_own() -> None:
    prices, load = Prices.load(), Load(users=1000)
    ways = compute_of(FOOTPRINTS["prod"], load, prices)
    hour, disk = prices.values["hour"], prices.values["month"]["disk_gb"]
    assert [usd for way, usd in ways.items() if "Fargate" in way] == [
        pytest.approx(730_000 * (0.25 * hour["fargate_vcpu"] + 0.5 * hour["fargate_gb"]))
    ]
    assert [usd for way, usd in ways.items() if "t4g.nano" in way] == [
        pytest.approx(1000 * (730 * hour["t4g.nano"] + 8 * disk))
    ]
    for name, fleet in blueprint.WORKER_PROFILES.items():
        mine = monthly(FOOTPRINTS["prod"], load, prices, fleet)["worker instances"]
        assert [usd for way, usd in ways.items() if way.startswith(name)] == [mine]


def test_a_million_starts_cost_what_their_messages_and_runs_cost() -> None:
    assert million_starts(Prices.load()) == pytest.approx(
        3 * 0.50 + 3 * 0.40 + 0.20 + 500_000 * 0.25 * 0.0000133334
    )


def test_the_command_prints_stable_fields() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cli.main", "cost", "--users", "1000", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    answer = json.loads(done.stdout)
    assert answer["worker_hosts"] == 34
    assert answer["used_total"] > answer["idle_total"] > 0
    assert answer["used_total"] == pytest.approx(sum(answer["used"].values()), abs=0.1)
    assert answer["prices"]["region"] == "eu-west-1"
