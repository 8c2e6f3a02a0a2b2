"""Broker credentials by reference. What is read here is never written: the scrubber learns it first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from muster.brokers.port import BadCredentials, Credentials
from muster.errors import TryLater, aws_errors
from muster.scrub import learn, learn_fields


def secrets_reader(secrets: Any) -> Callable[[str], Credentials]:
    """A function from reference to credentials, on a Secrets Manager client.

    It raises `BadCredentials` when there is nothing usable under the reference, and `TryLater`.
    """

    def read(reference: str) -> Credentials:
        try:
            text = secrets.get_secret_value(SecretId=reference)["SecretString"]
        except secrets.exceptions.ResourceNotFoundException as missing:
            raise BadCredentials(f"there is no secret {reference!r}; store it, then start again") from missing
        except aws_errors() as away:
            raise TryLater("Secrets Manager is away; this is tried again") from away
        found = Credentials.parse(text)
        learn(found.key_id, found.secret)
        learn_fields(found.options)
        return found

    return read
