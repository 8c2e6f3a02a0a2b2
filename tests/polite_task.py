"""Tasks for a fork server: what the shell scripts of the launcher tests do, as functions."""

from __future__ import annotations

import os
import signal
import sys
import time


def main() -> int:
    """Says when it is ready, exits 0 on SIGTERM and 7 on SIGUSR1."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGUSR1, lambda *_: sys.exit(7))
    return _wait()


def deaf() -> int:
    """Does not hear SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return _wait()


def environment() -> int:
    """Tells its variables, as a C program sees them too, and ends."""
    os.execvp("env", ["env"])


def _wait() -> int:
    print("ready", flush=True)
    while True:
        time.sleep(300)
