"""Bearer tokens: signed JWTs, verified against their issuer's published keys.

The claims that count: `iss`, `aud`, `exp`, `iat`, `sub`; the role in `muster_role` (a word, or a list such as
`cognito:groups`, of which the mightiest role counts); for role user the user id, which is `sub`. Both names
can be set. A verified token is remembered until it expires or the keys change, so verifying costs once per
token; it cannot outlive its key by that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import jwt
from pydantic import TypeAdapter, ValidationError

from api.auth import BadToken, Claims, Principal, Role
from api.ids import UserId
from api.keyset import ALGORITHMS, KeySet, jwks_at
from muster.clock import Clock, SystemClock
from muster.errors import Refused
from muster.settings import Settings

#: How far two clocks may be apart.
LEEWAY_S = 10
_LONGEST = 8 * 1024
_LONGEST_SUBJECT = 128
#: Tokens remembered as verified; more than this many bearers in five minutes verify again, which is slower
#: only.
_REMEMBERED = 10_000
_REQUIRED = ["exp", "iat", "iss", "aud", "sub"]
_user_id: TypeAdapter[str] = TypeAdapter(UserId)


@dataclass(frozen=True, slots=True)
class _Verified:
    principal: Principal
    until: float
    generation: int


class Tokens:
    """The `Authenticator` of every deployment; only the place of the keys differs."""

    def __init__(self, keys: KeySet, claims: Claims, clock: Clock | None = None) -> None:
        self._keys = keys
        self._claims = claims
        self._clock = clock or SystemClock()
        self._verified: dict[bytes, _Verified] = {}

    @classmethod
    def of(cls, settings: Settings) -> Tokens:
        """As the settings say; `Refused` if they do not say enough."""
        for name in ("auth_issuer", "auth_audience", "auth_jwks"):
            if not getattr(settings, name):
                raise Refused(f"MUSTER_{name.upper()} is not set; without it no token can be verified")
        claims = Claims(
            settings.auth_issuer, settings.auth_audience, settings.auth_role_claim, settings.auth_user_claim
        )
        return cls(KeySet(jwks_at(settings.auth_jwks)), claims)

    async def authenticate(self, token: str) -> Principal:
        await self._keys.keep_fresh()
        # By digest: a dump of the memory of this process then holds no token that is not in use.
        digest = sha256(token.encode("utf-8", "surrogateescape")).digest()
        known = self._verified.get(digest)
        if known and known.generation == self._keys.generation and self._clock.now() < known.until:
            return known.principal
        claims = await self._verify(token)
        principal = self._principal(claims)
        if len(self._verified) >= _REMEMBERED:
            self._verified.clear()
        self._verified[digest] = _Verified(principal, claims["exp"] + LEEWAY_S, self._keys.generation)
        return principal

    async def _verify(self, token: str) -> Mapping[str, Any]:
        if len(token) > _LONGEST:
            raise BadToken(f"the token is longer than {_LONGEST} characters")
        try:
            header = jwt.get_unverified_header(token)
            if header.get("alg") not in ALGORITHMS or not isinstance(header.get("kid"), str):
                raise BadToken(
                    f"the token must be signed with {', '.join(ALGORITHMS)} and name its key (kid)"
                )
            claims: Mapping[str, Any] = jwt.decode(
                token,
                await self._keys.find(header["kid"]),
                algorithms=list(ALGORITHMS),
                issuer=self._claims.issuer,
                audience=self._claims.audience,
                leeway=LEEWAY_S,
                options={"require": _REQUIRED, "enforce_minimum_key_length": True},
            )
        except jwt.ExpiredSignatureError as old:
            raise BadToken("the token has expired; get a new one") from old
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError) as wrong:
            raise BadToken("the token is not one for this API; get a new one") from wrong
        return claims

    def _principal(self, claims: Mapping[str, Any]) -> Principal:
        subject = claims["sub"]
        if not subject.isprintable() or not 0 < len(subject) <= _LONGEST_SUBJECT:
            raise BadToken(f"the token's subject must be 1 to {_LONGEST_SUBJECT} printable characters")
        role = self._role(claims.get(self._claims.role))
        if role is not Role.USER:
            return Principal(subject, role)
        try:
            return Principal(
                subject, role, _user_id.validate_python(claims.get(self._claims.user), strict=True)
            )
        except ValidationError as wrong:
            raise BadToken(f"the token's {self._claims.user} is no user id") from wrong

    def _role(self, said: object) -> Role:
        named = said if isinstance(said, list) else [said]
        for role in reversed(Role):
            if role.value in named:
                return role
        raise BadToken(f"the token's {self._claims.role} names no role; one of {', '.join(Role)} is needed")
