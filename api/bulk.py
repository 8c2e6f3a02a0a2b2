"""One command for everybody who matches a filter: seen, confirmed, then accepted once for each of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence

from api.source import BulkAccepted, BulkOrder
from muster import keys
from muster.errors import BadCommand, Refused
from muster.store import Store, command, text

#: As long as the commands themselves are remembered.
KEPT_S = 24 * 3600
#: More at once is a plan, not a button: narrow the filter.
MOST_USERS = 20_000

#: Accepts the order for these users under this idempotency key; a repeat must be harmless for each of them.
Send = Callable[[Sequence[str], BulkOrder, str], None]


def selection_of(users: Sequence[str]) -> str:
    """Names a set of users: the same for the same users only. It starts with how many they are."""
    digest = hashlib.sha256("\n".join(sorted(users)).encode()).hexdigest()
    return f"{len(users)}-{digest[:16]}"


def accept(
    store: Store, order: BulkOrder, idempotency_key: str, matching: Callable[[], Sequence[str]], send: Send
) -> BulkAccepted:
    """The users are written down before the first command goes out. A stop changes what matches: a repeat
    that asked the filter again would be for other users, and one after a crash would leave some out."""
    if not idempotency_key:
        raise BadCommand("Idempotency-Key: needed for a bulk command, so that a repeat is no second one")
    digest = hashlib.sha256(idempotency_key.encode()).hexdigest()
    name = keys.bulk(digest)
    asked = [order.action.value, order.phase, order.q, order.reason, order.selection]
    first = _read(store, name)
    repeated = first is not None
    if first is None:
        users = matching()
        _confirm(order, users)
        plan = json.dumps({"asked": asked, "users": users})
        store.one(command("SET", name, plan, "NX", "EX", KEPT_S, parse=bool))
        first = _read(store, name)  # of two that ask at once, the first one's
        assert first is not None
    remembered, users = first
    if remembered != asked:
        raise Refused("Idempotency-Key: already used for another bulk command; take a new key for a new one")
    send(users, order, f"bulk-{digest}")
    return BulkAccepted(order.action, len(users), repeated)


def _confirm(order: BulkOrder, users: Sequence[str]) -> None:
    if not users:
        raise Refused("nobody matches any more; nothing was changed")
    if len(users) > MOST_USERS:
        raise Refused(f"{len(users)} users match; at most {MOST_USERS} are taken at once, narrow the filter")
    if selection_of(users) != order.selection:
        seen = order.selection.partition("-")[0]
        raise Refused(
            f"the users that match have changed: {seen} when you looked, {len(users)} now. "
            "Nothing was changed; look again and confirm again"
        )


def _read(store: Store, name: str) -> tuple[list[object], list[str]] | None:
    found = store.one(command("GET", name, parse=lambda value: None if value is None else text(value)))
    if found is None:
        return None
    plan = json.loads(found)
    return plan["asked"], plan["users"]
