"""Tokens of one machine: the folder's own key pair, in place of an identity provider.

The private key is in the folder, for its owner only; whoever can read it may mint any token, and nothing else
in the folder, in an environment or on a command line is one. Tokens are minted when they are needed and live
for minutes. The API sees only the public half.
"""

from __future__ import annotations

import getpass
import json
import os
import time
from collections.abc import Generator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from jwt.algorithms import OKPAlgorithm

from api.auth import Claims, Role
from muster.errors import Refused

LOCAL = Claims(issuer="muster-local", audience="muster")
KEY_FILE = "api-key.pem"
JWKS_FILE = "jwks.json"
#: A token of a command or a loop; minted anew when half of it is gone.
BRIEF = timedelta(minutes=5)


class Signer:
    """Mints the tokens of one folder."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        public = OKPAlgorithm.to_jwk(key.public_key(), as_dict=True)
        self._kid = str(public["x"])[:16]
        self._jwk = {**public, "kid": self._kid, "use": "sig", "alg": "EdDSA"}

    @classmethod
    def new(cls) -> Signer:
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def read(cls, folder: Path) -> Signer:
        """The folder's own; `Refused` if it has none, or one that others can read."""
        path = folder / KEY_FILE
        try:
            if path.stat().st_mode & 0o077:
                raise Refused(f"{path} can be read by others: 'chmod 600 {path}', or delete it for a new one")
            key = serialization.load_pem_private_key(path.read_bytes(), None)
        except (OSError, ValueError) as missing:
            raise Refused(
                f"no key in {path} ({type(missing).__name__}); is this the folder of 'muster up'?"
            ) from missing
        if not isinstance(key, Ed25519PrivateKey):
            raise Refused(f"{path} is no Ed25519 key; delete it for a new one")
        return cls(key)

    @classmethod
    def make(cls, folder: Path) -> Signer:
        """The folder's own, made if there is none. Its public half is written beside it."""
        if not (folder / KEY_FILE).exists():
            cls.new().save(folder)
        signer = cls.read(folder)
        signer._publish(folder)
        return signer

    def save(self, folder: Path) -> None:
        """Both halves, each whole or not at all."""
        pem = self._key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        _write(folder / KEY_FILE, pem)
        self._publish(folder)

    def _publish(self, folder: Path) -> None:
        _write(folder / JWKS_FILE, json.dumps(self.jwks()).encode())

    def jwks(self) -> dict[str, Any]:
        return {"keys": [self._jwk]}

    def token(self, role: Role, user_id: str | None = None, ttl: timedelta = BRIEF, **claims: Any) -> str:
        """A token that is good from now on. `claims` stand over the usual ones."""
        now = int(time.time())
        usual = {
            "iss": LOCAL.issuer,
            "aud": LOCAL.audience,
            "sub": user_id or getpass.getuser(),
            "iat": now,
            "exp": now + round(ttl.total_seconds()),
            LOCAL.role: role.value,
        }
        return jwt.encode({**usual, **claims}, self._key, "EdDSA", {"kid": self._kid})


class GivenAuth(httpx.Auth):
    """A token that somebody was given."""

    def __init__(self, token: str) -> None:
        self._header = f"Bearer {token}"

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response]:
        request.headers["Authorization"] = self._header
        yield request


class OperatorAuth(httpx.Auth):
    """For a client of this machine that may live for days: its token is always young."""

    def __init__(self, folder: Path) -> None:
        self._signer = Signer.read(folder)
        self._token, self._minted = "", float("-inf")

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response]:
        if time.monotonic() - self._minted > BRIEF.total_seconds() / 2:
            self._token, self._minted = self._signer.token(Role.OPERATOR), time.monotonic()
        request.headers["Authorization"] = f"Bearer {self._token}"
        yield request


def _write(path: Path, content: bytes) -> None:
    draft = path.with_suffix(".tmp")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        out.write(content)
    draft.replace(path)
