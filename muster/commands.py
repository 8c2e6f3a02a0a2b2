"""Command messages at the edge: what people, the API and maintenance put on worker-control.fifo."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from muster.errors import BadCommand
from muster.model import Cause


def _not_only_dots(user_id: str) -> str:
    if not user_id.strip("."):
        raise ValueError("a user id of dots alone would be a path")
    return user_id


UserId = Annotated[
    str,
    Field(pattern=r"^[A-Za-z0-9._@:-]{1,128}$", description="1-128 of A-Z a-z 0-9 . _ @ : -"),
    AfterValidator(_not_only_dots),
]

#: SQS takes 1 MiB; a command needs a fraction of a percent of that.
MAX_BODY_CHARS = 16_384
#: A clock further ahead than this is wrong; believing it would supersede every honest command after it.
FUTURE_TOLERANCE = timedelta(minutes=5)


class Action(StrEnum):
    START = "start"
    STOP = "stop"
    RESTART = "restart"


class Command(BaseModel):
    """One command for one user. Only `action` and `user_id` are needed; the queue fills in the rest."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1] = 1
    action: Action
    user_id: UserId
    command_id: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[\x21-\x7e]+$")]
    issued_at: AwareDatetime
    credentials_ref: Annotated[str, Field(max_length=512, pattern=r"^[A-Za-z0-9/_+=.@:-]*$")] = ""
    reason: Annotated[str, Field(max_length=200)] = ""
    #: Set by maintenance only: the epoch it saw. The command does nothing once that has moved.
    seen_epoch: Annotated[int, Field(ge=0)] | None = None
    cause: Cause | None = None

    @model_validator(mode="after")
    def _maintenance_fields_go_together(self) -> Command:
        by_maintenance = self.cause in (Cause.REPAIR, Cause.MOVE)
        if by_maintenance != (self.seen_epoch is not None) or (
            by_maintenance and self.action is not Action.RESTART
        ):
            raise ValueError(
                "cause repair or move needs action restart and seen_epoch, and nothing else takes them"
            )
        return self

    @property
    def issued_at_ms(self) -> int:
        return round(self.issued_at.timestamp() * 1000)

    @property
    def start_cause(self) -> Cause:
        return self.cause or (Cause.RESTART if self.action is Action.RESTART else Cause.START)

    def body(self) -> str:
        """The message body; what is not set is left out."""
        return self.model_dump_json(exclude_defaults=True, exclude_none=True)

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
    if len(body) > MAX_BODY_CHARS:
        raise BadCommand(f"the body has {len(body)} characters, at most {MAX_BODY_CHARS} are taken")
    try:
        raw: Any = json.loads(body)
    except (ValueError, RecursionError) as broken:
        raise BadCommand(f"the body is not JSON: {broken}") from broken
    if not isinstance(raw, dict):
        raise BadCommand(f"the body must be a JSON object, not {type(raw).__name__}")
    raw.setdefault("command_id", message_id)
    raw.setdefault("issued_at", sent_at.isoformat())
    try:
        command = Command.model_validate_json(json.dumps(raw), strict=True)
    except (ValidationError, ValueError, RecursionError) as invalid:
        raise BadCommand(_first_reason(invalid)) from invalid
    if command.issued_at > sent_at + FUTURE_TOLERANCE:
        raise BadCommand(
            f"issued_at {command.issued_at.isoformat()} lies in the future; check the sender's clock"
        )
    return command


def _first_reason(invalid: Exception) -> str:
    if not isinstance(invalid, ValidationError):
        return f"the body cannot be read: {type(invalid).__name__}"
    first = invalid.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "body"
    return f"{where}: {first['msg']}"


def from_ms(moment_ms: int) -> datetime:
    """Milliseconds since 1970 as an aware time."""
    return datetime.fromtimestamp(moment_ms / 1000, UTC)
