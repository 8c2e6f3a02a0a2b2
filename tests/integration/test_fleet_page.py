"""The fleet page on a real socket: open files, a closed API, and nothing from anywhere else."""

from __future__ import annotations

import http.client
import re
from html.parser import HTMLParser
from urllib.parse import urlsplit

import httpx
import pytest
from moto import mock_aws

from api.fleet import Fleet
from api.routes.page import WEB
from muster.store import Store
from supervisor.api import SupervisorSource
from tests.api_stand import BEARER, served, settings_with_queues, sqs_client
from tests.integration.test_supervisor_rounds import KEYS, World

TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
KINDS = {"/" if path.stem == "index" else f"/{path.name}": TYPES[path.suffix] for path in WEB.iterdir()}
SCRIPTS = sorted(WEB.glob("*.js"))


@pytest.fixture(params=["fleet", "supervisor"])
def url(request, valkey, tmp_path):
    """The same page over both sources of data."""
    if request.param == "supervisor":
        world = World(tmp_path / "workers.yml", valkey)
        world.write("A")
        world.supervisor.begin()
        with served(SupervisorSource(world.fleet, Store(valkey), KEYS, world.clock)) as address:
            yield address
        return
    with mock_aws():
        sqs = sqs_client()
        fleet = Fleet(Store(valkey), sqs, settings_with_queues(sqs))
        with served(fleet) as address:
            yield address
        fleet.close()


def raw(url, path, headers=None):
    """Ask for exactly this path: a client that tidies up `..` would hide what is tested."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    try:
        connection.request("GET", path, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def directives(answer):
    parts = (part.split() for part in answer.headers["content-security-policy"].split(";"))
    return {name: values for name, *values in parts}


def test_the_page_comes_without_a_token_and_with_its_headers(url):
    for path, kind in KINDS.items():
        answer = httpx.get(url + path)
        assert answer.status_code == 200, path
        assert answer.headers["content-type"].removesuffix("; charset=utf-8") == kind
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["referrer-policy"] == "no-referrer"
        policy = directives(answer)
        assert policy["default-src"] == ["'none'"]
        for name in ("script-src", "style-src", "connect-src"):
            assert policy[name] == ["'self'"], name
        for name in ("base-uri", "form-action", "frame-ancestors"):
            assert policy[name] == ["'none'"], name


def test_a_browser_asks_each_time_and_gets_the_file_only_when_it_is_new(url):
    for path in KINDS:
        first = httpx.get(url + path)
        assert first.headers["cache-control"] == "no-cache"
        same = httpx.get(url + path, headers={"If-None-Match": first.headers["etag"]})
        assert (same.status_code, same.content) == (304, b"")
        assert same.headers["content-security-policy"] == first.headers["content-security-policy"]
        other = httpx.get(url + path, headers={"If-None-Match": '"of-another-release"'})
        assert other.content == first.content


def test_the_api_still_refuses_without_a_token(url):
    paths = (
        "/v1/workers",
        "/v1/pool",
        "/v1/queues",
        "/v1/events",
        "/metrics",
        "/openapi.json",
        "/app.js/",
        "//",
    )
    for path in paths:
        assert raw(url, path)[0] == 401, path
    assert httpx.post(f"{url}/v1/workers/A/stop").status_code == 401
    assert httpx.get(f"{url}/v1/workers", headers=BEARER).status_code == 200


def test_nothing_is_changed_through_the_open_paths(url):
    for path in KINDS:
        for method in ("POST", "PUT", "DELETE"):
            assert httpx.request(method, url + path).status_code == 405, (method, path)


@pytest.mark.parametrize(
    "path",
    [
        "/index.html",
        "/web/index.html",
        "/web/app.js",
        "/app.js/../style.css",
        "/../app.py",
        "/..%2fapp.py",
        "/%2e%2e/app.py",
        "/%2e%2e%2fapp.py",
        "/..%5capp.py",
        "/./app.js",
        "//app.js",
        "/app.js%00",
        "/APP.JS",
    ],
)
def test_no_other_path_leads_to_a_file(url, path):
    assert raw(url, path)[0] == 401
    status, body = raw(url, path, BEARER)
    assert status == 404
    assert b"import " not in body


class References(HTMLParser):
    """Everything that a browser would fetch or run."""

    def __init__(self):
        super().__init__()
        self.fetched, self.inline = [], []
        self._open = ""

    def handle_starttag(self, tag, attrs):
        self._open = tag
        for name, value in attrs:
            if name in ("src", "href", "srcset", "action", "formaction", "data", "poster"):
                self.fetched.append(value)
            if name == "style" or name.startswith("on"):
                self.inline.append((tag, name))

    def handle_endtag(self, tag):
        self._open = ""

    def handle_data(self, data):
        if self._open in ("script", "style") and data.strip():
            self.inline.append((self._open, data))


def test_the_page_refers_only_to_its_own_files_and_runs_nothing_inline(url):
    page = References()
    page.feed(httpx.get(url).text)
    assert {address for address in page.fetched if not address.startswith("#")} <= KINDS.keys()
    assert page.inline == []
    for path in WEB.iterdir():
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        for foreign in ("http:", "https:", "//cdn", "@import", "url(", "import("):
            assert foreign not in text, (path.name, foreign)


def test_every_script_is_fetched_at_once_and_not_one_after_the_other(url):
    page = References()
    page.feed(httpx.get(url).text)
    assert {f"/{path.name}" for path in SCRIPTS} <= set(page.fetched)


def test_a_script_imports_only_what_is_served():
    for path in SCRIPTS:
        for module in re.findall(r'from "([^"]+)"', path.read_text(encoding="utf-8")):
            assert module.removeprefix(".") in KINDS, (path.name, module)


def test_no_script_writes_markup_or_keeps_the_token_for_longer_than_the_tab():
    for path in SCRIPTS:
        script = path.read_text(encoding="utf-8")
        for markup in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "localStorage",
        ):
            assert markup not in script, (path.name, markup)
        assert len(script.splitlines()) < 400, path.name
    assert "sessionStorage" in (WEB / "api.js").read_text(encoding="utf-8")
