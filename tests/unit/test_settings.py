"""Settings: typed, from an environment that is passed in, refused by name."""

from __future__ import annotations

import pytest

from muster import blueprint
from muster.errors import Refused
from muster.settings import Settings


def test_an_empty_environment_gives_the_local_defaults() -> None:
    settings = Settings.from_env({})
    assert settings == Settings()
    assert settings.pool_target == blueprint.POOL_TARGET


def test_every_kind_of_value_is_read() -> None:
    settings = Settings.from_env(
        {
            "MUSTER_VALKEY_URL": "rediss://cache:6379/0",
            "MUSTER_VALKEY_CLUSTER": "true",
            "MUSTER_POOL_TARGET": "12",
            "MUSTER_CLAIM_CHANNEL": "valkey",
            "AWS_REGION": "eu-central-1",
        }
    )
    assert settings.valkey_url == "rediss://cache:6379/0"
    assert (settings.valkey_cluster, settings.pool_target, settings.claim_channel) == (True, 12, "valkey")
    assert settings.region == "eu-central-1"


def test_our_own_region_wins_over_the_hosts() -> None:
    assert (
        Settings.from_env({"MUSTER_REGION": "a", "AWS_REGION": "b", "AWS_DEFAULT_REGION": "c"}).region == "a"
    )
    assert Settings.from_env({"AWS_DEFAULT_REGION": "c"}).region == "c"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MUSTER_POOL_TARGET", "many"),
        ("MUSTER_POOL_TARGET", "-1"),
        ("MUSTER_POOL_TARGET", ""),
        ("MUSTER_VALKEY_CLUSTER", "yes"),
        ("MUSTER_CLAIM_CHANNEL", "pigeon"),
        ("MUSTER_LAUNCHER", ""),
        ("MUSTER_VALKEY_IAM_SERVICE", "redis"),
    ],
)
def test_a_wrong_value_is_refused_with_its_name(name: str, value: str) -> None:
    with pytest.raises(Refused, match=name):
        Settings.from_env({name: value})
