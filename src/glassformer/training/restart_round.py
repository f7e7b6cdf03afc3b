"""Let the processes of one round find each other, where earlier rounds have used the same store.

A launcher (torchrun) that sees a process end starts all processes again: a new *round*. Its store still holds what the
processes of earlier rounds wrote, such as the addresses of processes that have ended. torchrun does not tell a process
the number of its round; it tells how often this launcher has restarted, and the launchers of several machines may have
restarted differently often.

So each process writes a random number. Rank 0 lists the numbers of all ranks. A process confirms a list that contains
its own number, and once all have confirmed the same list, the list names the round. A list with the number of a process
that has ended is never confirmed by all: rank 0 makes another list when the rank's new number is there.
"""

import hashlib
import secrets
import time
from datetime import timedelta
from typing import Any

POLL_SECONDS = 0.05


def agree_on_round(store: Any, rank: int, size: int, patience: timedelta) -> str:
    """Return a name that only the processes of this round share, for a prefix of their keys in the store.

    Raises TimeoutError if not all `size` processes come within `patience`.
    """
    own, deadline = secrets.token_hex(8), time.monotonic() + patience.total_seconds()
    store.set(f"number/{rank}", own)
    while time.monotonic() < deadline:
        if rank == 0:
            _list_numbers(store, size)
        numbers = _read(store, "list").split()
        if len(numbers) == size and numbers[rank] == own:
            name = hashlib.sha256(" ".join(numbers).encode()).hexdigest()[:16]
            store.set(f"{name}/confirmed/{rank}", "")
            if rank == 0 and store.check([f"{name}/confirmed/{other}" for other in range(size)]):
                store.set(f"{name}/complete", "")
            if store.check([f"{name}/complete"]):
                return name
        time.sleep(POLL_SECONDS)
    raise TimeoutError(f"not all {size} processes confirmed the same list within {patience}")


def _list_numbers(store: Any, size: int) -> None:
    """Write the list of all numbers, if there is one for each rank and the list does not hold them yet."""
    keys = [f"number/{rank}" for rank in range(size)]
    if store.check(keys):
        numbers = " ".join(value.decode() for value in store.multi_get(keys))
        if numbers != _read(store, "list"):
            store.set("list", numbers)


def _read(store: Any, key: str) -> str:
    return store.get(key).decode() if store.check([key]) else ""
