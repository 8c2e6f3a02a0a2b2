"""The engine's own paper broker: adopted when it lives, started again when it ends, an account per user.

It runs in a session of its own, so that the workers keep their broker while a killed engine is replaced. Its
book is a file and its port stays the same: for a worker a restart is a broker that was away for a moment.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import logging
import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from local.event_source import Handler
from local.paper.process import PaperBroker
from muster.commands import Action, parse_command
from muster.errors import BadCommand
from muster.scrub import learn

log = logging.getLogger(__name__)

#: Start times are told by the wall clock, which may be set a little between two readings.
_SAME_START_S = 2.0
_STOP_S = 10.0
_KEY = "paper-"


def credentials_ref(user: str) -> str:
    """Where the credentials of a user are in the engine's Secrets Manager."""
    return f"muster/broker/{user}"


def key_of(user: str) -> str:
    """The id of a user's key at the engine's paper broker."""
    return f"{_KEY}{user}"


def user_of(key_id: str) -> str:
    """Whose key this is."""
    return key_id.removeprefix(_KEY)


class PaperService:
    """One per folder. `start` returns when it listens; just ending this process does not end it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: psutil.Process | None = None
        self._known: set[tuple[str, str]] = set()  #: (user, address) whose credentials are in the vault
        self.url = ""

    def start(self) -> str:
        """Adopt the one that lives, else start one, on its former port if that is free; its address."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        told = self._told()
        if not self._adopt(told):
            port = int(told.get("url", ":0").rpartition(":")[2])
            try:
                self._launch(port)
            except RuntimeError:
                if not port:
                    raise
                self._launch(0)
        return self.url

    def keep(self) -> None:
        """Start it again if it has ended."""
        if self._process is not None and not _lives(self._process):
            log.warning("the paper broker ended; starting it again")
            self._launch(int(self.url.rpartition(":")[2]))

    def stop(self) -> None:
        """End it. The book stays for the next start."""
        if self._process is None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            self._process.terminate()
            try:
                self._process.wait(_STOP_S)
            except psutil.TimeoutExpired:
                self._process.kill()
                self._process.wait(_STOP_S)
        self._process = None

    def give_account(self, user: str, vault: Any) -> str:
        """Make sure that the credentials of this user's account are in Secrets Manager; their reference.

        The account itself comes into being when the key is first used. A key is derived, not drawn: an
        endpoint that lost its secrets gives every user the old account again.
        """
        if (user, self.url) not in self._known:
            self._put(user, vault)
            # Only now, so that whoever is in this file has an account.
            if user not in self._customers():
                with self._ledger.open("a", encoding="utf-8") as ledger:
                    ledger.write(f"{user}\n")
        return credentials_ref(user)

    def restore(self, vault: Any) -> None:
        """Every customer's credentials again, for an endpoint that may have lost them: a worker that finds
        none gives up for good."""
        for user in self._customers():
            self._put(user, vault)

    def _put(self, user: str, vault: Any) -> None:
        reference = credentials_ref(user)
        secret = hmac.new(self._seed(), user.encode(), hashlib.sha256).hexdigest()
        learn(secret)
        said = json.dumps({"broker": "paper", "key_id": key_of(user), "secret": secret, "url": self.url})
        try:
            vault.create_secret(Name=reference, SecretString=said)
        except vault.exceptions.ResourceExistsException:
            vault.put_secret_value(SecretId=reference, SecretString=said)
        self._known.add((user, self.url))

    @property
    def _ledger(self) -> Path:
        return self._folder / "customers"

    def _customers(self) -> list[str]:
        return self._ledger.read_text(encoding="utf-8").split() if self._ledger.exists() else []

    def _seed(self) -> bytes:
        file = self._folder / "seed"
        if not file.exists():
            file.touch(mode=0o600)
            file.write_bytes(secrets.token_bytes(32))
        return file.read_bytes()

    @property
    def _record(self) -> Path:
        return self._folder / "paper.json"

    def _told(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self._record.read_text(encoding="utf-8")))
        except (FileNotFoundError, ValueError):
            return {}

    def _adopt(self, told: dict[str, Any]) -> bool:
        try:
            process = psutil.Process(told["pid"])
            same = abs(process.create_time() - told["started"]) < _SAME_START_S
        except (KeyError, psutil.NoSuchProcess):
            return False
        if not same or not _lives(process):
            return False
        self._process, self.url = process, told["url"]
        return True

    def _launch(self, port: int) -> None:
        broker = PaperBroker(self._folder, port).start()
        assert broker.process is not None
        self._process, self.url = psutil.Process(broker.process.pid), broker.url
        told = {"pid": self._process.pid, "started": self._process.create_time(), "url": self.url}
        draft = self._record.with_suffix(".tmp")
        draft.write_text(json.dumps(told), encoding="utf-8")
        draft.replace(self._record)


def with_accounts(handler: Handler, paper: PaperService, vault: Any) -> Handler:
    """worker_control for an engine with a paper broker: a person's start that names no credentials gets an
    account there. The core sees only the reference, as it does on AWS."""

    def handle(event: dict[str, Any], context: Any) -> Any:
        for record in event["Records"]:
            if (user := _wants_account(record["body"])) is not None:
                reference = paper.give_account(user, vault)
                record["body"] = json.dumps(json.loads(record["body"]) | {"credentials_ref": reference})
        return handler(event, context)

    return handle


def _wants_account(body: str) -> str | None:
    try:
        command = parse_command(body, message_id="-", sent_at=datetime.now(UTC))
    except BadCommand:
        return None  # the handler says what is wrong with it
    by_a_person = command.action in (Action.START, Action.RESTART) and command.seen_epoch is None
    return command.user_id if by_a_person and not command.credentials_ref else None


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
