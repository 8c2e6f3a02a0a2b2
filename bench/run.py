"""The quick form of every bench, one after the other: `python -m bench.run [--check] [--only a,b]`.

One after the other, because two at once on two cores would measure each other.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent
#: In the order of the page; a bench that is not there yet is not run.
BENCHES = ("start", "density", "jobs", "api", "page", "sweep", "functions", "pool")
#: One that hangs is ended; the others still count.
PATIENCE_S = 240.0


@dataclass(slots=True)
class Answer:
    """What one bench wrote, or why it did not."""

    name: str
    seconds: float
    ratios: dict[str, float] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)
    lost: int = 0
    doubled: int = 0
    trouble: str = ""


def run(name: str) -> Answer:
    """Run one bench in a process of its own; its progress goes to our stderr."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        answer = Path(folder) / "answer.json"
        process = subprocess.Popen(
            [sys.executable, "-m", f"bench.{name}", "--quick", "--json", str(answer)],
            cwd=ROOT,
            stdout=sys.stderr,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
            code = None
        seconds = time.monotonic() - began
        if code != 0 or not answer.exists():
            why = f"took over {PATIENCE_S:.0f} s" if code is None else f"exit {code}, no answer"
            return Answer(name, seconds, trouble=why)
        raw = json.loads(answer.read_text())
    return Answer(
        name, seconds, dict(raw["ratios"]), dict(raw["figures"]), int(raw["lost"]), int(raw["doubled"])
    )


def failings(answers: list[Answer], floors: dict[str, dict[str, float]]) -> list[str]:
    """Everything that is not good enough, in words."""
    said = []
    for answer in answers:
        if answer.trouble:
            said.append(f"{answer.name}: {answer.trouble}")
            continue
        if answer.lost or answer.doubled:
            said.append(f"{answer.name}: {answer.lost} lost, {answer.doubled} doubled")
        for name, floor in floors.get(answer.name, {}).items():
            ratio = answer.ratios.get(name)
            if ratio is None:
                said.append(f"{answer.name}: {name} was not measured")
            elif ratio < floor:
                said.append(f"{answer.name}: {name} is {ratio:.3g}, its floor {floor:g}")
    return said


def page(answers: list[Answer], floors: dict[str, dict[str, float]]) -> str:
    """What is committed as results/latest.md."""
    cpus = len(os.sched_getaffinity(0))
    lines = [
        "# Benchmarks, the last quick run",
        "",
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {cpus} CPUs, Python {platform.python_version()}, "
        f"{sum(a.seconds for a in answers):.0f} s in all. Written by `make bench`. Larger ratios are better.",
    ]
    for answer in answers:
        lines += ["", f"## {answer.name}", ""]
        if answer.trouble:
            lines.append(f"No answer: {answer.trouble}.")
            continue
        lines += ["| ratio | value | floor |", "| --- | ---: | ---: |"]
        wanted = floors.get(answer.name, {})
        for name, ratio in answer.ratios.items():
            floor = f"{wanted[name]:g}" if name in wanted else ""
            lines.append(f"| {name} | {ratio:.3g} | {floor} |")
        lines += ["", "| figure | value |", "| --- | ---: |"]
        lines += [f"| {name} | {_shown(value)} |" for name, value in answer.figures.items()]
        lines += ["", f"Lost {answer.lost}, doubled {answer.doubled}; took {answer.seconds:.0f} s."]
    return "\n".join(lines) + "\n"


def _shown(value: Any) -> str:
    return (
        f"{value:,.4g}"
        if isinstance(value, float)
        else f"{value:,}"
        if isinstance(value, int)
        else str(value)
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail when a ratio is below its floor")
    parser.add_argument("--only", help="names, separated by commas")
    options = parser.parse_args(argv)
    there = [name for name in BENCHES if (HERE / f"{name}.py").exists()]
    chosen = options.only.split(",") if options.only else there
    if unknown := set(chosen) - set(there):
        parser.error(f"no such bench: {', '.join(sorted(unknown))}; there are {', '.join(there)}")
    answers = []
    for number, name in enumerate(chosen, 1):
        print(f"--- {number} of {len(chosen)}: {name}", file=sys.stderr, flush=True)
        answers.append(run(name))
        print(f"--- {name} took {answers[-1].seconds:.0f} s", file=sys.stderr, flush=True)
    floors = tomllib.loads((HERE / "floors.toml").read_text())
    text = page(answers, floors)
    if options.only:
        print(text)
    else:
        (HERE / "results").mkdir(exist_ok=True)
        (HERE / "results" / "latest.md").write_text(text)
        print("bench/results/latest.md is written", file=sys.stderr)
    said = failings(answers, floors)
    said += [f"{name}: was not run" for name in floors if name not in chosen and not options.only]
    for line in said:
        print(line)
    if not said:
        print("every ratio is above its floor")
    return 1 if options.check and said else 0


if __name__ == "__main__":
    sys.exit(main())
