"""`muster top`: the fleet in a terminal, looked at once a second, with the commands at hand."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Label, Static

from cli.session import Cli, Code, Failure, command, path
from cli.workers import ago, coloured, dash

_LOOK_EVERY_S = 1.0
_ROWS = 200
_BAR_WIDTH = 20

#: Title, and the query that finds its workers.
_VIEWS = {
    "workers": ("Workers", {"sort": "user_id"}),
    "slowest": ("Slowest starts", {"sort": "-start_latency_ms", "phase": "ready"}),
    "failures": ("Failures", {"sort": "-failures"}),
}
_COLUMNS = ("user", "phase", "since", "via", "beat", "start ms", "failures", "reason")


@dataclass(frozen=True, slots=True)
class Look:
    """What one look at the API has shown."""

    page: dict[str, Any]
    pool: dict[str, Any]
    queues: list[dict[str, Any]]


def look(cli: Cli, view: str, q: str) -> Look:
    """Everything the screen shows. Raises `Failure` when the API is away or refuses."""
    params = {**_VIEWS[view][1], "q": q, "limit": _ROWS}
    page = cli.call("GET", "/v1/workers", params=params)
    if view == "failures":
        page["workers"] = [worker for worker in page["workers"] if worker["failures"] or worker["reason"]]
    return Look(page, cli.call("GET", "/v1/pool"), cli.call("GET", "/v1/queues"))


class Ask(ModalScreen[str | None]):
    """One line from the person, or None. What it is for stands above it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "Leave it")]

    def __init__(self, question: str, hint: str) -> None:
        super().__init__()
        self._question, self._hint = question, hint

    def compose(self) -> ComposeResult:
        with Vertical(id="ask"):
            yield Label(self._question, markup=False)
            yield Input(placeholder=self._hint)
            yield Label("Enter does it, Escape leaves everything as it is.", classes="quiet")

    def on_input_submitted(self, given: Input.Submitted) -> None:
        self.dismiss(given.value.strip())

    def action_leave(self) -> None:
        self.dismiss(None)


class Top(App[None]):
    """The fleet on one screen."""

    TITLE = "muster top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #figures { height: 9; }
    .panel { border: round $primary-darken-2; padding: 0 1; width: 1fr; height: 100%; }
    #trouble { display: none; background: $error; color: $text; padding: 0 1; }
    #trouble.shown { display: block; }
    #workers { height: 1fr; border: round $primary-darken-2; }
    Ask { align: center middle; }
    #ask { width: 64; height: auto; border: round $accent; padding: 1 2; background: $surface; }
    .quiet { color: $text-muted; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("w", "view('workers')", "Workers"),
        Binding("l", "view('slowest')", "Slowest"),
        Binding("f", "view('failures')", "Failures"),
        Binding("slash", "search", "Search"),
        Binding("n", "new", "New user"),
        Binding("s", "act('start')", "Start"),
        Binding("x", "act('stop')", "Stop"),
        Binding("r", "act('restart')", "Restart"),
        Binding("q", "quit", "Quit"),
    ]

    def __init__(self, cli: Cli) -> None:
        super().__init__()
        self._cli = cli
        self._view = "workers"
        self._q = ""

    def compose(self) -> ComposeResult:
        with Horizontal(id="figures"):
            for name in ("phases", "pool", "queues"):
                panel = Static(id=name, classes="panel", markup=False)
                panel.border_title = name
                yield panel
        yield Static(id="trouble", markup=False)
        yield DataTable(id="workers", cursor_type="row", zebra_stripes=True)
        yield Footer()

    def on_mount(self) -> None:
        self.query_one(DataTable).add_columns(*_COLUMNS)
        self.query_one(DataTable).focus()
        self.set_interval(_LOOK_EVERY_S, self.refresh_now)
        self.refresh_now()

    @work(thread=True, exclusive=True, group="look")
    def refresh_now(self) -> None:
        view, q = self._view, self._q
        try:
            seen = look(self._cli, view, q)
        except Failure as away:
            self.call_from_thread(self._trouble, str(away))
        else:
            self.call_from_thread(self._show, seen, view, q)

    def _trouble(self, what: str) -> None:
        """The last figures stay on the screen; the line says that they are old, and why."""
        line = self.query_one("#trouble", Static)
        line.update(f"{what}. Trying again every second; what is shown is old." if what else "")
        line.set_class(bool(what), "shown")

    def _show(self, seen: Look, view: str, q: str) -> None:
        if (view, q) != (self._view, self._q):
            return  # the person has asked for something else meanwhile
        self._trouble("")
        self.query_one("#phases", Static).update(_phases(seen.page["counts"]))
        self.query_one("#pool", Static).update(_pool(seen.pool))
        self.query_one("#queues", Static).update(_queues(seen.queues))
        rows = self.query_one(DataTable)
        total, shown = seen.page["total"], len(seen.page["workers"])
        found = f' with "{q}"' if q else ""
        rows.border_title = f"{_VIEWS[view][0]}{found}: {shown}" + (f" of {total}" if shown < total else "")
        chosen, top = self._chosen(), rows.scroll_y
        rows.clear()
        for worker in seen.page["workers"]:
            rows.add_row(*_cells(worker), key=worker["user_id"])
        if chosen in rows.rows:
            rows.move_cursor(row=rows.get_row_index(chosen), scroll=False)
            rows.scroll_to(y=top, animate=False)

    def _chosen(self) -> str:
        rows = self.query_one(DataTable)
        if not rows.is_valid_row_index(rows.cursor_row):
            return ""
        return str(rows.coordinate_to_cell_key((rows.cursor_row, 0)).row_key.value)  # type: ignore[arg-type]

    def action_view(self, view: str) -> None:
        self._view = view
        self.refresh_now()

    @work
    async def action_search(self) -> None:
        given = await self.push_screen_wait(Ask("Show users with this in their id or reason", "all of them"))
        if given is not None:
            self._q = given
            self.refresh_now()

    @work
    async def action_new(self) -> None:
        if user := await self.push_screen_wait(Ask("Start a worker for which user?", "user id")):
            self._send("start", user, "")

    @work
    async def action_act(self, action: str) -> None:
        """A command for the chosen user, with a reason that `explain` and the audit repeat."""
        if not (user := self._chosen()):
            self.notify("no user is chosen; n starts a new one", severity="warning")
            return
        reason = await self.push_screen_wait(Ask(f"{action.capitalize()} {user}?", "why (optional)"))
        if reason is not None:
            self._send(action, user, reason)

    @work(thread=True, group="send")
    def _send(self, action: str, user: str, reason: str) -> None:
        try:
            body = {"reason": reason} if reason else {}
            accepted = self._cli.call("POST", f"{path(user)}/{action}", json=body)
        except Failure as refused:
            self.call_from_thread(self.notify, str(refused), severity="error", markup=False)
        else:
            said = f"{action} of {user} accepted as {accepted['command_id']}"
            self.call_from_thread(self.notify, said, markup=False)
            self.call_from_thread(self.refresh_now)


