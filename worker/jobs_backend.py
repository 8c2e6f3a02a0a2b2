"""Which backend a job worker uses: a URL, or the deployment's own Valkey with its identity."""

from __future__ import annotations

import os

from muster.jobs import Jobs, connect

#: As a URL: the Valkey of the settings, signed in as this task's role. No address or password is passed.
DEPLOYMENT = "settings:"


def open_jobs(url: str) -> Jobs:
    """The jobs behind `url`."""
    if url != DEPLOYMENT:
        return connect(url)
    from muster.clients import valkey_client
    from muster.clock import SystemClock
    from muster.jobs.valkey import ValkeyWork
    from muster.jobs.valkey_workers import ValkeyRegistration
    from muster.settings import Settings
    from muster.store import Store

    store, clock = Store(valkey_client(Settings.from_env(os.environ))), SystemClock()
    return Jobs(ValkeyWork(store, clock), ValkeyRegistration(store, clock), url)
