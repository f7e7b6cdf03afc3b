"""The Linux calls of the program sandbox: namespaces, mounts, Landlock, seccomp and capabilities, through ctypes.

`sandbox_child.py` loads this file by its path in an isolated Python, so it imports nothing except Python's standard
library. If the kernel lacks a protection, no error is raised: the functions that set one up return whether it is in
force, and the caller decides whether the protections in force are enough.
"""

import contextlib
import ctypes
import errno
import os
import platform
import signal
import struct
import sys
import sysconfig

_NAMESPACES = {"mount": 0x00020000, "ipc": 0x08000000, "pid": 0x20000000, "net": 0x40000000}
_NEW_USER = 0x10000000
_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 22, 36, 38
_MS_READ_ONLY, _MS_NOSUID, _MS_NODEV, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_SLAVE = 1, 2, 4, 32, 4096, 16384, 1 << 19
_KEPT_FLAGS = 1 | 2 | 4 | 8 | 1024 | 2048
"""Mount flags that a remount in a user namespace must repeat: read-only, nosuid, nodev, noexec, (no)atime."""
_DETACH = 2
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")

_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def end_with_parent() -> None:
    """Ask the kernel to kill this process when its parent ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def library_paths() -> list[str]:
    """Return the folders and files that Python reads while it runs: its library, shared libraries, time zones."""
    base = [os.path.join(sys.base_prefix, name) for name in ("lib", "lib64")]
    base += [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")]
    system = ["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo", "/etc/ld.so.cache", "/etc/localtime"]
    paths: list[str] = []
    for path in sorted({*base, *system, *map(os.path.realpath, base + system)}):
        inside = any(path == other or path.startswith(other.rstrip("/") + "/") for other in paths)
        if path != "/" and os.path.exists(path) and not inside:
            paths.append(path)
    return paths


def enter_user_namespace() -> bool:
    """Enter a user namespace, in which an ordinary user can create namespaces of the other kinds.

    Returns whether such namespaces can be created now. Root enters none, because root can create them anyway.
    """
    if _LIBC is None or os.geteuid() == 0:
        return _LIBC is not None
    user, group = os.geteuid(), os.getegid()
    if _LIBC.unshare(_NEW_USER) != 0:
        return False
    maps = {"setgroups": "deny", "uid_map": f"{user} {user} 1", "gid_map": f"{group} {group} 1"}
    try:
        for name, text in maps.items():
            with open(f"/proc/self/{name}", "w", encoding="utf-8") as file:
                file.write(text)
    except OSError:
        return False
    return True


def enter_namespace(name: str) -> bool:
    """Enter a new namespace, `name` being "mount", "ipc", "pid" or "net". Returns whether that succeeded.

    A process namespace ("pid") does not hold this process, only the children that it starts afterwards.
    """
    return _LIBC is not None and _LIBC.unshare(_NAMESPACES[name]) == 0


def enter_own_files(folder: str, paths: list[str], size: int) -> bool:
    """Replace the root file system by one that holds `paths` read-only, a few devices, and an empty folder /work.

    The new root is mounted at `folder`. /work is in memory with at most `size` bytes, and becomes the current folder.
    Needs a mount namespace. No other files of the system are reachable afterwards.
    """
    if _LIBC is None:
        return False
    try:
        _mount(None, "/", None, _MS_REC | _MS_SLAVE)
        _mount("tmpfs", folder, "tmpfs", _MS_NOSUID | _MS_NODEV, "size=1m,mode=0755")
    except OSError:
        return False
    try:
        for path in paths:
            _show(path, folder + path)
        for path in _DEVICES:
            if os.path.exists(path):
                _show(path, folder + path)
        os.mkdir(folder + "/work")
        options = f"size={size},nr_inodes=4096,mode=0777"
        _mount("tmpfs", folder + "/work", "tmpfs", _MS_NOSUID | _MS_NODEV, options)
        _mount(None, folder, None, _MS_REMOUNT | _MS_BIND | _MS_READ_ONLY | _MS_NOSUID | _MS_NODEV)
        os.chdir(folder)
        if _LIBC.pivot_root(b".", b".") != 0:
            raise OSError(ctypes.get_errno(), "pivot_root")
    except (OSError, AttributeError):
        _LIBC.umount2(os.fsencode(folder), _DETACH)
        with contextlib.suppress(OSError):
            os.chdir(folder)
        return False
    _LIBC.umount2(b".", _DETACH)
    os.chdir("/work")
    return True


def drop_capabilities() -> None:
    """Drop all capabilities, also those in a user namespace, so that this process cannot regain them."""
    if _LIBC is None:
        return
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    header, nothing = struct.pack("=Ii", 0x20080522, 0), bytes(24)
    with contextlib.suppress(AttributeError):
        _LIBC.capset(header, nothing)


def restrict_files(readable: list[str], folder: str) -> int:
    """Use Landlock to let this process only read `readable` and a few devices, and read and write files in `folder`.

    `readable` is a list of paths. The process cannot execute files. Returns the version of Landlock, or 0 if the
    restriction is not in force. From version 6 on, Landlock also blocks signals, except to this process and its
    descendants.
    """
    version = _LIBC.syscall(444, None, ctypes.c_size_t(0), 1) if _LIBC is not None else 0
    if _LIBC is None or version < 1:
        return 0
    all_files = (1 << (13 + (version >= 2) + (version >= 3) + (version >= 5))) - 1
    read, write = 1 << 2 | 1 << 3, 1 << 1
    special = 1 << 0 | 1 << 6 | 1 << 9 | 1 << 11  # execute; make character devices, sockets, block devices
    handled = struct.pack("=QQQ", all_files, 3 if version >= 4 else 0, 3 if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    rules = _LIBC.syscall(444, handled, ctypes.c_size_t(size), 0)
    if rules < 0:
        return 0
    allowed = [(path, read) for path in readable]
    allowed += [(folder, all_files & ~special), *((path, 1 << 2) for path in _DEVICES), ("/dev/null", 1 << 2 | write)]
    for path, access in allowed:
        try:
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        access = access if os.path.isdir(path) else access & ~(1 << 3)
        _LIBC.syscall(445, rules, 1, struct.pack("=Qi", access, place), 0)
        os.close(place)
    done = _LIBC.syscall(446, rules, 0) == 0
    os.close(rules)
    return version if done else 0


# Numbers of system calls on x86-64 and on AArch64.
_CALLS = {
    "socket": (41, 198),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
}
_SIGNAL_CALLS = {
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
}
_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}


def restrict_calls(signals: bool) -> bool:
    """Block system calls with seccomp: sockets, inspection of other processes, namespaces, mounts and the like.

    With `signals`, calls that send signals are blocked too. Returns whether the filter is in force.
    """
    if _LIBC is None or platform.machine() not in _ARCHITECTURES or sys.maxsize < 1 << 32:
        return False
    audit, column = _ARCHITECTURES[platform.machine()]
    calls = {**_CALLS, **(_SIGNAL_CALLS if signals else {})}
    numbers = sorted(numbers[column] for numbers in calls.values())
    load, equal, at_least, answer = 0x20, 0x15, 0x35, 0x06
    refuse = 0x00050000 | errno.EPERM
    program = [(load, 0, 0, 4), (equal, 1, 0, audit), (answer, 0, 0, refuse), (load, 0, 0, 0)]
    # On x86-64, numbers from 1 << 30 on name the same calls in the x32 form.
    program += [(at_least, 0, 1, 1 << 30), (answer, 0, 0, refuse)]
    for number in numbers:
        program += [(equal, 0, 1, number), (answer, 0, 0, refuse)]
    program.append((answer, 0, 0, 0x7FFF0000))
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in program))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(program), ctypes.addressof(code)))
    return _prctl(_PR_SET_SECCOMP, 2, ctypes.addressof(header))


def _prctl(option: int, *arguments: int) -> bool:
    if _LIBC is None:
        return False
    values = [ctypes.c_ulong(value) for value in (*arguments, 0, 0, 0, 0)[:4]]
    return bool(_LIBC.prctl(option, *values) == 0)


def _show(source: str, place: str) -> None:
    """Bind-mount a file or folder of the system at the path `place`, read-only except for devices."""
    if os.path.isdir(source):
        os.makedirs(place, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(place), exist_ok=True)
        os.close(os.open(place, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
    _mount(os.path.realpath(source), place, None, _MS_BIND | _MS_REC)
    if not source.startswith("/dev/"):
        kept = os.statvfs(place).f_flag & _KEPT_FLAGS
        _mount(None, place, None, _MS_REMOUNT | _MS_BIND | _MS_READ_ONLY | _MS_NOSUID | _MS_NODEV | kept)


def _mount(source: str | None, place: str, kind: str | None, flags: int, options: str | None = None) -> None:
    assert _LIBC is not None
    texts = [None if text is None else os.fsencode(text) for text in (source, place, kind, options)]
    if _LIBC.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3]) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), place)
