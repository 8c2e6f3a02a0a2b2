"""Which other pages may call the API from a browser: none, unless a deployment names their origins.

Tokens travel in a header, never in a cookie, so a page of another origin can do nothing in the name of
whoever looks at it; closed is still the better default, because a token must first get into a page to be
stolen from it.
"""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from api.audit import REASON_HEADER
from muster.errors import Refused


def origins_of(setting: str) -> list[str]:
    """`MUSTER_API_ORIGINS` as a list; `Refused` for one that would open more than it says."""
    origins = [origin.strip() for origin in setting.split(",") if origin.strip()]
    for origin in origins:
        scheme, _, host = origin.partition("://")
        if scheme not in ("https", "http") or not host or set(host) & set("/*?#@"):
            raise Refused(
                f"MUSTER_API_ORIGINS: {origin!r} is no origin; write https://host or https://host:port"
            )
    return origins


def install(app: FastAPI, origins: Sequence[str]) -> None:
    if origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(origins),
            allow_methods=["GET", "POST", "PUT", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "Idempotency-Key", REASON_HEADER],
            expose_headers=["Retry-After"],
        )
