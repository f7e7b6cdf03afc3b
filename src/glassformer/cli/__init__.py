"""The command line: `glassformer VERB ...`.

Results go to stdout, progress and errors to stderr. A verb is a function (`FUNCTIONS`): its parameters are its options,
and its docstring is its help (`call_function` in `flag_parser.py`).

A command starts in three steps: `main` prepares the process, `_main` answers `--help` and `--version` and turns errors
into messages and exit codes, and `_run` imports and calls the verb. A verb's modules are imported only then, because
loading torch takes seconds that `--help` does not need.

To add a verb, write its function, and add it to `FUNCTIONS` and, with the line that `--help` shows, to `VERBS`.
"""

import gc
import os
import sys
import time
from importlib import import_module

from glassformer.cli.launch import is_follower
from glassformer.cli.process import discard_output, ending_on_signals, fail, prepare_streams
from glassformer.cli.verbs import VERBS

HELP = ("-h", "--help", "help")

FUNCTIONS = {
    "demo": ("demo", "demos"),
    "train": ("train", "train"),
    "plan": ("plan", "plan"),
    "prepare": ("prepare", "prepare"),
    "run": ("run", "run"),
    "chat": ("terminal_chat", "chat"),
    "serve": ("serve", "serve"),
    "eval": ("evaluate", "evaluate"),
    "rate": ("rate", "rate"),
    "info": ("info", "info"),
    "explain": ("explain", "explain"),
    "convert": ("convert", "convert"),
    "tokenizer": ("tokenizer_tools", "tokenizer"),
    "bench": ("bench", "bench"),
    "completion": ("completion", "completion"),
}
"""For each verb, its module in `glassformer.cli` and its function there."""
TASK_VERBS = ("demo", "train", "prepare", "eval")
"""Verbs whose options depend on the task. Their functions get the arguments as a list and parse them themselves."""

LESS_MEMORY = (
    "Lower --max-tokens (a higher --accumulate keeps the size of an update), choose a smaller model, or --device cpu."
)
FOLLOWER_SECONDS = 5.0
"""Seconds that a process which is not the first one of its run waits before it ends with an error. If the first one has
the same error, it reports it meanwhile, and its launcher ends this process."""
SMALLER_MODEL = "Use a smaller model, shorter texts or a smaller --beam."


def main() -> None:
    """Run the command `glassformer VERB ...`, with the arguments in `sys.argv`.

    The exit code is 0 for success and 2 for a wrong command line: an option, a value or a combination that has to be
    changed. It is 1 for any other failure, of a file, a model or the machine; 130 after SIGINT, 143 after SIGTERM; and
    141 if the reader of stdout closed it.
    """
    # On ARM, torch's allocator returns freed memory to the system after 10 ms and gets it back page by page for the
    # next batch, which takes 3 % of the generation time. A delay of 10 s avoids that. Set it before torch is loaded.
    os.environ.setdefault("MIMALLOC_PURGE_DELAY", "10000")
    # The default looks for cyclic garbage after every 700 new objects, a tenth of the time that importing torch takes.
    gc.set_threshold(20_000, 20, 20)
    if "RANK" in os.environ:  # stack traces of C++, before the error that they belong to is reported
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    prepare_streams()
    try:
        try:
            with ending_on_signals():
                _main(sys.argv[1:])
        finally:
            sys.stdout.flush()  # here, because errors can no longer be caught when Python exits
    except BrokenPipeError:
        # The reader of our output, such as `head`, has closed it. 141 is the shell's exit code for SIGPIPE.
        discard_output()
        sys.exit(141)
    except OSError as error:
        discard_output()
        fail(
            f"stdout cannot be written: {error.strerror or error}; expected a file or pipe that can take the output", 1
        )


