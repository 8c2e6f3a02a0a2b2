"""The endpoint's own process: ministack, with every message and every secret also in a file.

ministack keeps its queues in memory and saves them when it ends in order: a killed one would lose commands
that a person was told are accepted. Here a message is a file before its sender is answered, until it is
deleted, and an endpoint that starts reads what there is. So a kill loses nothing. What was in flight is
delivered again with a receive count from zero, and the deduplication of messages that are gone is forgotten:
SQS allows itself both now and then, and every handler here takes it.

Written, not synchronised to the disk: a power cut may take the last moments with it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import resource
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import uvicorn
from cryptography.fernet import Fernet
from ministack.core.responses import get_account_id, get_region
from ministack.services import secretsmanager, sqs

log = logging.getLogger(__name__)

Action = Callable[[dict[str, Any], str], dict[str, Any]]

#: What a queue is, beside its messages.
_QUEUE = "queue.json"
#: What opens the secrets.
_KEY = "key"
#: Actions on secrets that change none.
_READS = ("Get", "List", "Describe", "BatchGet", "Validate")
#: An idle connection is kept this long after an answer; clients of AWS expect minutes.
_KEEP_ALIVE_S = 75
#: Who is being answered when the endpoint is told to end may hear the answer; long polls are cut off.
_LAST_ANSWERS_S = 1


class Queues:
    """One folder per queue, one file per message in it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def restore(self) -> None:
        """Put every queue and message back that has a file. Half a file is a message nobody was told of."""
        for record in sorted(self._folder.glob(f"*/{_QUEUE}")):
            kept = _read(record)
            if kept is None:
                continue
            queue = kept["queue"]
            messages = [m for path in record.parent.glob("*.json") if path != record and (m := _read(path))]
            messages.sort(key=lambda message: (message["seq"] or "", message["sent_at"]))
            queue |= {"messages": messages, "dedup_cache": _remembered(messages)}
            queue["fifo_seq"] = max((int(message["seq"] or 0) for message in messages), default=0)
            sqs._queues.set_scoped(kept["account"], kept["region"], queue["url"], queue)
        sqs._rebuild_queue_name_index()

    def install(self) -> None:
        """Stand between ministack and its callers wherever a message comes, goes or moves."""
        self._send = sqs._act_send_message
        sqs._act_send_message = self.send
        for name, moves in (("_expire_retained", sqs._expire_retained), ("_dlq_sweep", sqs._dlq_sweep)):
            setattr(sqs, name, self._noting_what_left(moves))
        actions: dict[str, Action] = sqs._HANDLERS
        actions["SendMessage"] = self.send
        for name in ("CreateQueue", "SetQueueAttributes"):
            actions[name] = self._keeping_the_queue(actions[name])
        for name in ("DeleteMessage", "DeleteMessageBatch"):
            actions[name] = self._deleting(actions[name])
        for name in ("PurgeQueue", "DeleteQueue"):
            actions[name] = self._emptying(actions[name])

    def send(self, data: dict[str, Any], url: str) -> dict[str, Any]:
        """A message that cannot be written is refused: its sender would take it for safe."""
        answer: dict[str, Any] = self._send(data, url)
        queue = sqs._get_q(data.get("QueueUrl", url))
        message = queue["messages"][-1] if queue["messages"] else None
        if message is None or message["id"] != answer["MessageId"]:
            return answer  # a repeat within the window of deduplication
        try:
            self._keep(queue, message)
        except OSError as full:
            queue["messages"].remove(message)
            queue["dedup_cache"].pop(message["dedup_cache_key"], None)
            raise sqs._Err("InternalError", f"the message could not be kept: {full}", 500) from full
        return answer

    def _keeping_the_queue(self, action: Action) -> Action:
        def act(data: dict[str, Any], url: str) -> dict[str, Any]:
            answer = action(data, url)
            queue = sqs._get_q(answer.get("QueueUrl") or data.get("QueueUrl", url))
            plain = {key: value for key, value in queue.items() if key not in ("messages", "dedup_cache")}
            kept = {"account": get_account_id(), "region": get_region(), "queue": plain}
            _write(self._path(queue, _QUEUE), json.dumps(kept).encode())
            return answer

        return act

    def _deleting(self, action: Action) -> Action:
        def act(data: dict[str, Any], url: str) -> dict[str, Any]:
            queue = sqs._get_q(data.get("QueueUrl", url))
            handles = {entry.get("ReceiptHandle") for entry in (data, *data.get("Entries", ()))} - {None}
            meant = [message for message in queue["messages"] if message["receipt_handle"] in handles]
            answer = action(data, url)
            self._forget(queue, meant)
            return answer

        return act

    def _emptying(self, action: Action) -> Action:
        def act(data: dict[str, Any], url: str) -> dict[str, Any]:
            queue = sqs._get_q(data.get("QueueUrl", url))
            gone = list(queue["messages"])
            answer = action(data, url)
            self._forget(queue, gone)
            if sqs._queue_by_arn(queue["attributes"]["QueueArn"]) is None:
                self._path(queue, _QUEUE).unlink(missing_ok=True)
            return answer

        return act

    def _noting_what_left(self, move: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
        """For what happens to a queue by itself: messages grow too old, or are given up."""

        def moved(queue: dict[str, Any]) -> None:
            before = queue["messages"]
            move(queue)
            if len(queue["messages"]) == len(before):
                return
            left = {message["id"] for message in queue["messages"]}
            gone = [message for message in before if message["id"] not in left]
            # Kept where they went before they are forgotten where they were: a kill may double, never lose.
            for other in sqs._queues.values():
                ids = {message["id"] for message in gone}
                for message in other["messages"]:
                    if message["id"] in ids:
                        self._keep(other, message)
            self._forget(queue, gone)

        return moved

    def _keep(self, queue: dict[str, Any], message: dict[str, Any]) -> None:
        path = self._path(queue, f"{message['id']}.json")
        path.write_text(json.dumps(message), encoding="utf-8")

    def _forget(self, queue: dict[str, Any], messages: Iterable[dict[str, Any]]) -> None:
        for message in messages:
            self._path(queue, f"{message['id']}.json").unlink(missing_ok=True)

    def _path(self, queue: dict[str, Any], name: str) -> Path:
        return self._folder / str(queue["name"]) / name


class Secrets:
    """One file per secret. A worker that finds no credentials gives up for good, so an endpoint that is back
    must not answer without them.

    Encrypted, as AWS keeps them: whoever searches, copies or sends the folder's files meets no credentials.
    The key lies beside them, for the owner's eyes only, so this is no guard against the owner of the files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        key = folder / _KEY
        if not key.exists():
            _write(key, Fernet.generate_key())
        self._cipher = Fernet(key.read_bytes())

    def restore(self) -> None:
        for path in self._folder.glob("*.secret"):
            kept = json.loads(self._cipher.decrypt(path.read_bytes()))
            secret = kept["secret"]
            secretsmanager._secrets.set_scoped(kept["account"], kept["region"], secret["Name"], secret)

    def install(self) -> None:
        self._handle = secretsmanager.handle_request
        secretsmanager.handle_request = self.handle_request

    async def handle_request(
        self, method: str, path: str, headers: dict[str, str], body: bytes, query: dict[str, Any]
    ) -> Any:
        action = headers.get("x-amz-target", "").rpartition(".")[2]
        if action.startswith(_READS):
            return await self._handle(method, path, headers, body, query)
        asked = json.loads(body)
        wanted = asked.get("SecretId") or asked.get("Name", "")
        name = secretsmanager._resolve(wanted)[0] or wanted
        answer = await self._handle(method, path, headers, body, query)
        self._keep(name)
        return answer

    def _keep(self, name: str) -> None:
        secret = secretsmanager._resolve(name)[1]
        path = self._folder / f"{hashlib.sha256(name.encode()).hexdigest()}.secret"
        if secret is None:
            path.unlink(missing_ok=True)
        else:
            kept = {"account": get_account_id(), "region": get_region(), "secret": secret}
            _write(path, self._cipher.encrypt(json.dumps(kept).encode()))


def _remembered(messages: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The deduplication of what is still there."""
    return {
        message["dedup_cache_key"]: {
            "expire": message["sent_at"] + sqs._DEDUP_WINDOW_S,
            "id": message["id"],
            "md5": message["md5_body"],
            "md5a": message["md5_attrs"],
            "seq": message["seq"],
        }
        for message in messages
        if message.get("dedup_cache_key")
    }


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except ValueError:
        log.warning("%s is not whole: whoever sent it was never answered", path)
        path.unlink()
        return None


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_suffix(".tmp")
    draft.touch(mode=0o600)
    draft.write_bytes(content)
    draft.replace(path)


def main() -> None:
    """Restore, then serve until SIGTERM. Everything else is told by ministack's own variables.

    By uvicorn instead of the server that ministack brings: a call costs half the CPU, and a start makes two.
    """
    from ministack.app import app

    folder = Path(os.environ["STATE_DIR"])
    for kept in (Queues(folder / "queues"), Secrets(folder / "secrets")):
        kept.restore()
        kept.install()
    # Each worker keeps a connection: more than the usual 1024 files.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    uvicorn.run(
        app,
        host=os.environ["BIND_HOST"],
        port=int(os.environ["EDGE_PORT"]),
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,  # ministack writes its own
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_LAST_ANSWERS_S,
    )


if __name__ == "__main__":
    main()
