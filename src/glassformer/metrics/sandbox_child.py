"""The processes of the program sandbox. `sandbox.py` starts this file in an isolated Python; nothing imports it.

Three processes, each the parent of the next:

1. The supervisor limits the time, ends all other processes, and writes to the status pipe how the program ended.
2. The first process of a new process namespace, where there is one. When it ends, the kernel ends the whole namespace.
3. The program. It gives up its rights, writes to the report pipe which protections are in force, and stops there if
   they are not enough. Then it runs the untrusted code, and the tests in the same interpreter.

The job holds the program, the tests and a random token. It comes in a file without a name, which is closed before the
program runs. The token is written to the report pipe after the last test, so a program that ends early has not passed.
"""

import contextlib
import json
import linecache
import os
import resource
import signal
import sys
import time
import traceback
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glassformer.metrics import sandbox_kernel as kernel
else:
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import sandbox_kernel as kernel

    del sys.path[0]

NOBODY = 65534
MAX_ENTRIES = 4096
"""Maximum number of files and folders of a program, if no tmpfs limits them."""
PREPARATION = 60.0
"""Seconds allowed before the program starts."""
POLL = 0.005
"""Seconds between two checks of the supervisor whether the program has ended."""


def supervise(job: dict[str, Any], status: int, report: int) -> None:
    """Run the job (a program, its tests and its limits) in a child process, and write the result to the pipe `status`.

    All remaining processes of the job are ended. `report` is the pipe on which the program reports its protections and
    its success.
    """
    kernel.adopt_orphans()
    has_user = "user" not in job["without"] and kernel.enter_user_namespace()
    active = {"pid"} if has_user and enter(job, "pid") else set()
    stops: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stops.append(number))
    ready, tell_ready = os.pipe()
    os.set_blocking(ready, False)
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.close(status)
        os.close(ready)
        begin(job, (report, tell_ready), active)
        return
    os.close(report)
    os.close(tell_ready)
    # The program's time starts with the program, so that a busy machine does not spend it on preparation.
    late, deadline = "preparation", time.monotonic() + PREPARATION
    reason, code, next_look = "", -signal.SIGKILL, 0.0
    while not reason:
        ended, result = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(result)
            break
        now = time.monotonic()
        if late != "time" and is_ready(ready):
            late, deadline = "time", now + job["seconds"]
        if now > deadline or stops:
            reason = late
        elif now > next_look:
            reason, next_look = "size" * (folder_size(".") > job["total_size"]), now + 0.05
        time.sleep(POLL)
    end_descendants(child)
    os.write(status, json.dumps({"code": code, "reason": reason}).encode())
    os._exit(0)


def is_ready(pipe: int) -> bool:
    """Return whether the program has written its start signal to `pipe`, or has ended before it could write it."""
    try:
        os.read(pipe, 1)
    except BlockingIOError:
        return False
    return True


def begin(job: dict[str, Any], pipes: tuple[int, int], active: set[str]) -> None:
    """Second process of the sandbox: create file and network namespaces, and run the program in a child process.

    The program does not run in this process, because the first process of a namespace ignores some signals. `pipes` are
    those of `run`. `active` holds the names of the namespaces already entered; those entered here are added.
    """
    os.setpgid(0, 0)
    kernel.end_with_parent()
    readable = kernel.library_paths()
    active |= {name for name in ("net", "ipc") if enter(job, name)}
    if enter(job, "mount") and kernel.enter_own_files(os.getcwd(), readable, job["total_size"]):
        active.add("mount")
    child = os.fork()
    if child == 0:
        run(job, pipes, active, readable)
        return
    for pipe in pipes:
        os.close(pipe)
    ended, result = 0, 0
    while ended != child:  # process 1 is the parent of all orphans in its namespace
        ended, result = os.wait()
    code = os.waitstatus_to_exitcode(result)
    os._exit(code if code >= 0 else 128 - code)


