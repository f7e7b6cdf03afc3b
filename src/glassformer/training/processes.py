"""The processes of one training run: join them, let one decide, share values, and agree on errors.

`torchrun` and `glassformer train --devices N` start N processes of the same command and set RANK, WORLD_SIZE,
MASTER_ADDR and MASTER_PORT. Rank 0 is the *leader*: it alone writes files, prints, and makes decisions that depend on
time. All others repeat its decisions. An error of one process reaches all of them at the next `together` block, so that
the run ends at once, with one message.
"""

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from threading import Thread
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import HashStore, PrefixStore
from torch.distributed.rendezvous import rendezvous

from glassformer.base.plurals import counted
from glassformer.base.version import __version__
from glassformer.training.restart_round import agree_on_round

Given = TypeVar("Given")
Value = TypeVar("Value")

JOIN_SECONDS = 40.0
"""Seconds that a process waits for all others to start."""
STEP_TIMEOUT = timedelta(days=1)
"""Longest wait for another process later on. The leader alone tokenizes, which may take hours; torchrun notices by
itself when a process has ended."""


EXPECTED = "expected all of them to be started, with the same MASTER_ADDR, MASTER_PORT and WORLD_SIZE"


class JoinError(ValueError):
    """This process cannot join its run, and reports it."""


class SharedError(ValueError):
    """An error that all processes of a run raise together. Only the leader prints it."""

    def __init__(self, message: str, exit_code: int = 1):
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(frozen=True)
class Processes:
    """The processes of this run, as seen by one of them; the default is a run of one process."""

    rank: int = 0
    """Number of this process, from 0."""
    size: int = 1
    """Number of processes."""
    group: Any = None
    """The process group that they talk in; None is that of all. A second thread needs another one."""

    @property
    def is_leader(self) -> bool:
        """Whether this process writes files, prints and decides."""
        return self.rank == 0

    def broadcast(self, value: Value) -> Value:
        """Return the leader's value. All processes have to call this."""
        if self.size == 1:
            return value
        box = [value if self.is_leader else None]
        dist.broadcast_object_list(box, src=0, group=self.group, device=torch.device("cpu"))
        return box[0]  # type: ignore[return-value]

    def gather(self, value: Value) -> list[Value]:
        """Return the values of all processes, in the order of their ranks."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value, group=self.group)
        return found

    def divide(self, items: Sequence[Given], work: Callable[[Sequence[Given]], list[Value]]) -> list[Value]:
        """Call `work` with a part of the items in each process, and return the results of all items, in order.

        It returns one result per item. An error in any process becomes a SharedError in all of them.
        """
        part = items[self.rank :: self.size]
        results: list[Value] = []
        with self.together():
            if part:
                results = work(part)
        return _interleave(self.gather(results), len(items))

    def add_up(self, numbers: Tensor, group: Any = None) -> Tensor:
        """Return the sum of a tensor over all processes, or over those of `group`. The tensor is overwritten."""
        if self.size > 1:
            dist.all_reduce(numbers, group=group)
        return numbers

    def barrier(self) -> None:
        """Wait until all processes are here."""
        self.gather(None)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Context manager for work that may fail in one process: if so, all processes raise SharedError at its end."""
        if self.size == 1:
            yield
            return
        error: Exception | None = None
        try:
            yield
        except Exception as raised:
            error = raised
        failures = self.gather(None if error is None else _described(error))
        failed = [rank for rank, failure in enumerate(failures) if failure is not None]
        if failed:
            text, code = failures[failed[0]] or ("", 1)
            everyone = len({failure for failure in failures if failure is not None}) == 1 and len(failed) == self.size
            where = "" if everyone or failed[0] == 0 else f"process {failed[0]} of {self.size}: "
            raise SharedError(f"{where}{text}", code) from error

    def after_leader(self, work: Callable[[], Value], share: Callable[[], Any], take: Callable[[Any], None]) -> Value:
        """Call `work` in the leader, then in the other processes, and return its result in each of them.

        The leader's `share()` is passed to `take` in the other processes before they work, so that they repeat what
        the leader has decided. An error in any process becomes a SharedError in all of them.
        """
        result: list[Value] = []
        with self.together():
            if self.is_leader:
                try:
                    result.append(work())
                except Exception:
                    self.broadcast((False, None))
                    raise
                self.broadcast((True, share()))
            else:
                is_done, shared = self.broadcast((False, None))
                if not is_done:
                    raise SharedError("the first process failed")  # all report the leader's error instead
                take(shared)
                result.append(work())
        return result[0]

    def by_leader(self, decide: Callable[[Given], Value]) -> Callable[[Given], Value]:
        """Return a function for all processes to call, whose result is that of `decide` in the leader."""
        if self.size == 1:
            return decide
        return lambda given: self.broadcast(decide(given) if self.is_leader else None)  # type: ignore[return-value]

    def check_equal(self, name: str, value: Any, advice: str) -> None:
        """Raise SharedError in all processes unless they have the same value. `name` is its name in the error."""
        values = self.gather(json.dumps(value, sort_keys=True, default=str))
        for rank, one in enumerate(values):
            if one != values[0]:
                raise SharedError(f"process {rank} of {self.size} has {name}: expected the same as process 0. {advice}")


