"""The shipped example, as a newcomer runs it: market, embedded server, three pairs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import httpx
import redis

from local.valkey import free_port
from tests.e2e.supervised_host import PATIENCE, until
from worker.cycle_main import connect

EXAMPLE = Path(__file__).parents[2] / "examples" / "workers.yml"
PAIRS = ("USDC-USDT", "WETH-USDC", "WBTC-USDC")


def test_the_example_decides_for_three_pairs_and_a_killed_supervisor_finds_its_server_again(tmp_path):
    market_port = free_port()
    (tmp_path / "workers.yml").write_text(EXAMPLE.read_text().replace(":3002", f":{market_port}"))
    environment = {k: v for k, v in os.environ.items() if k != "VALKEY_URL"}
    command = [sys.executable, "-m", "cli.supervise", "workers.yml", "--api-port", "0"]
    market = subprocess.Popen(
        [sys.executable, "-m", "cli.market", "--port", str(market_port), "--throttle", "0.2"]
    )
    # A cycle that finds no market waits for its next turn, so the market comes first, as in `make supervise`.
    until("the market", lambda: _serves(market_port))
    first = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL)
    second = None
    port_file = tmp_path / ".muster/supervisor/port"
    try:
        until("the embedded server", lambda: port_file.exists() and port_file.read_text())
        client = redis.Redis(port=int(port_file.read_text()), decode_responses=True)

        def state(pair: str) -> dict:
            return json.loads(client.get(f"muster:worker:{pair}:state") or "{}")

        until("three decisions", lambda: all(state(pair).get("result") for pair in PAIRS))
        for pair in PAIRS:
            result = state(pair)["result"]
            assert set(result) == {
                "epoch", "price", "regime", "forces", "decision", "changes", "params", "aprs"
            }  # fmt: skip
            assert sum(result["decision"].values()) <= 1.0
        locks = [client.get(f"muster:worker:{pair}:lock") for pair in PAIRS]

        first.kill()
        first.wait()
        port = port_file.read_text()
        second = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
        until(
            "the successor",
            lambda: (client.get("muster:orchestrator:lock") or "").split("/")[3:4] == [str(second.pid)],
        )
        second.send_signal(signal.SIGTERM)
        _, words = second.communicate(timeout=PATIENCE)
        assert second.returncode == 0
        assert port_file.read_text() == port
        assert words.count(": adopted pid") == 3
        for pair, lock in zip(PAIRS, locks, strict=True):
            with sqlite3.connect(tmp_path / ".data" / f"{pair}.db") as db:
                assert db.execute("SELECT holder, ended FROM ownership").fetchall() == [(lock, "released")]
                assert db.execute("SELECT count(*) FROM decisions").fetchone()[0] >= 1
            db.close()
        until("the embedded server ends with its supervisor", lambda: not _answers(int(port)))
        client.close()
    finally:
        for process in (market, first, second):
            if process is not None:
                process.kill()
                process.wait()
        _sweep(tmp_path)


def _serves(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/faults").status_code == 200
    except httpx.TransportError:
        return False


def _answers(port: int) -> bool:
    with connect(f"redis://127.0.0.1:{port}/0", retries=0) as client:
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False


def _sweep(folder: Path) -> None:
    """End what a failed test left behind: everything that lives in its folder."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                inside = (entry / "cwd").readlink().is_relative_to(folder)
            except OSError:
                continue
            if inside:
                os.kill(int(entry.name), signal.SIGKILL)
    shutil.rmtree(folder / ".muster", ignore_errors=True)
