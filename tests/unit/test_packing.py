"""After the gaps are closed, what a process allocates lies together. In processes of their own: the gaps of
this one are not for a test to fill."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: A gap on every page, then a few new objects: on how many pages do they lie?
_SCRIPT = """
import ctypes, sys
from muster.launchers.packing import close_gaps, one_arena

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)
kept, holes = [], []
for number in range(20_000):
    (kept if number % 40 else holes).append(bytes({size} - 33))
pieces = [libc.malloc(700) for _ in range(20_000)]
for piece in pieces[::40]:
    libc.free(piece)
del holes
if sys.argv[1] == "closed":
    filling = close_gaps()
small = [bytes({size} - 33) for _ in range(400)]
large = [libc.malloc(700) for _ in range(400)]
print(len({{id(one) // 4096 for one in small}}), len({{one // 4096 for one in large}}))
"""


def pages(gaps: str, **env: str) -> tuple[int, int]:
    """The pages of 400 objects of 128 bytes, and of 400 pieces of 700 bytes from libc."""
    words = [sys.executable, "-c", _SCRIPT.format(size=128), gaps]
    done = subprocess.run(
        words, env=os.environ | env, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    small, large = done.stdout.split()
    return int(small), int(large)


def test_what_is_allocated_after_the_gaps_are_closed_lies_together() -> None:
    small, large = pages("closed")
    assert small <= 400 * 128 // 4096 + 8
    assert large <= 400 * 704 // 4096 + 8


def test_with_gaps_it_is_all_over_the_place() -> None:
    small, large = pages("open")
    assert small > 200
    assert large > 200


def test_an_allocator_without_neighbours_is_left_alone_after_a_while() -> None:
    assert pages("closed", PYTHONMALLOC="debug")


@pytest.mark.parametrize("allocator", ["malloc", "pymalloc"])
def test_every_allocator_of_the_interpreter_is_fine(allocator: str) -> None:
    small, large = pages("closed", PYTHONMALLOC=allocator)
    assert small < 200
    assert large < 200