def enter(job: dict[str, Any], name: str) -> bool:
    """Move this process into a new Linux namespace of the kind `name`, unless the job disables that kind for a test.

    Return whether it was entered.
    """
    return name not in job["without"] and kernel.enter_namespace(name)


def run(job: dict[str, Any], pipes: tuple[int, int], active: set[str], readable: list[str]) -> None:
    """Drop all privileges, report the protections in force, and run the program if they suffice for the job's mode.

    `pipes` are the report pipe and the one that signals the start. The program may read only the paths `readable`.
    """
    report, tell_ready = pipes
    names, missing = protect(job, active, readable)
    os.write(report, json.dumps({"active": names, "missing": missing}).encode() + b"\n")
    if missing and job["mode"] != "weak":
        os._exit(0)
    os.write(tell_ready, b"!")
    os.close(tell_ready)
    program, tests, token = job.pop("program"), job.pop("tests"), job.pop("token")
    linecache.cache["program.py"] = (len(program), None, program.splitlines(True), "program.py")
    sys.argv = ["program.py"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    if tests is None:
        os.close(report)
        run_main(program)
    else:
        run_tests(program, tests, token.encode(), report)


def run_main(program: str) -> None:
    """Run a program without tests as `python file.py` does, with its exit code and traceback."""
    try:
        exec(compile(program, "program.py", "exec", dont_inherit=True), sys.modules["__main__"].__dict__)
    except SystemExit:
        raise
    except BaseException as error:
        show(error)
        raise SystemExit(1) from None


def run_tests(program: str, tests: str, token: bytes, report: int) -> None:
    """Import the program as a module, so that code under `__main__` does not run; then run the tests in its namespace.

    Writes `token` to the pipe `report` after the last test. Functions that are called after the program has started are
    looked up before, so that a program gains nothing by replacing them.
    """
    write, leave, execute, tell = os.write, os._exit, exec, show
    flushes = (sys.stdout.flush, sys.stderr.flush)
    module = types.ModuleType("program")
    sys.modules["program"] = module
    code, failure = 1, BaseException
    try:
        parts = [
            compile(source, name, "exec", dont_inherit=True)
            for source, name in ((program, "program.py"), (tests, "tests.py"))
        ]
        for part in parts:
            execute(part, module.__dict__)
        write(report, token)
        code = 0
    except failure as error:
        with contextlib.suppress(failure):
            tell(error)
    for flush in flushes:
        with contextlib.suppress(failure):
            flush()
    leave(code)


def show(error: BaseException) -> None:
    """Print the traceback of a program's error without its first frame, which belongs to the sandbox."""
    traceback.print_exception(error.with_traceback(error.__traceback__ and error.__traceback__.tb_next))


def protect(job: dict[str, Any], active: set[str], readable: list[str]) -> tuple[list[str], list[str]]:
    """Drop all privileges. Returns descriptions of the protections in force and of the missing ones.

    `active` are the namespaces that were entered, and `readable` the paths that the program may read.
    """
    names, missing = [], []
    supervisor = os.geteuid()
    without = job["without"]
    if "nobody" not in without and become_nobody():
        names.append(f"unprivileged user ({os.geteuid()})")
    else:
        missing.append(f"an unprivileged user: it would run as root, because user {NOBODY} cannot read {sys.prefix}")
    kernel.end_with_parent()  # changing the user cancels it
    kernel.drop_capabilities()
    landlock = 0 if "landlock" in without else kernel.restrict_files(readable, ".")
    has_scope = "pid" in active or landlock >= 6
    seccomp = "seccomp" not in without and kernel.restrict_calls(signals=not has_scope)
    files = ["mount namespace"] * ("mount" in active) + [f"Landlock {landlock}"] * (landlock > 0)
    network = ["network namespace"] * ("net" in active) + ["seccomp"] * seccomp
    signals = ["process namespace"] * ("pid" in active) + ["Landlock"] * (landlock >= 6)
    signals += ["seccomp"] * (seccomp and not has_scope) + ["own user"] * (os.geteuid() != supervisor)
    for title, means, need in (
        ("no files but Python's library and its folder", files, "Landlock or a mount namespace"),
        ("no network", network, "a network namespace or seccomp"),
        ("no signals to other processes", signals, "a process namespace, Landlock 6 or seccomp"),
    ):
        if means:
            names.append(f"{title} ({', '.join(means)})")
        else:
            missing.append(f"{title}: it needs {need}")
    limit_resources(job)
    if can_fork():
        missing.append("no further processes: the limit on processes has no effect")
    else:
        names.append("no further processes")
    total = "tmpfs" if "mount" in active else "watched"
    names.append(
        f"limits: {job['seconds']:g} s, {job['memory'] >> 20} MiB of memory, {job['file_size'] >> 10} KiB per file, "
        f"{job['total_size'] >> 10} KiB of files ({total})"
    )
    return names, missing


def become_nobody() -> bool:
    """Change from root to the user NOBODY, if that user can read Python's library.

    Returns whether the process is unprivileged now. A process that was not root stays unchanged and gives True.
    """
    if os.geteuid() != 0:
        return True
    try:
        os.setgroups([])
        os.setegid(NOBODY)
        os.seteuid(NOBODY)
        try:
            with open(os.__file__, "rb"):
                os.listdir(os.path.dirname(os.__file__))
        finally:
            os.seteuid(0)
            os.setegid(0)
        os.chown(".", NOBODY, NOBODY)
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    except OSError:
        return False
    return True


def limit_resources(job: dict[str, Any]) -> None:
    """Limit this process's time, memory, files and child processes. Limits that the kernel lacks are skipped."""
    limits = {
        "RLIMIT_CORE": 0,
        "RLIMIT_CPU": max(1, round(job["seconds"] + 1)),
        "RLIMIT_FSIZE": min(job["file_size"], job["total_size"]),
        "RLIMIT_NOFILE": 64,
        "RLIMIT_NPROC": 0,
        "RLIMIT_AS": job["memory"],
    }
    for name, value in limits.items():
        if hasattr(resource, name):
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(getattr(resource, name), (value, value))


def can_fork() -> bool:
    """Return whether this process can start another one, by trying to fork."""
    try:
        child = os.fork()
    except OSError:
        return False
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return True


def folder_size(path: str) -> int:
    """Return the total size in bytes of a folder's files, subfolders included.

    More than MAX_ENTRIES files and folders give `sys.maxsize`, which is above every limit.
    """
    total, count, waiting = 0, 0, [path]
    while waiting:
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                count += 1
                if count > MAX_ENTRIES:
                    return sys.maxsize
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    total += entry.stat(follow_symlinks=False).st_size
    return total


def end_descendants(child: int) -> None:
    """Kill the process `child` and all other descendants of the supervisor, including those that left its session."""
    deadline = time.monotonic() + 5
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    while time.monotonic() < deadline:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)
        for process in descendants():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not ended:
            time.sleep(POLL)


def descendants() -> list[int]:
    """Return the ids of all descendants of this process, from /proc; none where there is no /proc.

    Orphans are included, because the supervisor adopts them.
    """
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if name.isdecimal():
            with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
                # The name in parentheses may contain anything; state and parent follow it.
                parents.setdefault(int(file.read().rpartition(b")")[2].split()[1]), []).append(int(name))
    found, waiting = [], [os.getpid()]
    while waiting:
        below = parents.pop(waiting.pop(), [])
        found += below
        waiting += below
    return found


def main() -> None:
    """Read the job and run it. The command line gives the file descriptors of the job, status pipe and report pipe."""
    job_file, status, report = map(int, sys.argv[1:4])
    kernel.end_with_parent()
    with open(job_file, "rb") as file:
        job = json.loads(file.read())
    supervise(job, status, report)


if __name__ == "__main__":
    main()