@contextmanager
def joined(device: str = "auto", *, is_needed: bool = False) -> Iterator[Processes]:
    """Context manager that joins the processes that torchrun started, and yields them; one process without torchrun.

    With `is_needed`, a single process opens a group too, which FSDP2 needs. `device` is the name of the training
    device. With CUDA each process uses the GPU of its LOCAL_RANK. Raises JoinError if this process cannot join, and
    SharedError if another process does not come, has another version, or ends while this one still needs it.
    """
    if dist.is_available() and dist.is_initialized():
        yield Processes(dist.get_rank(), dist.get_world_size())
        return
    is_started = "RANK" in os.environ
    if not is_started and not is_needed:
        yield Processes()
        return
    uses_cuda = device != "cpu" and torch.cuda.is_available()
    rank, size = (_number("RANK"), _number("WORLD_SIZE")) if is_started else (0, 1)
    if uses_cuda and is_started:
        local, count = int(os.environ.get("LOCAL_RANK", rank)), torch.cuda.device_count()
        if local >= count:
            started = os.environ.get("LOCAL_WORLD_SIZE", local + 1)
            raise _cannot_join(
                f"{started} processes on this machine: it has {counted(count, 'GPUs')}, expected as many "
                "processes, or --device cpu",
                count,
            )
        torch.cuda.set_device(local)
    end_with_launcher()
    store = _find_others(rank, size) if is_started else HashStore()
    backend = "cpu:gloo,cuda:nccl" if uses_cuda else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=STEP_TIMEOUT)
    try:
        yield Processes(rank, size)
    except RuntimeError as error:
        if not is_lost_connection(error):
            raise
        raise SharedError("another process of this run has ended: the connection to it is lost") from error
    finally:
        dist.destroy_process_group()


def end_with_launcher() -> None:
    """Send SIGTERM to this process when torchrun has ended, so that a killed launcher leaves no processes.

    A thread looks for another parent. Linux could send the signal itself (prctl), but does so once for each thread of
    the launcher, and a second signal stops a run without saving.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return
    launcher = os.getppid()

    def watch() -> None:
        while os.getppid() == launcher:
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)

    Thread(target=watch, name="watch the launcher", daemon=True).start()


def is_lost_connection(error: RuntimeError) -> bool:
    """Return whether gloo, NCCL or the store reports that another process does not answer any more."""
    lost = r"gloo.*(Connection (reset|closed|refused)|Read error|Write error|Broken pipe)|remote process exited"
    return isinstance(error, dist.DistNetworkError) or re.search(lost, str(error), re.DOTALL) is not None


def _find_others(rank: int, size: int) -> Any:
    """Return the store of this run, after all processes have written their versions to it."""
    where = f"{os.environ.get('MASTER_ADDR', '')}:{os.environ.get('MASTER_PORT', '')}"
    patience = timedelta(seconds=JOIN_SECONDS)
    own = json.dumps({"glassformer": __version__, "torch": torch.__version__.partition("+")[0], "processes": size})
    try:
        # A process that is not the first tries to connect twice, each time as long.
        seconds = patience / 2 if rank else patience
        found, _, _ = next(iter(rendezvous("env://", rank=rank, world_size=size, timeout=seconds)))
    except (RuntimeError, ValueError) as error:
        raise _cannot_join(f"no process answers at {where} within {JOIN_SECONDS:.0f} s: {EXPECTED}") from error
    try:
        shared = PrefixStore("glassformer", found)
        store = PrefixStore(agree_on_round(shared, rank, size, patience), shared)
        store.set(f"version/{rank}", own)
        store.wait([f"version/{other}" for other in range(size)], patience)
    except (RuntimeError, TimeoutError) as error:
        raise SharedError(
            f"not all {size} processes came to {where} within {JOIN_SECONDS:.0f} s: {EXPECTED}"
        ) from error
    for other in range(size):
        theirs = store.get(f"version/{other}").decode()
        if theirs != own:
            raise SharedError(f"process {other} runs {_in_words(theirs)}: expected {_in_words(own)}, as process {rank}")
    store.set_timeout(STEP_TIMEOUT)
    return store


def _cannot_join(message: str, speaker: int = 0) -> ValueError:
    """Return an error that one process of each machine reports: the one whose LOCAL_RANK is `speaker`."""
    is_speaker = os.environ.get("LOCAL_RANK", str(speaker)) == str(speaker)
    return JoinError(message) if is_speaker else SharedError(message)


def _interleave(parts: Sequence[Sequence[Value]], size: int) -> list[Value]:
    """Return `size` values in order, given parts: part n has every `len(parts)`-th value, from number n on."""
    return [parts[number % len(parts)][number // len(parts)] for number in range(size)]


def _in_words(versions: str) -> str:
    values = json.loads(versions)
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _number(name: str) -> int:
    text = os.environ.get(name, "")
    if not text.isdigit():
        raise JoinError(f"{name}={text!r} in the environment: expected the whole number that torchrun sets")
    return int(text)


def _described(error: Exception) -> tuple[str, int]:
    text = getattr(error, "for_command_line", None) or str(error) or type(error).__name__
    is_known = isinstance(error, ValueError | OSError | ImportError | FloatingPointError)
    return (str(text) if is_known else f"{type(error).__name__}: {text}"), int(getattr(error, "exit_code", 1))
