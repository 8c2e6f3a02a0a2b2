"""`muster top` on Textual's own pilot, against a real API on real Valkey."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from moto import mock_aws
from textual.pilot import Pilot
from textual.widgets import DataTable, Input, Static
from typer.testing import CliRunner

from api.fleet import Fleet
from cli.main import app
from cli.session import Cli
from cli.top import Top
from muster.store import Store
from tests.api_stand import (
    TOKEN,
    begin,
    commands_in,
    run_worker,
    served,
    settings_with_queues,
    sqs_client,
)


class World:
    """A served fleet, its queue, and the terminal's view of it."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store = store
        self.sqs = sqs_client()
        self.settings = settings_with_queues(self.sqs)
        self._api = ExitStack()
        url = self._api.enter_context(served(Fleet(store, self.sqs, self.settings, logs=folder)))
        self.cli = Cli(url, TOKEN, folder, as_json=False)

    def commands(self) -> list[dict[str, Any]]:
        return [json.loads(body) for body in commands_in(self.sqs, self.settings)]

    def api_ends(self) -> None:
        self._api.close()


@pytest.fixture
def world(valkey: Any, tmp_path: Path) -> Iterator[World]:
    with mock_aws():
        made = World(Store(valkey), tmp_path)
        yield made
        made.api_ends()


async def shows(pilot: Pilot[None], is_so: Callable[[], bool]) -> None:
    """Let the screen run until it shows this."""
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline, "the screen never showed it"
        await pilot.pause(0.02)


def panel(pilot: Pilot[None], name: str) -> str:
    return str(pilot.app.query_one(f"#{name}", Static).render())


def users(pilot: Pilot[None]) -> list[str]:
    rows = pilot.app.query_one("#workers", DataTable)
    return [str(key.value) for key in rows.rows]


async def answer(pilot: Pilot[None], words: str) -> None:
    """Type into the question that is open, and press Enter."""
    await shows(pilot, lambda: bool(pilot.app.screen.query(Input)))
    pilot.app.screen.query_one(Input).value = words
    await pilot.press("enter")


def test_phases_pool_and_queues_are_shown(world: World) -> None:
    run_worker(world.store, begin(world.store, "u1"))
    begin(world.store, "u2")

    async def watch() -> None:
        async with Top(world.cli).run_test(size=(120, 40)) as pilot:
            await shows(pilot, lambda: users(pilot) == ["u1", "u2"])
            assert "1  ready" in panel(pilot, "phases")
            assert "1  starting" in panel(pilot, "phases")
            assert "idle of" in panel(pilot, "pool")
            assert "worker-control.fifo" in panel(pilot, "queues")

    asyncio.run(watch())


def test_a_stop_asks_first_and_carries_its_reason(world: World) -> None:
    run_worker(world.store, begin(world.store, "u1"))

    async def stop() -> None:
        async with Top(world.cli).run_test(size=(120, 40)) as pilot:
            await shows(pilot, lambda: users(pilot) == ["u1"])
            await pilot.press("x")
            await shows(pilot, lambda: bool(pilot.app.screen.query(Input)))
            await pilot.press("escape")
            await shows(pilot, lambda: not pilot.app.screen.query(Input))
            await pilot.press("x")
            await answer(pilot, "maintenance tonight")
            await shows(pilot, lambda: "accepted" in notes(pilot))

    asyncio.run(stop())
    sent = world.commands()
    assert [(one["action"], one["user_id"], one["reason"]) for one in sent] == [
        ("stop", "u1", "maintenance tonight")
    ]


def notes(pilot: Pilot[None]) -> str:
    return " ".join(note.message for note in pilot.app._notifications)


def test_a_new_user_is_started(world: World) -> None:
    async def start() -> None:
        async with Top(world.cli).run_test(size=(120, 40)) as pilot:
            await pilot.press("n")
            await answer(pilot, "u9")
            await shows(pilot, lambda: "accepted" in notes(pilot))

    asyncio.run(start())
    assert [(one["action"], one["user_id"]) for one in world.commands()] == [("start", "u9")]


def test_a_bad_user_id_is_refused_with_the_rule(world: World) -> None:
    async def start() -> None:
        async with Top(world.cli).run_test(size=(120, 40)) as pilot:
            await pilot.press("n")
            await answer(pilot, "u 9")
            await shows(pilot, lambda: "is no user id" in notes(pilot))

    asyncio.run(start())
    assert world.commands() == []


def test_failures_and_search_narrow_the_table(world: World) -> None:
    for user in ("alice", "bob"):
        run_worker(world.store, begin(world.store, user))

    async def narrow() -> None:
        async with Top(world.cli).run_test(size=(120, 40)) as pilot:
            await shows(pilot, lambda: users(pilot) == ["alice", "bob"])
            await pilot.press("slash")
            await answer(pilot, "bob")
            await shows(pilot, lambda: users(pilot) == ["bob"])
            await pilot.press("f")
            await shows(pilot, lambda: users(pilot) == [])

    asyncio.run(narrow())


def test_the_slowest_start_comes_first(world: World) -> None:
    run_worker(world.store, begin(world.store, "quick", issued_at_ms=10_000))
    run_worker(world.store, begin(world.store, "slow", issued_at_ms=1_000))

    async def sort() -> None:
        async with Top(world.cli).run_test(size=(120, 40)) as pilot:
            await shows(pilot, lambda: users(pilot) == ["quick", "slow"])
            await pilot.press("l")
            await shows(pilot, lambda: users(pilot) == ["slow", "quick"])

    asyncio.run(sort())


def test_an_api_that_is_away_is_said_and_the_last_figures_stay(world: World) -> None:
    run_worker(world.store, begin(world.store, "u1"))

    async def lose() -> None:
        async with Top(world.cli).run_test(size=(120, 40)) as pilot:
            await shows(pilot, lambda: users(pilot) == ["u1"])
            await asyncio.to_thread(world.api_ends)
            await shows(pilot, lambda: "does not answer" in panel(pilot, "trouble"))
            assert users(pilot) == ["u1"]

    asyncio.run(lose())


def test_without_a_terminal_it_says_what_to_use(world: World) -> None:
    done = CliRunner().invoke(app, ["top", "--api-url", world.cli.url])
    assert done.exit_code == 2
    assert "muster status --json" in done.stderr
