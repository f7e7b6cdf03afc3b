"""Keep freed memory in the process, or return it to the system, where the C library allows it."""

import ctypes
from contextlib import suppress

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt, from malloc.h of glibc."""
KEPT_SIZES = 1 << 28, 1 << 25
"""Freed memory that the process keeps, and the size from which memory is returned to the system at once. Older versions
of glibc allow at most the second number."""


def keep_freed_memory() -> None:
    """Let glibc keep freed memory in the process from now on, up to one of KEPT_SIZES.

    Other C libraries are left as they are. Large tensors of each batch would otherwise be returned to the system and
    cleared anew, which takes a twentieth of the time of generation, and up to a tenth of that of training.
    """
    with suppress(OSError, AttributeError, TypeError):  # other C libraries lack mallopt
        mallopt = ctypes.CDLL(None).mallopt
        # Where the first limit cannot be raised, the second must not be: it would fix the first one at 128 KiB.
        for size in KEPT_SIZES:
            if mallopt(M_MMAP_THRESHOLD, size):
                mallopt(M_TRIM_THRESHOLD, size)
                return


def give_back_freed() -> None:
    """Make the C library return its freed memory to the operating system, if it can (glibc).

    Tensors that are allocated and freed in turns with others that stay leave holes in the heap, up to a third of its
    size.
    """
    with suppress(AttributeError, OSError, TypeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)
