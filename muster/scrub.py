"""Keeps secrets out of what is written: logs, tracebacks, reasons, published state.

Two nets. `hide` knows the values that this process has been given (`learn`), whatever they look like and
wherever they turn up: a broker may echo a header in an error page. `scrub` also knows what a secret looks
like (a field called token, a bearer header, a password in a url) and is for outputs that people read. `guard`
puts the second one in front of everything a process writes.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TextIO, cast
from urllib.parse import quote

HIDDEN = "***"
#: A shorter value would blot out ordinary words; no broker issues one.
SHORTEST = 8
#: A function that serves many users forgets the secrets it has not used for this many others.
KEPT = 256

_lock = threading.Lock()
_learned: OrderedDict[str, frozenset[str]] = OrderedDict()
#: Every way the learned values may be written, longest first. Replaced as a whole, so readers need no lock.
_forms: tuple[str, ...] = ()

_NAME = (
    r"(?:authorization|token|secret|password|passwd|passphrase|cookie|secretstring|\bkey_id|apca-[a-z-]+"
    r"|(?:api|secret|access|private)[_-]?key(?:[_-]?id)?)"
)
#: A secret by its name: `token=x`, `"token": "x"`, `\"token\": \"x\"`, `('token', 'x')`, `Token: Bearer x`.
#: A value that was cut off ends with its line.
_FIELD = re.compile(
    rf"""(?P<name>{_NAME}(?:\\*["']?\s*[:=]\s*|\\*["']\s*,\s*))"""
    r"""(?:(?P<open>b?(?P<escape>\\+)["']).*?(?P<close>(?<!\\)(?P=escape)["']|$)"""
    r"""|(?P<plain>b?(?P<quote>["']))(?:(?!(?P=quote))[^\\\n]|\\.)*(?P<end>(?P=quote)|$)"""
    r"""|(?P<bare>(?:(?:bearer|basic|digest)\s+)?[^\s,;&"'\\{}()\[\]<>]+))""",
    re.IGNORECASE | re.MULTILINE,
)
#: Without one of these the patterns find nothing, and most lines have none: looking for them costs far less.
_FIELD_HINTS = ("authorization", "token", "secret", "passw", "passphrase", "cookie", "key", "apca-")
_LOOKS_HINTS = ("bearer", "basic", "eyj", "://")
_QUOTED_NAME = re.compile(r"""["']\s*[:,]\s*$""")
_NOTHING = frozenset({"null", "none", "true", "false"})
#: A secret by its own look: a bearer or basic header, a signed token, a password inside a url.
_LOOKS = re.compile(
    r"(?P<scheme>\b(?:bearer|basic)\s+)[\w.~+/=-]{8,}"
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"
    r"|(?P<url>://[^/\s:@]*:)[^@/\s]+(?=@)",
    re.IGNORECASE,
)

#: Plain, in JSON, in JSON that keeps its letters, as Python shows it, in a url.
_WAYS: tuple[Callable[[str], str], ...] = (
    str,
    lambda text: json.dumps(text)[1:-1],
    lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
    lambda text: repr(text)[1:-1],
    lambda text: quote(text, safe="", errors="surrogatepass"),
)


def learn(*secrets: str) -> None:
    """From now on these values are never written by this process. Repeating it keeps them longer."""
    global _forms
    with _lock:
        before = len(_learned)
        for secret in secrets:
            if len(secret) >= SHORTEST:
                known = secret in _learned
                _learned[secret] = _learned[secret] if known else _written(secret)
                _learned.move_to_end(secret)
                before -= not known
        if before == len(_learned):
            return
        while len(_learned) > KEPT:
            _learned.popitem(last=False)
        _forms = tuple(sorted(frozenset().union(*_learned.values()), key=len, reverse=True))


def learn_fields(fields: Mapping[str, Any]) -> None:
    """Learn the values whose names say that they are secret."""
    learn(*(value for name, value in _texts(fields) if re.search(_NAME, name, re.IGNORECASE)))


def hide(text: str) -> str:
    """The text without the values learned so far."""
    for form in _forms:
        if form in text:
            text = text.replace(form, HIDDEN)
    return text


def scrub(text: str) -> str:
    """The text without learned values, and without what looks like a secret. JSON stays JSON."""
    text = hide(text)
    lowered = text.lower()
    if any(hint in lowered for hint in _FIELD_HINTS):
        text = _FIELD.sub(_empty, text)
    if any(hint in lowered for hint in _LOOKS_HINTS):
        text = _LOOKS.sub(_blot, text)
    return text


def guard() -> None:
    """Scrub what this process writes from here on: logs, prints, tracebacks, also of handlers made before."""
    guard_records()
    for name in ("stdout", "stderr"):
        former = getattr(sys, name)
        if isinstance(former, _Scrubbed):
            continue
        setattr(sys, name, scrubbed(former))
        for handler in _handlers():
            if handler.stream is former:
                handler.setStream(getattr(sys, name))


def guard_records() -> None:
    """Scrub every log record as it is made: for processes whose handlers write past the standard streams."""
    make = logging.getLogRecordFactory()
    if isinstance(make, _Records):
        return
    logging.setLogRecordFactory(_Records(make))


def scrubbed(stream: TextIO) -> TextIO:
    """This stream, behind the scrubber."""
    return cast(TextIO, _Scrubbed(stream))


class _Scrubbed:
    """A text stream whose every write is scrubbed; anything else is the stream's own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(scrub(text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Records:
    """Makes log records whose message, arguments and traceback are scrubbed."""

    def __init__(self, make: Any) -> None:
        self._make = make

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record: logging.LogRecord = self._make(*args, **kwargs)
        if record.exc_info and record.exc_info[1] is not None:
            record.exc_text = scrub(logging.Formatter().formatException(record.exc_info))
        if isinstance(record.args, tuple):
            # One by one, because a formatter may want the arguments themselves (uvicorn's access log does).
            record.args = tuple(_clean(value) for value in record.args)
        try:
            said = record.getMessage()
        except (TypeError, ValueError):
            return record  # the handler says that the arguments do not fit
        if (clean := scrub(said)) != said:
            record.msg, record.args = clean, ()
        return record


def _clean(value: Any) -> Any:
    if value is None or isinstance(value, int | float):
        return value
    said = str(value)
    clean = scrub(said)
    return value if clean == said else clean


def _handlers() -> Iterator[logging.StreamHandler[Any]]:
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    for logger in loggers:
        for handler in getattr(logger, "handlers", ()):
            if isinstance(handler, logging.StreamHandler):
                yield handler


def _texts(fields: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in fields.items():
        if isinstance(value, str):
            yield str(name), value
        elif isinstance(value, Mapping):
            yield from _texts(value)


def _written(secret: str) -> frozenset[str]:
    """The secret as it may be written, and that once more: an error shown by Python inside a line of JSON."""
    once = {way(secret) for way in _WAYS}
    return frozenset(once | {way(text) for text in once for way in _WAYS})


def _empty(found: re.Match[str]) -> str:
    name = found["name"]
    if found["open"] is not None:
        return f"{name}{found['open']}{HIDDEN}{found['close']}"
    if found["plain"] is not None:
        return f"{name}{found['plain']}{HIDDEN}{found['end']}"
    if found["bare"].lower() in _NOTHING:
        return found[0]
    return f'{name}"{HIDDEN}"' if _QUOTED_NAME.search(name) else f"{name}{HIDDEN}"


def _blot(found: re.Match[str]) -> str:
    return f"{found['scheme'] or found['url'] or ''}{HIDDEN}"
