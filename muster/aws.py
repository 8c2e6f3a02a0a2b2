"""The few AWS calls on the way of a start, without boto3: that costs a worker 28 MB and most of a second to
import, and everybody a millisecond of work per call.

A client has the method names, arguments and answers of boto3's, so it can stand in for one. Its errors are
the core's: `TryLater` for everything that may pass. Every call may be sent twice (each is repeatable by its
nature or by its deduplication id), so a kept connection that was closed meanwhile costs nothing but time.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from muster.errors import MusterError, TryLater
from muster.settings import Settings

_CONNECT_S = 2.0
#: Credentials of a role are fetched anew this long before they end.
_RENEW_S = 300.0
_TASK_AGENT = "http://169.254.170.2"
#: How each service is addressed: its JSON version and the prefix of its operations.
_WIRE = {"secretsmanager": ("1.1", "secretsmanager"), "sqs": ("1.0", "AmazonSQS")}


@dataclass(frozen=True, slots=True)
class Keys:
    """What requests are signed with."""

    access: str
    secret: str
    token: str = ""
    until: float = float("inf")


class NotThere(MusterError):
    """The service knows no such thing."""


class _Exceptions:
    """Where boto3's clients keep theirs."""

    ResourceNotFoundException = NotThere


class AwsClient:
    """One service over kept connections, one per call under way. Safe to share between threads."""

    exceptions = _Exceptions

    def __init__(
        self, service: str, region: str, endpoint: str, read_timeout_s: float, keys: Keys | None = None
    ) -> None:
        self._service = service
        self._region = region
        self._version, self._prefix = _WIRE[service]
        parts = urlsplit(endpoint or f"https://{service}.{region}.amazonaws.com")
        self._host = parts.netloc
        self._address = (parts.hostname or "", parts.port)
        self._secure = parts.scheme == "https"
        self._read_s = read_timeout_s
        self._lock = threading.Lock()  # guards the two below
        self._kept: list[http.client.HTTPConnection] = []
        self._keys = keys

    def open_ahead(self) -> None:
        """Open a connection now and keep it, for a call that cannot wait for a handshake. Best effort: what
        cannot be opened, or is closed again by the other side, is opened by the call."""
        try:
            connection = self._connect()
        except OSError:
            return
        with self._lock:
            self._kept.append(connection)

    def close(self) -> None:
        """Close the kept connections. The next call opens one again."""
        with self._lock:
            kept, self._kept = self._kept, []
        for connection in kept:
            connection.close()

    def get_secret_value(self, *, SecretId: str) -> dict[str, Any]:  # noqa: N803 - boto3's name
        return self._call("GetSecretValue", {"SecretId": SecretId})

    def receive_message(self, **request: Any) -> dict[str, Any]:
        return self._call("ReceiveMessage", request)

    def delete_message(self, **request: Any) -> dict[str, Any]:
        return self._call("DeleteMessage", request)

    def change_message_visibility(self, **request: Any) -> dict[str, Any]:
        return self._call("ChangeMessageVisibility", request)

    def delete_message_batch(self, **request: Any) -> dict[str, Any]:
        return self._call("DeleteMessageBatch", request)

    def send_message_batch(self, **request: Any) -> dict[str, Any]:
        return self._call("SendMessageBatch", request)

    def _call(self, operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
        body = json.dumps(request).encode()
        headers = {
            "Content-Type": f"application/x-amz-json-{self._version}",
            "X-Amz-Target": f"{self._prefix}.{operation}",
        }
        signed = sign(
            self._signer(), self._service, self._region, self._host, headers, body, datetime.now(UTC)
        )
        try:
            status, raw = self._exchange(body, signed)
            answer = json.loads(raw) if raw else {}
        except (OSError, http.client.HTTPException, ValueError) as away:
            raise TryLater(f"{self._service} is away ({away!r})") from away
        if status < 300:
            return dict(answer)
        code = str(answer.get("__type", "")).rpartition("#")[2] if isinstance(answer, dict) else ""
        if code == "ResourceNotFoundException":
            raise NotThere(f"{operation}: there is no such thing")
        raise TryLater(f"{self._service} answered {operation} with {status} {code}")

    def _signer(self) -> Keys:
        with self._lock:
            if self._keys is None or self._keys.until - _RENEW_S < time.time():
                self._keys = find_keys(os.environ)
            return self._keys

    def _exchange(self, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        with self._lock:
            kept = self._kept.pop() if self._kept else None
        if kept is not None:
            try:
                return self._once(kept, body, headers)
            except (ConnectionError, http.client.RemoteDisconnected):
                pass  # closed meanwhile: once more, on a new one
        return self._once(self._connect(), body, headers)

    def _connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(*self._address, timeout=_CONNECT_S)
        connection.connect()
        assert connection.sock is not None
        connection.sock.settimeout(self._read_s)
        return connection

    def _once(
        self, connection: http.client.HTTPConnection, body: bytes, headers: dict[str, str]
    ) -> tuple[int, bytes]:
        try:
            # In one piece: http.client sends a body after its headers, which costs both sides a second look.
            lines = ["POST / HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
            head = "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""])
            connection.sock.sendall(head.encode("latin-1") + body)
            response = http.client.HTTPResponse(connection.sock, method="POST")
            response.begin()
            answer = response.status, response.read()
        except BaseException:
            connection.close()
            raise
        if response.will_close:
            connection.close()
            return answer
        with self._lock:
            self._kept.append(connection)
        return answer


def aws(
    settings: Settings, service: str, *, read_timeout_s: float = 25, keys: Keys | None = None
) -> AwsClient:
    """A client from settings. The default timeout outlasts a long poll; the default keys are its process'."""
    return AwsClient(service, settings.region, settings.aws_endpoint, read_timeout_s, keys)


def find_keys(environ: Mapping[str, str]) -> Keys:
    """The credentials of this process: its variables, its task's role, or whatever botocore finds."""
    if environ.get("AWS_ACCESS_KEY_ID") and environ.get("AWS_SECRET_ACCESS_KEY"):
        return Keys(
            environ["AWS_ACCESS_KEY_ID"],
            environ["AWS_SECRET_ACCESS_KEY"],
            environ.get("AWS_SESSION_TOKEN", ""),
        )
    if path := environ.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"):
        return _role_keys(f"{_TASK_AGENT}{path}")
    from botocore.session import get_session

    found = get_session().get_credentials()
    if found is None:
        raise TryLater("there are no AWS credentials; give the task a role, or set AWS_ACCESS_KEY_ID")
    frozen = found.get_frozen_credentials()
    return Keys(frozen.access_key, frozen.secret_key, frozen.token or "", time.time() + 2 * _RENEW_S)


def _role_keys(url: str) -> Keys:
    try:
        with urlopen(Request(url), timeout=_CONNECT_S) as answer:  # noqa: S310 - the agent's own http address
            said = json.load(answer)
        until = datetime.fromisoformat(said["Expiration"].replace("Z", "+00:00")).timestamp()
        return Keys(said["AccessKeyId"], said["SecretAccessKey"], said["Token"], until)
    except (OSError, ValueError, KeyError) as away:
        raise TryLater(f"the task's role is away ({type(away).__name__})") from away


def sign(
    keys: Keys, service: str, region: str, host: str, headers: Mapping[str, str], body: bytes, now: datetime
) -> dict[str, str]:
    """The headers of a POST to / with Signature Version 4 added."""
    moment = now.strftime("%Y%m%dT%H%M%SZ")
    day = moment[:8]
    given = {**headers, "Host": host, "X-Amz-Date": moment}
    if keys.token:
        given["X-Amz-Security-Token"] = keys.token
    lowered = sorted((name.lower(), value.strip()) for name, value in given.items())
    names = ";".join(name for name, _ in lowered)
    canonical = "\n".join(
        [
            *("POST", "/", ""),
            *(f"{name}:{value}" for name, value in lowered),
            *("", names, hashlib.sha256(body).hexdigest()),
        ]
    )
    scope = f"{day}/{region}/{service}/aws4_request"
    hashed = hashlib.sha256(canonical.encode()).hexdigest()
    to_sign = f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{hashed}"
    key = f"AWS4{keys.secret}".encode()
    for word in (day, region, service, "aws4_request"):
        key = hmac.new(key, word.encode(), hashlib.sha256).digest()
    signature = hmac.new(key, to_sign.encode(), hashlib.sha256).hexdigest()
    given["Authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={keys.access}/{scope}, SignedHeaders={names}, Signature={signature}"
    )
    return given
