"""Who is asking, and what they may do. How a token proves somebody is an authenticator's matter."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from muster.errors import Refused

_SHORTEST_TOKEN = 16


class Right(StrEnum):
    """One thing a role allows."""

    OWN_READ = "own:read"  #: see one's own worker and orders
    OWN_CHANGE = "own:change"  #: start, stop and restart one's own worker, place and cancel one's own orders
    FLEET_READ = "fleet:read"  #: see every user, the pool, the queues, the jobs and the audit
    FLEET_CHANGE = "fleet:change"  #: change any of them


class Role(StrEnum):
    """What a token makes its bearer."""

    USER = "user"  #: one user, named in the token: sees and commands its own worker, and nobody else's
    VIEWER = "viewer"  #: sees everything, changes nothing
    OPERATOR = "operator"  #: sees and changes everything

    @property
    def rights(self) -> frozenset[Right]:
        return _RIGHTS[self]


_RIGHTS = {
    Role.USER: frozenset({Right.OWN_READ, Right.OWN_CHANGE}),
    Role.VIEWER: frozenset({Right.FLEET_READ}),
    Role.OPERATOR: frozenset({Right.FLEET_READ, Right.FLEET_CHANGE}),
}


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody whose token was good."""

    subject: str
    role: Role = Role.OPERATOR
    user_id: str | None = None  #: whose worker is its own; only a user has one


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
