"""The fleet page in a real browser, over a whole running system. Nothing sleeps: all is waited for."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from typing import Any

import boto3
import psutil
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from api.auth import Role
from api.signing import Signer
from local.browser import browser
from local.driver import EngineProcess

#: The page reloads what no event tells it every 5 s; a busy machine takes its time on top.
expect.set_options(timeout=30_000)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    engine = EngineProcess(tmp_path_factory.mktemp("up") / "engine", "--pool", "3", "--speed", "10")
    try:
        yield engine.start()
    finally:
        engine.end()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as started:
        yield started


def minted(up: EngineProcess, role: Role = Role.OPERATOR, user: str | None = None) -> str:
    return Signer.read(up.folder).token(role, user)


@pytest.fixture
def open_page(chromium: Any, up: EngineProcess) -> Iterator[Callable[..., Page]]:
    """A page that has signed in. Every error a script of ours throws fails the test."""
    contexts, errors = [], []

    def opened(address: str = "", *, token: str = "", scheme: str = "light") -> Page:
        view = {"width": 1280, "height": 900}
        context = chromium.new_context(viewport=view, color_scheme=scheme, reduced_motion="reduce")
        contexts.append(context)
        page: Page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(f"{up.endpoints['api']}/{address}")
        page.get_by_label("Token of the API").fill(token or minted(up))
        page.get_by_role("button", name="Show the fleet").click()
        return page

    yield opened
    for context in contexts:
        context.close()
    assert errors == []


def row(page: Page, user: str) -> Any:
    return page.locator("#workers tbody tr").filter(has=page.get_by_role("link", name=user, exact=True))


def confirm(page: Page, button: str | re.Pattern[str], reason: str = "") -> None:
    dialog = page.get_by_role("dialog")
    if reason:
        dialog.get_by_label("Reason").fill(reason)
    dialog.get_by_role("button", name=button).click()


def test_a_wrong_token_is_refused_with_words_and_the_right_one_opens_the_fleet(open_page, up) -> None:
    page = open_page(token="not-the-token-of-this-fleet")
    expect(page.get_by_role("alert")).to_contain_text("refused this token")
    expect(page.locator("#main")).to_be_hidden()
    page.get_by_label("Token of the API").fill(minted(up))
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Warm pool")).to_be_visible()
    expect(page.locator("#pulse")).to_contain_text("Live")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Token of the API")).to_be_focused()
    assert page.evaluate("sessionStorage.length") == 0
    assert "Warm pool" not in page.locator("body").inner_text()


def test_a_started_user_is_seen_ready_and_a_killed_one_healed_without_a_reload(open_page, up) -> None:
    page = open_page()
    page.evaluate("window.notReloaded = true")
    page.get_by_role("button", name="Start a worker").click()
    page.get_by_label("User", exact=True).fill("anna")
    confirm(page, "Start", "a new customer")
    expect(row(page, "anna").locator(".badge")).to_have_text("ready")
    expect(page.locator("#starts svg.chart")).to_have_attribute("aria-label", re.compile("Start times"))

    row(page, "anna").get_by_role("link", name="anna").click()
    expect(page.get_by_role("heading", name="anna")).to_be_visible()
    expect(page.locator(".timeline")).to_contain_text("mark taken")
    expect(page.locator("#log")).to_contain_text("ready")
    before = up.worker("anna")
    os.kill(before["pid"], signal.SIGKILL)
    expect(page.locator(".timeline")).to_contain_text("task stopped")
    expect(page.locator(".timeline")).to_contain_text("begin repair")
    after = up.ready("anna", before["epoch"])
    expect(page.locator("#now")).to_contain_text(str(after["epoch"]))
    expect(page.locator(".title .badge")).to_have_text("ready")
    page.get_by_role("link", name="Fleet", exact=True).click()
    expect(page.locator("#heals")).to_contain_text("median")
    expect(page.locator("#starts .legend")).to_contain_text("repair")
    assert page.evaluate("window.notReloaded")


def test_the_address_holds_filter_order_and_page(open_page, up) -> None:
    for user in ("order-b", "order-a"):
        up.command(user, "start")
        up.ready(user)
    page = open_page("#/?q=order-&sort=-user_id&phase=ready")
    links = page.locator("#workers tbody a")
    expect(links).to_have_text(["order-b", "order-a"])
    expect(page.get_by_label("Search")).to_have_value("order-")
    expect(page.locator("[data-phase=ready]")).to_have_attribute("aria-pressed", "true")
    page.get_by_role("button", name="User").click()
    expect(links).to_have_text(["order-a", "order-b"])
    expect(page.get_by_role("columnheader", name="User")).to_have_attribute("aria-sort", "ascending")
    page.go_back()
    expect(links).to_have_text(["order-b", "order-a"])
    page.get_by_label("Search").fill("order-a")
    expect(links).to_have_text(["order-a"])
    expect(page).to_have_url(re.compile("q=order-a"))
    page.get_by_role("button", name="Clear filter").click()
    expect(row(page, "order-b")).to_be_visible()


def test_a_bulk_stop_is_confirmed_asks_again_when_the_set_changed_and_its_rows_disappear(
    open_page, up
) -> None:
    up.command("bystander", "start")
    for user in ("team-1", "team-2"):
        up.command(user, "start")
        up.ready(user)
    page = open_page("#/?q=team-")
    expect(page.locator("#matching")).to_have_text("2 workers with “team-”")
    page.get_by_role("button", name="stop all").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("heading")).to_have_text("Stop 2 workers?")
    expect(dialog).to_contain_text("team-1, team-2")
    up.command("team-3", "start")
    up.ready("team-3")
    expect(row(page, "team-3")).to_have_count(1)
    confirm(page, "Stop 2 workers")
    expect(dialog).to_be_visible()  # a reason is needed
    confirm(page, "Stop 2 workers", "the desk is closed")
    expect(dialog.get_by_role("alert")).to_contain_text("2 when you looked, 3 now")
    expect(dialog.get_by_role("heading")).to_have_text("Stop 3 workers?")
    confirm(page, "Stop 3 workers")
    expect(dialog).to_be_hidden()
    expect(page.get_by_role("status")).to_contain_text("Stop of 3 workers was accepted")
    expect(page.locator("#workers")).to_contain_text("Nobody matches “team-”.")
    up.ready("bystander")
    page.get_by_role("link", name="Audit").click()
    audited = page.locator("#audit tbody tr").filter(has_text="bulk?q=team-")
    expect(audited.first).to_contain_text("the desk is closed")
    expect(audited.filter(has_text="202")).to_have_count(1)
    expect(audited.filter(has_text="409")).to_have_count(1)


def test_what_a_queue_gave_up_is_seen_with_its_reason_and_sent_round_again(open_page, up) -> None:
    sqs = boto3.client(
        "sqs",
        endpoint_url=up.endpoints["aws"],
        region_name="us-east-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",
    )
    sqs.send_message(
        QueueUrl=up.endpoints["queues"]["worker-control.fifo"],
        MessageBody='{"action":"explode","user_id":"<b>mallory</b>"}',
        MessageGroupId="mallory",
        MessageDeduplicationId="explode",
    )
    page = open_page()
    page.locator("#queues a.dead").click()
    letter = page.locator(".letter")
    expect(letter).to_contain_text("action: must be start or stop or restart")
    expect(letter.locator("pre")).to_contain_text("<b>mallory</b>")  # text, not markup
    letter.get_by_role("button", name="round again").click()
    confirm(page, "Send again", "mended")
    expect(page.get_by_role("status")).to_contain_text("sent round again")
    expect(letter).to_contain_text(
        "action: must be start or stop or restart"
    )  # it still cannot work, and comes back


def test_jobs_show_progress_and_poison(open_page, up) -> None:
    jobs = [{"data": {"delay_s": 0.2}}, {"data": {"fail": "no prices"}, "max_retries": 1}]
    up.api.post("/v1/pools/backtests/jobs", json={"jobs": jobs}).raise_for_status()
    page = open_page("#/jobs")
    page.locator("#pools").get_by_role("link", name="backtests").click()
    expect(page.locator("#pools .dead")).to_have_text("· 1 poisoned")
    expect(page.locator("#jobs tbody tr").filter(has_text="no prices")).to_contain_text("poisoned")
    expect(page.locator("#jobs tbody tr").filter(has_text="done")).to_have_count(1)
    page.get_by_role("button", name="Poisoned", exact=False).last.click()
    expect(page).to_have_url(re.compile("status=poisoned"))
    expect(page.locator("#jobs tbody tr")).to_have_count(1)


def test_a_viewer_sees_everything_and_can_change_nothing(open_page, up) -> None:
    up.command("seen", "start")
    up.ready("seen")
    token = minted(up, Role.VIEWER)
    page = open_page("#/?q=seen", token=token)
    expect(row(page, "seen").locator(".badge")).to_have_text("ready")
    for address in ("#/", "#/worker/seen", "#/queues/worker-control.fifo", "#/audit"):
        page.goto(f"{up.endpoints['api']}/{address}")
        expect(page.locator("#main .card").first).to_be_visible()
        expect(page.locator("#pulse")).to_contain_text("Live")
        for action in ("start", "stop", "restart", "again"):
            expect(
                page.locator("#main")
                .get_by_role("button", name=re.compile(action, re.I))
                .and_(page.locator("button:not(.tile):not(th button)"))
            ).to_have_count(0)
    status = page.evaluate(
        """(token) => fetch("/v1/workers/seen/stop", {method: "POST", headers: {Authorization: token}})
                     .then((answer) => answer.status)""",
        f"Bearer {token}",
    )
    assert status == 403
    assert up.worker("seen")["want"] == "running"


def test_a_user_sees_its_own_worker_and_nothing_else(open_page, up) -> None:
    up.command("seen", "start")
    up.ready("seen")
    page = open_page(token=minted(up, Role.USER, "seen"))
    expect(page.get_by_role("heading", name="seen")).to_be_visible()
    expect(page.locator(".title .badge")).to_have_text("ready")
    expect(page.get_by_role("button", name="Restart")).to_be_enabled()
    expect(page.get_by_role("navigation")).to_have_count(0)


def test_an_api_that_goes_away_is_said_and_its_return_brings_the_page_back(open_page, up) -> None:
    page = open_page()
    expect(page.locator("#pulse")).to_contain_text("Live")
    page.evaluate("window.notReloaded = true")
    engine = up.process.pid
    (api,) = [child for child in psutil.Process(engine).children() if "local.api_process" in child.cmdline()]
    os.kill(engine, signal.SIGSTOP)  # or it would start the API again at once
    try:
        api.kill()
        expect(page.get_by_role("alert")).to_contain_text("The API does not answer.")
        expect(page.locator("#workers")).to_have_class(re.compile("stale"))
        expect(page.locator("#pulse")).to_contain_text("Not live")
    finally:
        os.kill(engine, signal.SIGCONT)
    expect(page.get_by_role("alert")).to_be_hidden()
    expect(page.locator("#workers")).not_to_have_class(re.compile("stale"))
    expect(page.locator("#pulse")).to_have_text(re.compile("^Live"))
    up.command("afterwards", "start")
    expect(row(page, "afterwards").locator(".badge")).to_have_text("ready")
    assert page.evaluate("window.notReloaded")


def test_a_hidden_page_lets_go_of_the_stream_and_takes_it_again(open_page) -> None:
    page = open_page()
    expect(page.locator("#pulse")).to_contain_text("Live")

    def hide(hidden: str) -> None:
        page.evaluate(f"Object.defineProperty(document, 'hidden', {{value: {hidden}, configurable: true}})")
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")

    with page.expect_event("requestfailed", lambda request: request.url.endswith("/v1/events")):
        hide("true")
    expect(page.locator("#pulse")).to_contain_text("Not live")
    with page.expect_request("**/v1/events"):
        hide("false")
    expect(page.locator("#pulse")).to_have_text(re.compile("^Live"))


def test_the_keyboard_alone_stops_a_worker(open_page, up) -> None:
    up.command("by-keyboard", "start")
    up.ready("by-keyboard")
    page = open_page("#/?q=by-keyboard")
    expect(row(page, "by-keyboard").locator(".badge")).to_have_text("ready")
    page.reload()  # the keyboard starts at the top
    expect(row(page, "by-keyboard").locator(".badge")).to_have_text("ready")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    stop = page.get_by_role("button", name="stop by-keyboard")
    _tab_to(page, stop)
    page.keyboard.press("Enter")
    expect(page.get_by_label("Reason")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(stop).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.type("by hand")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_hidden()
    up.phase("by-keyboard", "stopped")


def _tab_to(page: Page, target: Any) -> None:
    wanted = target.element_handle()
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("(wanted) => document.activeElement === wanted", wanted):
            return
    raise AssertionError("the keyboard does not get there")


VIEWS = {
    "fleet": ("#/", "#workers tbody tr"),
    "worker": ("#/worker/anna", ".timeline li"),
    "queues": ("#/queues/worker-control.fifo", "#letters .letter, #letters .nothing"),
    "jobs": ("#/jobs/backtests", "#jobs .body > *"),
    "audit": ("#/audit", "#audit tbody tr"),
}


@pytest.fixture(scope="module")
def anna(up: EngineProcess) -> None:
    up.command("anna", "start")
    up.ready("anna")


@pytest.mark.usefixtures("anna")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_problem_and_360_px_are_wide_enough(open_page, scheme: str) -> None:
    page = open_page(scheme=scheme)
    expect(page.get_by_role("heading", name="Warm pool")).to_be_visible()
    bright = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert (sum(bright) > 600) == (scheme == "light")
    address = page.url.partition("#")[0]
    found: dict[str, list[str]] = {}
    for name, (path, shown) in VIEWS.items():
        page.set_viewport_size({"width": 1280, "height": 900})
        page.goto(f"{address}{path}")
        page.locator(shown).first.wait_for()
        found[name] = _problems(page)
        page.set_viewport_size({"width": 360, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, name
    page.goto(f"{address}#/?q=anna")
    page.get_by_role("button", name="stop all").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    found["dialog"] = _problems(page)
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Sign out").click()
    found["sign-in"] = _problems(page)
    assert found == {name: [] for name in found}


def _problems(page: Page) -> list[str]:
    answer = Axe().run(page).response
    assert answer["passes"], "nothing was checked"
    return [
        f"{problem['id']}: {node['html'][:200]}"
        for problem in answer["violations"]
        if problem["impact"] in ("serious", "critical")
        for node in problem["nodes"]
    ]
