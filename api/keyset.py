"""The public keys that tokens are verified with, as their issuer publishes them (JWKS).

    0            fresh                 5 min       read again beside the requests           10 min
    |------------------------------------|--------------------------------------------------|---> wait for it

Keys are read again when they are five minutes old, so a key that its issuer has removed opens nothing after
that; and when a token names an unknown key (its issuer has a new one), though at most every ten seconds, so
that made-up names cost the issuer nothing. While the issuer is away the keys already known go on working.
"""

from __future__ import annotations

import asyncio
import json
import logging
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from jwt import PyJWK, PyJWTError

from api.auth import BadToken
from muster.clock import Clock, SystemClock
from muster.errors import Refused, TryLater

log = logging.getLogger(__name__)

#: Signatures only, never a shared secret: a public key must not be usable as one.
ALGORITHMS = ("EdDSA", "ES256", "RS256")
FRESH_S = 300.0
AGAIN_S = 10.0
_FETCH_S = 3.0
_MOST_BYTES = 256 * 1024
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def jwks_at(place: str) -> Callable[[], Mapping[str, Any]]:
    """How to read the key set at an https address or in a file. Reading raises `OSError` or `ValueError`."""
    parts = urlsplit(place)
    if parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        return lambda: _fetch(place)
    if parts.scheme or not place:
        raise Refused(f"MUSTER_AUTH_JWKS is {place!r}; give an https address, or the path of a file")
    return lambda: _object(Path(place).read_bytes())


def _fetch(url: str) -> Mapping[str, Any]:
    with urllib.request.urlopen(url, timeout=_FETCH_S) as answer:  # noqa: S310 - https or loopback, see above
        return _object(answer.read(_MOST_BYTES))


def _object(raw: bytes) -> Mapping[str, Any]:
    found = json.loads(raw)
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")
    return found


class KeySet:
    """The keys of one issuer. For one event loop."""

    def __init__(self, read: Callable[[], Mapping[str, Any]], clock: Clock | None = None) -> None:
        self._read = read
        self._clock = clock or SystemClock()
        self._keys: dict[str, PyJWK] = {}
        self._published: Mapping[str, Any] | None = None
        self._read_at = self._tried_at = float("-inf")
        self._away = ""
        self._reading: asyncio.Task[None] | None = None
        #: Rises whenever the keys are not what they were: what was verified before counts no more.
        self.generation = 0

    async def keep_fresh(self) -> None:
        """Before every judgement: read the keys again when they are due, and wait only if they are very
        old."""
        now = self._clock.monotonic()
        age = now - self._read_at
        if age < FRESH_S or now - self._tried_at < AGAIN_S:
            return
        very_old = age > 2 * FRESH_S and now - self._tried_at > FRESH_S
        reading = self._start_reading()
        if very_old:
            await asyncio.shield(reading)

    async def find(self, kid: str) -> PyJWK:
        """The key of this name, read anew if it is unknown. `BadToken`, or `TryLater` if nobody can say."""
        if kid not in self._keys and self._clock.monotonic() - self._tried_at >= AGAIN_S:
            self._start_reading()
        if kid not in self._keys and self._reading is not None:
            await asyncio.shield(self._reading)
        if kid in self._keys:
            return self._keys[kid]
        if self._away:
            raise TryLater(f"the keys of the issuer cannot be read ({self._away}); try again in a moment")
        raise BadToken("the token is signed with a key that its issuer does not publish; get a new token")

    def _start_reading(self) -> asyncio.Task[None]:
        if self._reading is None:
            self._tried_at = self._clock.monotonic()
            self._reading = asyncio.create_task(self._read_again())
        return self._reading

    async def _read_again(self) -> None:
        try:
            published = await asyncio.to_thread(self._read)
            if published != self._published:
                self._keys = _usable(published)
                self._published = published
                self.generation += 1
            self._read_at, self._away = self._clock.monotonic(), ""
        except (OSError, ValueError) as away:
            # The type only: an address may carry what must not be in an answer.
            self._away = type(away).__name__
            log.warning("the key set cannot be read, %d known keys go on working: %s", len(self._keys), away)
        finally:
            self._reading = None


def _usable(published: Mapping[str, Any]) -> dict[str, PyJWK]:
    found: dict[str, PyJWK] = {}
    listed = published.get("keys")
    for raw in listed if isinstance(listed, list) else ():
        if not isinstance(raw, dict) or not isinstance(raw.get("kid"), str) or raw.get("use", "sig") != "sig":
            continue
        try:
            key = PyJWK(raw)
        except PyJWTError as unknown:
            log.warning("a key of the key set is left out: %s", unknown)
            continue
        if key.algorithm_name in ALGORITHMS:
            found[raw["kid"]] = key
    if not found:
        raise ValueError(f"it holds no key with a kid for {', '.join(ALGORITHMS)}")
    return found
