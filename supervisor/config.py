"""workers.yml: one entry per key. The file is taken whole or not at all.

strategy: supervisor.strategy.pair:PairStrategy   # default of all entries
interval_sec: 900
settings: {market: "http://127.0.0.1:3002"}
workers:
  - key: USDC-USDT
  - key: WETH-USDC
    interval_sec: 300
    settings: {max_weight: 0.4}                   # merged over the settings above
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from muster.errors import Refused
from supervisor.timings import INTERVAL_SEC


def _importable(reference: str) -> str:
    module, _, name = reference.partition(":")
    if not module or not name:
        raise ValueError("write it as 'package.module:name'")
    importlib.invalidate_caches()  # a reload may name a module that was written a moment ago
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError) as bad:
        raise ValueError(f"there is no module {module!r} ({bad})") from bad
    if found is None:
        raise ValueError(f"there is no module {module!r}")
    return reference


Strategy = Annotated[str, AfterValidator(_importable)]
Interval = Annotated[float, Field(gt=0)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Entry(_Strict):
    #: Part of key names and of a file name, so it must be harmless in both.
    key: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    strategy: Strategy | None = None
    interval_sec: Interval | None = None
    settings: dict[str, Any] = {}


class _File(_Strict):
    strategy: Strategy | None = None
    interval_sec: Interval = INTERVAL_SEC
    settings: dict[str, Any] = {}
    workers: list[_Entry]


class Spec(_Strict):
    """All a worker is told. Two equal specs are the same worker; a changed one is a restart."""

    key: str
    strategy: str
    interval_sec: float
    settings: dict[str, Any]

    def text(self) -> str:
        """The spec as the worker's environment carries it; equal specs give equal text."""
        return json.dumps(self.model_dump(exclude={"key"}), sort_keys=True)


def load(path: Path) -> dict[str, Spec]:
    """The specs in the file, by key. Raises Refused, with the place and the reason, for a broken file."""
    try:
        content = _File.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as bad:
        raise Refused(f"{path} cannot be read: {bad}") from bad
    except ValidationError as bad:
        first = bad.errors()[:5]  # the rest is mostly the same mistake again
        places = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']}" for e in first)
        raise Refused(f"{path} is not valid: {places}") from bad
    specs: dict[str, Spec] = {}
    for entry in content.workers:
        strategy = entry.strategy or content.strategy
        if strategy is None:
            raise Refused(f"{path} is not valid: {entry.key} has no strategy, and there is no default")
        if entry.key in specs:
            raise Refused(f"{path} is not valid: {entry.key} is listed twice")
        specs[entry.key] = Spec(
            key=entry.key,
            strategy=strategy,
            interval_sec=entry.interval_sec or content.interval_sec,
            settings={**content.settings, **entry.settings},
        )
    return specs
