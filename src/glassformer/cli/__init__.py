"""The command line. Results go to stdout, progress to stderr. Each verb imports its modules when it is called."""

import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

from glassformer.cli.verbs import VERBS

HELP = ("-h", "--help", "help")

LESS_MEMORY = (
    "Lower --max-tokens (a higher --accumulate keeps the size of an update), choose a smaller model, or --device cpu."
)
SMALLER_MODEL = "Use a smaller model, shorter texts or a smaller --beam."

SIGNAL_SECONDS = 10.0
"""Seconds after a signal until the process is ended."""


def main() -> None:
    """Run `glassformer VERB ...` and exit with its code.

    0 is success. 2 is a wrong command line: an option, a value or a combination that has to be changed. 1 is any other
    failure, of a file, a model or the machine. 130 and 143 are signals, and 141 is a closed pipe.
    """
    # On ARM, torch's allocator returns freed memory to the system after 10 ms and gets it back page by page for the
    # next batch, which takes 3 % of the generation time. A delay of 10 s avoids that. Set it before torch is loaded.
    os.environ.setdefault("MIMALLOC_PURGE_DELAY", "10000")
    _prepare_streams()
    try:
        try:
            with _ending_on_signals():
                _main()
        finally:
            sys.stdout.flush()  # here, because errors can no longer be caught when Python exits
    except BrokenPipeError:
        # The reader of our output, such as `head`, has closed it. 141 is the shell's exit code for SIGPIPE.
        _discard_output()
        sys.exit(141)
    except OSError as error:
        _discard_output()
        _fail(
            f"stdout cannot be written: {error.strerror or error}; expected a file or pipe that can take the output", 1
        )


def _prepare_streams() -> None:
    """Make stdin, stdout and stderr UTF-8 in every locale. Reopen closed ones, except stdin."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free descriptor, so that no file of ours gets it
    if sys.stderr is None:
        # print(file=None) would write to stdout.
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        _fail("stdout is closed: expected a terminal, a file or a pipe; >/dev/null discards the output", 1)
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(newline="\n")


def _discard_output() -> None:
    """Discard buffered output, so that Python does not fail to write it when it exits."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def _ending_on_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGINT into exceptions, so that incomplete files are removed.

    A second signal ends the process at once. An exception inside an import may be lost, so a timer ends the process
    after SIGNAL_SECONDS. Training installs its own handler, which saves a checkpoint first.
    """
    usual: dict[int, Any] = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
    handled = [number for number, handler in usual.items() if signal.getsignal(number) is handler]
    if threading.current_thread() is not threading.main_thread():
        handled = []
    timers: list[threading.Timer] = []

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        timers.append(threading.Timer(SIGNAL_SECONDS, os._exit, [128 + number]))
        timers[-1].daemon = True
        timers[-1].start()
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        sys.exit(128 + number)

    for number in handled:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, usual[number])
        for timer in timers:
            timer.cancel()


def _main() -> None:
    verb, rest = (sys.argv[1] if len(sys.argv) > 1 else "help"), sys.argv[2:]
    if verb in HELP and rest and not rest[0].startswith("-"):
        verb, rest = rest[0], [*rest[1:], "--help"]  # help VERB, and help train TASK
    if verb in HELP:
        print(_usage())
        return
    if verb in ("-V", "--version"):
        from glassformer import __version__

        print(f"glassformer {__version__}")
        return
    try:
        _run(verb, rest)
    except KeyboardInterrupt as error:
        if hasattr(error, "exit_code"):  # training was stopped by a second signal
            _fail(
                f"{error} without saving; run the same command again to resume from the newest checkpoint",
                error.exit_code,
            )
        sys.exit(130)
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.filename is None:
            sys.stdout.flush()  # if stdout caused the error, this fails again, and main() reports it
        _fail(error, 1)
    except (ValueError, ImportError, FloatingPointError) as error:
        _fail(error, getattr(error, "exit_code", 1))
    except Exception as error:
        from glassformer.kernels.cpp_library import KernelBuildError
        from glassformer.training.trainer import DivergedError, Interrupted

        if isinstance(error, Interrupted):
            _fail(f"{error}; run the same command again to resume", error.exit_code)
        if isinstance(error, DivergedError | KernelBuildError):
            _fail(error, 1)
        if _is_out_of_memory(error):
            message = (str(error) or "the system has none left").splitlines()[0][:300]
            _fail(f"out of memory: {message}\n{LESS_MEMORY if verb in ('train', 'demo') else SMALLER_MODEL}", 1)
        raise  # a bug of ours


def _is_out_of_memory(error: Exception) -> bool:
    """Return whether the error is about memory of a GPU or the machine. torch raises a RuntimeError for both."""
    words = ("out of memory", "can't allocate memory", "not enough memory")
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(word in str(error) for word in words)
    )


def _fail(reason: object, exit_code: int) -> NoReturn:
    print(f"glassformer: {reason}", file=sys.stderr)
    sys.exit(exit_code)


def _usage() -> str:
    lines = "\n".join(f"  {verb:12}{about}" for verb, about in VERBS.items())
    more = "glassformer VERB --help shows the options of a verb; glassformer -V shows the version."
    return f"usage: glassformer VERB ...\n\n{lines}\n\n{more}"


def _run(verb: str, rest: list[str]) -> None:
    if verb not in VERBS:
        from glassformer.base.names import suggestion

        _fail(f"{verb!r} is not a verb: {suggestion(verb, VERBS)} (glassformer --help lists them)", 2)
    try:
        import rich  # noqa: F401
    except ImportError:
        sys.exit("the command line needs one more package: pip install rich")
    if verb == "train":
        from glassformer.cli.train import train

        train(rest)
        return
    if verb == "eval":
        from glassformer.cli.evaluate import evaluate

        evaluate(rest)
        return
    if verb == "demo":
        from glassformer.cli.demo import demos

        demos(rest)
        return
    from glassformer.cli.bench import WHAT_IT_DOES, bench
    from glassformer.cli.completion import completion
    from glassformer.cli.convert import convert
    from glassformer.cli.info import info
    from glassformer.cli.run import run

    if verb == "bench" and not rest:
        print(WHAT_IT_DOES)
        return
    verbs: dict[str, Callable[..., None]] = {
        "run": run,
        "info": info,
        "bench": bench,
        "convert": convert,
        "completion": completion,
    }
    from glassformer.cli.flag_parser import call_function

    call_function(verbs[verb], rest, verb)
