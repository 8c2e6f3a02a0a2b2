"""Clients built from settings. boto3 is imported only by the functions that need it."""

from __future__ import annotations

from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from muster.settings import Settings


def valkey_client(settings: Settings, *, blocking_s: float = 0.0) -> Any:
    """A Valkey client with short timeouts. `blocking_s` is the longest blocking read it will be used for."""
    options: dict[str, Any] = {
        "decode_responses": True,
        "socket_connect_timeout": 2,
        "socket_timeout": 3 + blocking_s,
        "health_check_interval": 0,
        # No words before the first command: RESP 2 needs no HELLO, and nobody reads a client's name.
        "protocol": 2,
        "driver_info": None,
        # One more try heals a connection that a failover cut; more would eat the caller's own deadline.
        "retry": Retry(NoBackoff(), 1),
    }
    if settings.valkey_iam_service:
        options["credential_provider"] = _iam_provider(settings)
    if settings.valkey_cluster:
        return redis.RedisCluster.from_url(settings.valkey_url, **options)
    return redis.Redis.from_url(settings.valkey_url, **options)


def open_ahead(client: Any, connections: int) -> None:
    """Open so many connections now, for steps that cannot wait for a handshake. Best effort: what cannot be
    opened is opened when it is needed. (A cluster's client opens its own, one per node, with the first step.)
    """
    if isinstance(client, redis.RedisCluster):
        return
    pool = client.connection_pool
    opened = []
    try:
        for _ in range(connections):
            opened.append(pool.get_connection())
    except redis.RedisError:
        pass  # whoever needs it learns why
    finally:
        for connection in opened:
            pool.release(connection)


def aws_client(settings: Settings, service: str, *, read_timeout_s: float = 25) -> Any:
    """A boto3 client with a bound on every call. The default outlasts a long poll; a caller that must answer
    soon takes less."""
    import boto3
    from botocore.config import Config

    config = Config(
        retries={"mode": "standard", "total_max_attempts": 2},
        connect_timeout=2,
        read_timeout=read_timeout_s,
        max_pool_connections=50,
    )
    return boto3.client(
        service, region_name=settings.region, endpoint_url=settings.aws_endpoint or None, config=config
    )


def _iam_provider(settings: Settings) -> Any:
    """Signs a 15-minute token for every new connection; nothing secret is configured or kept."""
    from botocore.model import ServiceId
    from botocore.session import get_session
    from botocore.signers import RequestSigner
    from redis.credentials import CredentialProvider

    session = get_session()
    signer = RequestSigner(
        ServiceId(settings.valkey_iam_service),
        settings.region,
        settings.valkey_iam_service,
        "v4",
        session.get_credentials(),
        session.get_component("event_emitter"),
    )

    def token() -> str:
        url = f"https://{settings.valkey_name}/?Action=connect&User={settings.valkey_user}"
        request = {"method": "GET", "url": url, "body": {}, "headers": {}, "context": {}}
        signed = signer.generate_presigned_url(request, "connect", expires_in=900)
        return str(signed).removeprefix("https://")

    class IamProvider(CredentialProvider):
        def get_credentials(self) -> tuple[str, str]:
            return settings.valkey_user, token()

    return IamProvider()
