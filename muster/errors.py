"""One base error, four children. The type decides what happens next; nobody catches and reports success."""

from __future__ import annotations

from datetime import timedelta

from muster.scrub import hide


class MusterError(Exception):
    """Base of every error Muster raises on purpose. Its text ends up in states, reasons and answers, and may
    quote somebody else's words: it never holds a secret this process knows."""

    def __init__(self, *said: object) -> None:
        super().__init__(*(hide(word) if isinstance(word, str) else word for word in said))


class BadCommand(MusterError):
    """This message can never work. Park it in the dead-letter queue at once, with this reason."""


class TryLater(MusterError):
    """This may pass (throttle, no capacity, Valkey away). Only this record comes back, after `after`."""

    def __init__(self, reason: str, after: timedelta | None = None) -> None:
        super().__init__(reason)
        self.after = after


class LostLease(MusterError):
    """The worker may no longer act for its user. Stop acting, close the session, exit."""


class Refused(MusterError):
    """The request is understood and will not be done. Tell the caller why; nothing was changed."""


def aws_errors() -> tuple[type[Exception], ...]:
    """What boto3 raises when a call did not work. In `except aws_errors()` botocore is imported only when
    something was raised: a worker does without it."""
    from botocore.exceptions import BotoCoreError, ClientError

    return BotoCoreError, ClientError
