"""Every alarm has its page, its page has what a person needs, and every metric it watches is emitted."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import pytest

from lambdas.order_tasks.handler import _count as count
from lambdas.telemetry import NAMESPACE, Metric
from muster import blueprint
from tests.infra.synthesis import ROOT, Synth
from worker.exits import Exit
from worker.link import tell_differs

RUNBOOKS = ROOT / "docs" / "runbooks"
ALARM = "AWS::CloudWatch::Alarm"
EXPECTED = {
    "orchestrator-dlq-has-messages",
    "order-tasks-dlq-has-messages",
    "orders-differ",
    "function-errors",
    "function-throttles",
    "queue-age",
    "pool-hit-rate",
    "given-up",
    "unaccounted",
    "leases-lost",
    "jobs-waiting",
    "jobs-poisoned",
    "sweep-slow",
    "sweep-missing",
    "valkey-evictions",
    "valkey-memory",
    "valkey-replication-lag",
    "api-unhealthy",
}


def alarms(synth: Synth) -> dict[str, dict[str, Any]]:
    made = synth.resources("observability", ALARM).values()
    return {alarm["AlarmName"].removeprefix(f"{synth.environment}-"): alarm for alarm in made}


def test_every_alarm_is_there_and_tells_somebody(deployed: Synth) -> None:
    assert set(alarms(deployed)) == EXPECTED
    (topic,) = deployed.resources("observability", "AWS::SNS::Topic")
    for alarm in alarms(deployed).values():
        assert alarm["AlarmActions"] == alarm["OKActions"] == [{"Ref": topic}]


def test_alarms_and_pages_are_the_same_set(prod: Synth) -> None:
    pages = {page.stem for page in RUNBOOKS.glob("*.md")} - {"README"}
    assert pages == set(alarms(prod))


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_an_alarm_points_at_a_page_that_says_what_to_do(prod: Synth, name: str) -> None:
    description = alarms(prod)[name]["AlarmDescription"]
    assert description.endswith(f"docs/runbooks/{name}.md")
    page = (RUNBOOKS / f"{name}.md").read_text()
    assert page.startswith(f"# {name}\n")
    for heading in ("## What it means", "## Look", "## Act", "## It is over when"):
        assert heading in page, f"{name} has no {heading!r}"


def metrics_of(alarm: dict[str, Any]) -> list[dict[str, Any]]:
    if "MetricName" in alarm:
        return [alarm]
    return [entry["MetricStat"]["Metric"] for entry in alarm["Metrics"] if "MetricStat" in entry]


def test_alarms_watch_only_metrics_that_the_code_names(deployed: Synth) -> None:
    own = [m for alarm in alarms(deployed).values() for m in metrics_of(alarm) if m["Namespace"] == NAMESPACE]
    assert len(own) == 12
    for metric in own:
        assert metric["MetricName"] in set(Metric)
        # Powertools names the function; the count of lost leases comes from the workers' log.
        dimensions = {d["Name"]: d["Value"] for d in metric.get("Dimensions", [])}
        if metric["MetricName"] == Metric.LEASES_LOST:
            assert dimensions == {}
        elif "outcome" in dimensions:
            assert metric["MetricName"] == Metric.FILL_CHECKS
        else:
            assert dimensions["service"] in {function.name for function in blueprint.FUNCTIONS}


def test_a_lost_lease_is_counted_from_the_line_a_worker_leaves(deployed: Synth) -> None:
    counted = deployed.only("cluster", "AWS::Logs::MetricFilter")
    said = f"exit {int(Exit.LEASE_LOST)} ({Exit.LEASE_LOST.name.lower()}): the mark could not be renewed"
    (pattern,) = re.findall(r'\$\.message = "(.*)\*"', counted["FilterPattern"])
    assert said.startswith(pattern)
    (transformation,) = counted["MetricTransformations"]
    assert (transformation["MetricNamespace"], transformation["MetricName"]) == (NAMESPACE, "LeasesLost")


def test_an_order_that_differs_is_heard_of_from_the_function_and_from_the_worker(
    deployed: Synth, capsys: pytest.CaptureFixture[str]
) -> None:
    alarm = alarms(deployed)["orders-differ"]
    assert (alarm["Threshold"], alarm["ComparisonOperator"]) == (0, "GreaterThanThreshold")
    watched = [{d["Name"]: d["Value"] for d in metric["Dimensions"]} for metric in metrics_of(alarm)]
    tell_differs()
    with pytest.MonkeyPatch.context() as aws:
        aws.setenv("POWERTOOLS_SERVICE_NAME", "muster")
        count(Counter({"differs": 1}), 0)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    emitted = []
    for line in lines:
        (spec,) = line["_aws"]["CloudWatchMetrics"]
        assert (spec["Namespace"], spec["Metrics"][0]["Name"]) == (NAMESPACE, Metric.FILL_CHECKS)
        emitted.append({name: line[name] for name in spec["Dimensions"][0]})
    assert emitted == [watched[1], watched[0]], "the same dimensions, or the alarm would never speak"


def test_the_sweep_alarms_speak_at_45_seconds_and_in_silence(prod: Synth) -> None:
    slow = alarms(prod)["sweep-slow"]
    assert slow["Threshold"] == blueprint.SWEEP_ALARM.total_seconds() == 45
    assert alarms(prod)["sweep-missing"]["TreatMissingData"] == "breaching"


def test_valkey_is_watched_on_every_node(prod: Synth, dev: Synth) -> None:
    for synth, nodes in ((prod, 3), (dev, 2)):
        for name in ("valkey-evictions", "valkey-memory", "valkey-replication-lag"):
            assert len(metrics_of(alarms(synth)[name])) == nodes


def test_the_dashboard_shows_what_the_design_asks_for(prod: Synth) -> None:
    body = json.dumps(prod.only("observability", "AWS::CloudWatch::Dashboard")["DashboardBody"])
    for title in ("Start latency", "Pool: idle against target", "Workers by phase", "Sweeps", "Jobs"):
        assert title in body
    for title in (
        "Fill checks, and orders that differ",
        "Messages waiting",
        "Function calls",
        "Function errors and throttles",
        "Valkey",
    ):
        assert title in body
