"""Whose tokens a deployed API takes: named in its environment, or nothing is synthesised."""

from __future__ import annotations

from dataclasses import replace

import pytest

from api.tokens import Tokens as Verifier
from infra.config import ENVIRONMENTS, Tokens, cognito
from muster.settings import Settings
from tests.infra.synthesis import Synth
from tests.infra.test_fleet_tables import api_task, container


@pytest.mark.parametrize("name", ["dev", "stage", "prod"])
def test_an_environment_without_an_issuer_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="issuer"):
        replace(ENVIRONMENTS[name], tokens=None)


@pytest.mark.parametrize(
    ("issuer", "audience", "jwks"),
    [("", "a", "https://i/k"), ("i", "", "https://i/k"), ("i", "a", ""), ("i", "a", "http://i/k")],
)
def test_half_an_issuer_is_refused(issuer: str, audience: str, jwks: str) -> None:
    with pytest.raises(ValueError, match="issuer, audience"):
        Tokens(issuer, audience, jwks)


def test_the_api_task_gets_settings_that_its_verifier_takes_and_no_secret(deployed: Synth) -> None:
    made = container(api_task(deployed))
    assert "Secrets" not in made
    variables = {one["Name"]: one["Value"] for one in made["Environment"] if isinstance(one["Value"], str)}
    settings = Settings.from_env(variables)
    expected = cognito("eu-west-1", "eu-west-1_example", f"muster-{deployed.environment}")
    assert (settings.auth_issuer, settings.auth_audience) == (expected.issuer, expected.audience)
    assert settings.auth_role_claim == "cognito:groups"
    assert isinstance(Verifier.of(settings), Verifier)
