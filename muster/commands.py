"""Command messages at the edge: what people, the API and maintenance put on worker-control.fifo."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from muster.errors import BadCommand
from muster.messages import Rule, check_fields, one_of, optional, prose, read_message, whole, words
from muster.model import Cause

USER_ID_PATTERN = r"[A-Za-z0-9._@:-]{1,128}"
USER_ID_DESCRIBED = "1-128 of A-Z a-z 0-9 . _ @ : -"
_user_id_words = words(USER_ID_PATTERN, USER_ID_DESCRIBED)

#: A clock further ahead than this is wrong; believing it would supersede every honest command after it.
FUTURE_TOLERANCE = timedelta(minutes=5)


def _user_id(value: Any) -> str:
    found: str = _user_id_words.take(value)
    if not found.strip("."):
        raise ValueError("a user id of dots alone would be a path")
    return found


USER_ID = Rule(f"{USER_ID_DESCRIBED}, not dots alone", _user_id)


def _aware(value: Any) -> datetime:
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise ValueError("it has no offset")
    return value


class Action(StrEnum):
    START = "start"
    STOP = "stop"
    RESTART = "restart"


#: The name of a secret or its ARN: what a message says instead of credentials.
CREDENTIALS_REF = words(r"[A-Za-z0-9/_+=.@:-]{0,512}", "at most 512 of A-Z a-z 0-9 / _ + = . @ : -")
RULES = {
    "version": whole(1, 1),
    "action": one_of(Action),
    "user_id": USER_ID,
    "command_id": words(r"[\x21-\x7e]{1,128}", "1-128 printable ASCII characters without spaces"),
    "issued_at": Rule("a time with its offset, such as 2026-11-01T12:00:00Z", _aware),
    "credentials_ref": CREDENTIALS_REF,
    "reason": prose(200),
    "seen_epoch": optional(whole(0, 2**53)),
    "cause": optional(one_of(Cause)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command for one user. Only `action` and `user_id` are needed; the queue fills in the rest.

    Building one that breaks a rule raises `BadCommand`.
    """

    version: int = 1
    action: Action
    user_id: str
    command_id: str
    issued_at: datetime
    credentials_ref: str = ""
    reason: str = ""
    #: Set by maintenance only: the epoch it saw. The command does nothing once that has moved.
    seen_epoch: int | None = None
    cause: Cause | None = None

    def __post_init__(self) -> None:
        check_fields(self, RULES)
        by_maintenance = self.cause in (Cause.REPAIR, Cause.MOVE)
        if by_maintenance != (self.seen_epoch is not None) or (
            by_maintenance and self.action is not Action.RESTART
        ):
            raise BadCommand(
                "cause repair or move needs action restart and seen_epoch, and nothing else takes them"
            )

    @property
    def issued_at_ms(self) -> int:
        return round(self.issued_at.timestamp() * 1000)

    @property
    def start_cause(self) -> Cause:
        return self.cause or (Cause.RESTART if self.action is Action.RESTART else Cause.START)

    def body(self) -> str:
        """The message body; what is not set is left out."""
        said: dict[str, object] = {
            "action": self.action,
            "user_id": self.user_id,
            "command_id": self.command_id,
            "issued_at": self.issued_at.isoformat(),
            "credentials_ref": self.credentials_ref,
            "reason": self.reason,
            "seen_epoch": self.seen_epoch,
            "cause": self.cause,
        }
        return json.dumps({name: value for name, value in said.items() if value not in ("", None)})

    @property
    def dedup_id(self) -> str:
        """Explicit, because content-based deduplication would swallow the start of start, stop, start.

        A repair names the epoch it saw and the minute, so that an event and a sweep that see the same loss
        send one; without the minute a second loss of that epoch would be swallowed for five.
        """
        parts = [self.user_id, self.command_id]
        if self.seen_epoch is not None:
            parts = [self.user_id, f"{self.cause}", f"{self.seen_epoch}", f"{self.issued_at_ms // 60_000}"]
        return hashlib.sha256("|".join(parts).encode()).hexdigest()


def parse_command(body: str, *, message_id: str, sent_at: datetime) -> Command:
    """A message body as a command, or `BadCommand` with a reason a person can act on.

    A bare `{"action":"start","user_id":"u1"}` sent by hand gets the queue's own id and time.
    """
    command = read_message(Command, body, command_id=message_id, issued_at=sent_at)
    if command.issued_at > sent_at + FUTURE_TOLERANCE:
        raise BadCommand(
            f"issued_at {command.issued_at.isoformat()} lies in the future; check the sender's clock"
        )
    return command


def from_ms(moment_ms: int) -> datetime:
    """Milliseconds since 1970 as an aware time."""
    return datetime.fromtimestamp(moment_ms / 1000, UTC)
