"""Who is asking. The API needs only this port; how a token proves somebody is an implementation's matter."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Protocol

from muster.errors import Refused

_SHORTEST_TOKEN = 16


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody whose token was good."""

    subject: str


class Authenticator(Protocol):
    """Judges bearer tokens. Must not block: it runs before every request."""

    def authenticate(self, token: str) -> Principal | None:
        """Whose token this is; None if nobody's. Takes the same time for every wrong token."""
        ...


class StaticToken:
    """One shared token, held by whoever may do everything."""

    def __init__(self, token: str, subject: str = "operator") -> None:
        if len(token) < _SHORTEST_TOKEN:
            raise Refused(
                f"the API token has {len(token)} characters; take at least {_SHORTEST_TOKEN}, "
                "for example from 'openssl rand -hex 32'"
            )
        self._token = token.encode()
        self._principal = Principal(subject)

    def authenticate(self, token: str) -> Principal | None:
        same = hmac.compare_digest(token.encode("utf-8", "surrogateescape"), self._token)
        return self._principal if same else None
