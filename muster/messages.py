"""Messages at the edge as frozen dataclasses that check themselves: what is wrong is a `BadCommand`.

By hand, because pydantic alone would double what a function loads before its first message.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from typing import Any, TypeVar

from muster.errors import BadCommand

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Rule:
    """What a field must be, in words for people, and the function that holds it to that.

    `take` gives the value as the field keeps it, or raises `ValueError`.
    """

    described: str
    take: Callable[[Any], Any]


#: SQS takes 1 MiB; a message of ours needs a fraction of a percent of that.
MAX_BODY_CHARS = 16_384


def read_message(kind: type[T], body: str, **defaults: Any) -> T:
    """A message body as a `kind`. `defaults` stand in for what the body leaves out."""
    if len(body) > MAX_BODY_CHARS:
        raise BadCommand(f"the body has {len(body)} characters, at most {MAX_BODY_CHARS} are taken")
    try:
        raw: Any = json.loads(body)
    except (ValueError, RecursionError) as broken:
        raise BadCommand(f"the body is not JSON: {broken}") from broken
    if not isinstance(raw, dict):
        raise BadCommand(f"the body must be a JSON object, not {type(raw).__name__}")
    given = defaults | raw
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    for name in given:
        if name not in known:
            raise BadCommand(f"{name[:64]}: Extra inputs are not permitted; known are {', '.join(known)}")
    for name, field in known.items():
        if name not in given and field.default is MISSING:
            raise BadCommand(f"{name}: Field required")
    return kind(**given)


def check_fields(message: object, rules: Mapping[str, Rule]) -> None:
    """For `__post_init__`: put every field through its rule; the first that fails says which and why."""
    for name, rule in rules.items():
        try:
            value = rule.take(getattr(message, name))
        except ValueError as wrong:
            # The value itself is not repeated: whoever mistook the field may have put a secret there.
            raise BadCommand(f"{name}: must be {rule.described}") from wrong
        object.__setattr__(message, name, value)


def words(pattern: str, described: str) -> Rule:
    """Text that matches the whole pattern."""
    compiled = re.compile(pattern)

    def take(value: Any) -> str:
        if not isinstance(value, str) or not compiled.fullmatch(value):
            raise ValueError("it is not")
        return value

    return Rule(described, take)


def prose(most: int) -> Rule:
    """Any text that can be stored."""

    def take(value: Any) -> str:
        if not isinstance(value, str) or len(value) > most:
            raise ValueError("it is not, or is longer")
        value.encode()  # half a character cannot be stored; that error is a ValueError
        return value

    return Rule(f"text of at most {most} characters", take)


def whole(least: int, most: int) -> Rule:
    def take(value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            raise ValueError("it is not")
        return value

    return Rule(str(least) if least == most else f"a whole number from {least} to {most}", take)


def one_of(kind: type[StrEnum]) -> Rule:
    """A word of an enum."""

    def take(value: Any) -> StrEnum:
        if not isinstance(value, str):
            raise ValueError("it is not")
        return kind(value)

    return Rule(" or ".join(kind), take)


def optional(rule: Rule) -> Rule:
    return Rule(f"{rule.described}, or null", lambda value: None if value is None else rule.take(value))
