"""The templates pass the checks of others, and the checks are awake."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from infra.permissions import UNSCOPED
from tests.infra.synthesis import VARIANTS, Synth, run

#: CDK writes some dependencies twice; CloudFormation does not mind.
CFN_LINT_IGNORED = "W3005"


def test_cdk_nag_has_no_open_finding(synths: dict[str, Synth]) -> None:
    for synth in synths.values():
        report = json.loads((synth.folder / "validation-report.json").read_text())
        assert report["pluginReports"] == []


def test_cdk_nag_catches_a_bad_stack(checkout: Path, tmp_path: Path) -> None:
    done = run(checkout, tmp_path / "out", str(VARIANTS), "bad")
    assert done.returncode != 0
    said = done.stdout + done.stderr
    for rule in ("SQS3", "SQS4", "IAM4", "IAM5[Resource::*]", "IAM5[Action::sqs:*]"):
        assert f"AwsSolutions-{rule}" in said, f"{rule} was not caught"


def test_cfn_lint_is_clean(synths: dict[str, Synth], secure: Synth) -> None:
    folders = [synth.folder for synth in synths.values()] + [secure.folder]
    templates = [str(path) for folder in folders for path in sorted(folder.glob("*.template.json"))]
    assert len(templates) == 7 + 7 + 2 + 7
    linter = Path(sys.executable).with_name("cfn-lint")
    done = subprocess.run(
        [linter, "--ignore-checks", CFN_LINT_IGNORED, "--", *templates],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_cfn_lint_catches_a_bad_template(tmp_path: Path) -> None:
    bad = {"Resources": {"Q": {"Type": "AWS::SQS::Queue", "Properties": {"VisibilityTimeout": 50000}}}}
    path = tmp_path / "bad.template.json"
    path.write_text(json.dumps(bad))
    linter = Path(sys.executable).with_name("cfn-lint")
    done = subprocess.run([linter, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode != 0


def allowed(template: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every statement that allows something to an identity."""
    for resource in template["Resources"].values():
        properties = resource.get("Properties", {})
        if resource["Type"] == "AWS::IAM::Role":
            documents = [p["PolicyDocument"] for p in properties.get("Policies", [])]
            assert "ManagedPolicyArns" not in properties, "a managed policy is wider than it needs to be"
        elif resource["Type"] in ("AWS::IAM::Policy", "AWS::IAM::ManagedPolicy"):
            documents = [properties["PolicyDocument"]]
        else:
            continue
        for document in documents:
            yield from (s for s in document["Statement"] if s["Effect"] == "Allow")


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def test_no_policy_names_an_action_by_wildcard(synths: dict[str, Synth]) -> None:
    for synth in synths.values():
        for template in synth.templates.values():
            for statement in allowed(template):
                assert not [action for action in listed(statement["Action"]) if "*" in action]


def test_only_what_aws_cannot_scope_is_allowed_on_everything(synths: dict[str, Synth]) -> None:
    used = set()
    for synth in synths.values():
        for template in synth.templates.values():
            for statement in allowed(template):
                if "*" in listed(statement["Resource"]):
                    used |= set(listed(statement["Action"]))
    assert used == set(UNSCOPED), "an action on '*' needs its reason in infra.permissions.UNSCOPED"


def test_listing_tasks_is_narrowed_to_our_cluster(deployed: Synth) -> None:
    found = [
        statement
        for statement in allowed(deployed.templates["control-plane"])
        if "ecs:ListTasks" in listed(statement["Action"])
    ]
    assert len(found) == 2
    for statement in found:
        assert statement["Condition"]["ArnEquals"].keys() == {"ecs:cluster"}


def test_a_role_is_passed_only_to_the_service_that_needs_it(deployed: Synth) -> None:
    passing = [
        statement
        for statement in allowed(deployed.templates["control-plane"])
        if "iam:PassRole" in listed(statement["Action"])
    ]
    services = {s["Condition"]["StringEquals"]["iam:PassedToService"] for s in passing}
    assert services == {"ecs-tasks.amazonaws.com", "scheduler.amazonaws.com"}
