"""Spans of real starts, received by a real collector's socket: one trace per start, told apart by its way."""

from __future__ import annotations

import base64
import json
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from local.driver import EngineProcess, send_signal, until
from muster.model import Cause
from muster.traces import Spans, trace_of


class Collector:
    """Takes OTLP over HTTP and keeps the spans, with the name of who sent them."""

    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []
        keep = self.spans

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/v1/traces"
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                for resource in body["resourceSpans"]:
                    service = resource["resource"]["attributes"][0]["value"]["stringValue"]
                    for scope in resource["scopeSpans"]:
                        keep.extend(span | {"service": service} for span in scope["spans"])
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def ways(self) -> dict[str, str]:
        """Trace -> how that start went, of the starts that are complete."""
        return {
            span["traceId"]: value(span, "muster.via") for span in list(self.spans) if span["name"] == "start"
        }

    def of(self, trace: str) -> list[dict[str, Any]]:
        return [span for span in list(self.spans) if span["traceId"] == trace]


def value(span: dict[str, Any], key: str) -> str:
    return next(str(a["value"]["stringValue"]) for a in span["attributes"] if a["key"] == key)


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.server.shutdown()
    made.server.server_close()


def test_a_warm_a_cold_and_a_repaired_start_are_three_traces(collector: Collector, tmp_path: Path) -> None:
    engine = EngineProcess(tmp_path / ".muster", "--pool", "1", "--otlp", collector.url)
    try:
        engine.start()
        until(lambda: engine.get("/v1/pool")["idle"] == 1, "a warm worker waits")
        warm = engine.command("warm", "start")
        until(lambda: trace_of(warm) in collector.ways(), "the warm start is traced")
        assert collector.ways()[trace_of(warm)] == "warm"

        whole = collector.of(trace_of(warm))
        root = next(span for span in whole if span["name"] == "start")
        until(lambda: len(collector.of(trace_of(warm))) == 5, "every part has told its span")
        whole = collector.of(trace_of(warm))
        assert sorted((span["service"], span["name"]) for span in whole) == [
            ("muster-api", "api"),
            ("muster-worker", "open session"),
            ("muster-worker", "start"),
            ("muster-worker", "take mark"),
            ("muster-worker-control", "worker_control"),
        ]
        assert {span["parentSpanId"] for span in whole if span is not root and span["name"] != "start"} == {
            root["spanId"]
        }

        pid = engine.get("/v1/workers/warm")["pid"]
        send_signal(pid, signal.SIGKILL)
        until(lambda: "repair" in collector.ways().values(), "the repair is traced")
        assert len(collector.ways()) == 2, "a repair is a start of its own"

        engine.api.put("/v1/pool", json={"target": 0}).raise_for_status()
        until(lambda: engine.get("/v1/pool")["idle"] == 0, "the pool is empty")
        cold = engine.command("cold", "start")
        until(lambda: trace_of(cold) in collector.ways(), "the cold start is traced")
        assert collector.ways()[trace_of(cold)] == "cold"
    finally:
        engine.end()


def test_a_span_is_what_the_protocol_says(collector: Collector) -> None:
    """OTLP's JSON form is that of its protobuf message, but for ids in hexadecimal instead of base64."""
    spans = Spans(collector.url, "muster-test")
    spans.add(trace_of("c1"), "start", 1.0, 2.5, root=True, via="warm")
    spans.add(trace_of("c1"), "api", 1.0, 1.25)
    spans.flush()
    whole, part = [
        json_format.ParseDict(
            {name: in_base64(name, given) for name, given in span.items() if name != "service"}, Span()
        )
        for span in collector.spans
    ]
    assert (len(whole.trace_id), len(whole.span_id), whole.parent_span_id) == (16, 8, b"")
    assert (part.trace_id, part.parent_span_id) == (whole.trace_id, whole.span_id)
    assert (whole.start_time_unix_nano, whole.end_time_unix_nano) == (1_000_000_000, 2_500_000_000)
    assert [(a.key, a.value.string_value) for a in whole.attributes] == [("muster.via", "warm")]


def in_base64(name: str, given: Any) -> Any:
    return base64.b64encode(bytes.fromhex(given)).decode() if name.endswith("Id") else given


def test_without_an_endpoint_nothing_is_kept() -> None:
    spans = Spans("", "nobody")
    spans.add(trace_of("c1"), "start", 1.0, 2.0, root=True)
    assert not spans._waiting


def test_a_collector_that_is_away_costs_nothing_and_the_spans_are_dropped() -> None:
    spans = Spans("http://127.0.0.1:9", "nobody")
    spans.add(trace_of("c1"), "start", 1.0, 2.0, root=True)
    spans.flush()
    assert not spans._waiting


@pytest.mark.parametrize("cause", [Cause.REPAIR, Cause.MOVE])
def test_a_repair_has_a_trace_for_each_epoch(cause: Cause) -> None:
    assert trace_of("c1", cause, 7) != trace_of("c1", cause, 8) != trace_of("c1")
    assert trace_of("c1", Cause.START, 7) == trace_of("c1")
