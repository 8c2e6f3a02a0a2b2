"""Keeps what a forked child writes together, so that it copies few pages of its parent.

Between the objects of a parent that has imported much there are gaps, some on every page. A child's own
objects would go there first, one to a page, and each of them would copy its page. So the parent fills them
before its first fork: what a child allocates then lies together, on pages of its own.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

#: Objects up to this size have an allocator of the interpreter's own; it hands out multiples of the step.
_SMALL, _STEP = 512, 16
#: So many neighbours in a row come from untouched memory: the gaps of this size are filled.
_IN_A_ROW, _ROW_OF_LARGE = 16, 4
#: The largest gap of libc's that is looked for, and its smallest piece. A larger gap is worth having.
_LARGEST, _SMALLEST = 64 * 1024, 24
#: libc's bookkeeping per piece, and `M_ARENA_MAX` of its mallopt.
_HEADER = 8
_ARENA_MAX = -8
#: An allocator that gives no neighbours is not one this module knows: it stops after so many bytes.
_MOST = 16 * 1024 * 1024


def one_arena() -> None:
    """Let all threads allocate from one place. libc would begin another one for each, on fresh pages; while
    the interpreter runs one thread at a time, none of them waits for it."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none, and no arenas
    if mallopt is not None:
        mallopt(_ARENA_MAX, 1)


def close_gaps() -> list[bytes]:
    """Fill the gaps. The caller keeps what is returned for as long as it forks."""
    filling = _fill_small()
    _fill_large(ctypes.CDLL(None))
    return filling


def _fill_small() -> list[bytes]:
    filling: list[bytes] = []
    empty, left = sys.getsizeof(b""), _MOST
    for size in range(_SMALL, empty, -_STEP):
        row, last = 0, 0
        while row < _IN_A_ROW and left > 0:
            piece = bytes(size - empty)
            row = row + 1 if id(piece) == last + size else 0
            last = id(piece)
            filling.append(piece)
            left -= size
    return filling


def _fill_large(libc: Any) -> None:
    """What is filled here is never given back: it stays filled until the process ends."""
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = (ctypes.c_size_t,)
    libc.free.argtypes = (ctypes.c_void_p,)
    size, left = _LARGEST, _MOST
    while size >= _SMALLEST:
        whole = (size + _HEADER + _STEP - 1) // _STEP * _STEP
        row = [libc.malloc(size)]
        while len(row) < _ROW_OF_LARGE and left > 0:
            piece = libc.malloc(size)
            row = [*row, piece] if piece == row[-1] + whole else [piece]
            left -= size
        for piece in reversed(row):  # these lie beyond the last gap, where the children's own will
            libc.free(piece)
        size = size * 15 // 16 if size > 2 * _SMALL else size - _STEP
