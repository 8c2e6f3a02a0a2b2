"""`python -m local.paper '{"port": 0, ...}'`: how other processes of ours start a paper broker."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from local.paper.faults import Faults
from local.paper.server import PaperSettings, serve

given = json.loads(sys.argv[1])
files = {name: Path(given.pop(name)) for name in ("book", "accounts") if name in given}
serve(PaperSettings(**{**given, **files, "faults": Faults().changed(given.pop("faults", {}))}))