def _phases(counts: dict[str, int]) -> Text:
    lines = (Text.assemble(f"{count:>7}  ", coloured(phase)) for phase, count in counts.items())
    return Text("\n").join(lines)


def _pool(pool: dict[str, Any]) -> Text:
    target, idle = pool["target"], pool["idle"]
    filled = min(_BAR_WIDTH, round(_BAR_WIDTH * idle / target)) if target else 0
    bar = Text("█" * filled, style="green") + Text("░" * (_BAR_WIDTH - filled), style="dim")
    figures = (
        f"{idle} idle of {target}",
        f"{pool['outstanding']} claimed, not taken yet",
        f"{pool['launching']} launching",
        f"version {pool['version'] or '-'}",
    )
    return Text("\n").join([bar, *(Text(line) for line in figures)])


def _queues(queues: list[dict[str, Any]]) -> Text:
    lines = []
    for queue in queues:
        line = Text(f"{queue['name']:<20} {queue['depth']:>5} waiting")
        if queue["dead_letter"]:
            line.append(f", {queue['dead_letter']} given up", style="red")
        lines.append(line)
    return Text("\n").join(lines)


def _cells(worker: dict[str, Any]) -> tuple[Text, ...]:
    beat = worker["heartbeat_age_s"]
    return (
        Text(worker["user_id"]),
        coloured(worker["phase"]),
        Text(ago(worker["since"])),
        Text(worker["via"] or "-"),
        Text("-" if beat is None else f"{beat:.0f} s"),
        Text(dash(worker["start_latency_ms"])),
        Text(str(worker["failures"])),
        Text(worker["reason"] or ""),
    )


@command
def top(cli: Cli) -> None:
    """Watch the fleet in the terminal, and start, stop or restart from there.

    Example: muster top
    """
    if cli.as_json:
        seen = look(cli, "workers", "")
        cli.show({"counts": seen.page["counts"], "pool": seen.pool, "queues": seen.queues})
        return
    if not sys.stdout.isatty():
        raise Failure(Code.USAGE, "'muster top' needs a terminal; 'muster status --json' prints the figures")
    Top(cli).run()
