"""Who is asking, and what they may do. How a token proves it is `api.tokens`' matter."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Right(StrEnum):
    """One thing a role allows."""

    OWN_READ = "own:read"  #: see one's own worker and orders
    OWN_CHANGE = "own:change"  #: start, stop and restart one's own worker, place and cancel one's own orders
    FLEET_READ = "fleet:read"  #: see every user, the pool, the queues, the jobs and the audit
    FLEET_CHANGE = "fleet:change"  #: change any of them


class Role(StrEnum):
    """What a token makes its bearer. The mightiest last."""

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
    role: Role
    user_id: str | None = None  #: whose worker is its own; only a user has one


@dataclass(frozen=True, slots=True)
class Claims:
    """What a token of a deployment must say, and in which claims it says the rest."""

    issuer: str
    audience: str
    role: str = "muster_role"
    user: str = "sub"


class BadToken(Exception):
    """This token opens nothing. The text is for the caller: it says why, and never repeats the token."""


class Authenticator(Protocol):
    """Judges bearer tokens."""

    async def authenticate(self, token: str) -> Principal:
        """Whose token this is. `BadToken`: nobody's. `TryLater`: the keys to judge it cannot be had now."""
        ...