def _main(arguments: list[str]) -> None:
    """Print the help or the version if that is asked for. Otherwise run the verb and report its errors."""
    verb, *rest = arguments or ["help"]
    if verb in HELP and rest and not rest[0].startswith("-"):
        verb, rest = rest[0], [*rest[1:], "--help"]  # help VERB, and help train TASK
    if verb in HELP:
        print(_usage())
    elif verb in ("-V", "--version"):
        from glassformer.base.version import __version__

        print(f"glassformer {__version__}")
    else:
        try:
            _run(verb, rest)
        except (Exception, KeyboardInterrupt) as error:
            _report(error, verb)


def _run(verb: str, arguments: list[str]) -> None:
    """Import the function of a verb and call it with the arguments. An unknown verb ends the process."""
    if verb not in VERBS:
        from glassformer.base.names import suggestion

        fail(f"{verb!r} is not a verb: {suggestion(verb, VERBS)} (glassformer --help lists them)", 2)
    try:
        import rich  # noqa: F401
    except ImportError:
        sys.exit("the command line needs one more package: pip install rich")
    module, name = FUNCTIONS[verb]
    function = getattr(import_module(f"glassformer.cli.{module}"), name)
    if verb in (*TASK_VERBS, "tokenizer"):
        function(arguments)
    elif verb == "bench" and not arguments:
        from glassformer.cli.bench import WHAT_IT_DOES

        print(WHAT_IT_DOES)
    else:
        from glassformer.cli.flag_parser import call_function

        call_function(function, arguments, verb)


def _report(error: BaseException, verb: str) -> None:
    """Exit with a message for an error that the user can act on. Raise the error if it is a bug of Glassformer.

    Errors of files, values and options carry their own message. Some have an `exit_code`, such as 2 for a wrong option,
    or a message `for_command_line`, which names flags instead of arguments.
    """
    if isinstance(error, BrokenPipeError):
        raise error  # `main` ends quietly
    if isinstance(error, KeyboardInterrupt):
        if hasattr(error, "exit_code"):  # training was stopped by a second signal
            fail(
                f"{error} without saving; run the same command again to resume from the newest checkpoint",
                error.exit_code,
            )
        sys.exit(130)
    if is_follower() and type(error).__name__ not in ("JoinError", "Interrupted"):
        time.sleep(FOLLOWER_SECONDS)
    if _is_reported_elsewhere(error):
        sys.exit(getattr(error, "exit_code", 1))
    if isinstance(error, OSError):
        if error.filename is None:
            sys.stdout.flush()  # if stdout caused the error, this fails again, and main() reports it
        fail(error, 1)
    if isinstance(error, ValueError | ImportError | FloatingPointError):
        fail(getattr(error, "for_command_line", error), getattr(error, "exit_code", 1))

    from glassformer.kernels.cpp_library import KernelBuildError
    from glassformer.training.stop_signals import Interrupted
    from glassformer.training.trainer import DivergedError

    if isinstance(error, Interrupted):
        fail(f"{error}; run the same command again to resume", error.exit_code)
    if isinstance(error, DivergedError | KernelBuildError):
        fail(error, 1)
    if _is_out_of_memory(error):
        message = (str(error) or "the system has none left").splitlines()[0][:300]
        fail(f"out of memory: {message}\n{LESS_MEMORY if verb in ('train', 'demo') else SMALLER_MODEL}", 1)
    raise error


def _is_reported_elsewhere(error: BaseException) -> bool:
    """Return whether the first process of a run of several processes has the same error, and reports it."""
    if not is_follower():
        return False
    is_shared = type(error).__name__ in ("SharedError", "Interrupted", "DivergedError")
    return is_shared or getattr(error, "exit_code", 1) == 2  # all processes have the same command line


def _is_out_of_memory(error: BaseException) -> bool:
    """Return whether the error says that the GPU or the machine has no memory left.

    It is a MemoryError, or a RuntimeError of torch, which is recognized by its message.
    """
    words = ("out of memory", "can't allocate memory", "not enough memory")
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(word in str(error) for word in words)
    )


def _usage() -> str:
    lines = "\n".join(f"  {verb:12}{about}" for verb, about in VERBS.items())
    more = "glassformer VERB --help shows the options of a verb; glassformer -V shows the version."
    return f"usage: glassformer VERB ...\n\n{lines}\n\n{more}"
