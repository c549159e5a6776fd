"""From a forked process to a jail: namespaces, a root, limits, an unprivileged user, filtered system calls."""

import ctypes
import os
import platform
import resource
import struct
import sys
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
NEW_MOUNTS, NEW_USER, NEW_PIDS, NEW_NETWORK, NEW_IPC, NEW_NAMES = (
    0x00020000,
    0x10000000,
    0x20000000,
    0x40000000,
    0x08000000,
    0x04000000,
)
READ_ONLY, NO_SUID, NO_DEVICES, REMOUNT, BIND, RECURSIVE, PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
NO_NEW_PRIVILEGES, SECCOMP_FILTER, CHILD_SUBREAPER, DEATH_SIGNAL = 38, 2, 36, 1
FORBIDDEN = {
    "x86_64": (
        0xC000003E,
        (101, 155, 161, 165, 166, 246, 248, 249, 250, 272, 298, 304, 308, 310, 311, 321, 323, 425, 428),
    ),
    "aarch64": (
        0xC00000B7,
        (39, 40, 41, 51, 97, 104, 117, 217, 218, 219, 241, 265, 268, 270, 271, 280, 282, 425, 428),
    ),
}
"""By machine: its audit architecture, and the numbers of ptrace, pivot_root, chroot, mount, umount, kexec, keys,
unshare, perf, open by handle, setns, other processes' memory, bpf, userfaultfd, io_uring and open_tree."""
VISIBLE = ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/alternatives")
DEVICES = ("null", "zero", "urandom")


def unshare(flags: int) -> None:
    """Leave the namespaces of the parent."""
    _call("unshare", LIBC.unshare(flags))


def map_user() -> None:
    """In a new user namespace of an ordinary user: be its root."""
    user, group = os.getuid(), os.getgid()
    unshare(NEW_USER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")


def new_root(root: str, size: int, work: str) -> None:
    """Make `root` the root of this mount namespace: system and interpreter read-only, /tmp in memory, nothing else.

    Args:
        root: an empty folder.
        size: bytes that /tmp may hold.
        work: folder in /tmp to begin in.
    """
    _mount(None, "/", None, RECURSIVE | PRIVATE)
    _mount("tmpfs", root, "tmpfs", NO_SUID | NO_DEVICES, "size=1m,mode=755")
    prefixes = dict.fromkeys((*VISIBLE, sys.base_prefix, sys.prefix, os.path.dirname(os.path.realpath(sys.executable))))
    for path in prefixes:
        if os.path.islink(path):
            os.makedirs(os.path.dirname(root + path), exist_ok=True)
            os.symlink(os.readlink(path), root + path)
        elif os.path.exists(path) and not os.path.lexists(root + path):
            _bind(path, root + path)
    os.makedirs(f"{root}/dev")
    for name in DEVICES:
        Path(f"{root}/dev/{name}").touch()
        _mount(f"/dev/{name}", f"{root}/dev/{name}", None, BIND)
    os.makedirs(f"{root}/proc")
    _mount("proc", f"{root}/proc", "proc", NO_SUID | NO_DEVICES)
    os.makedirs(f"{root}/tmp")
    _mount("tmpfs", f"{root}/tmp", "tmpfs", NO_SUID | NO_DEVICES, f"size={size},mode=777")
    os.makedirs(f"{root}/old")
    pivot = {"x86_64": 155, "aarch64": 41}[platform.machine()]
    _call("pivot_root", LIBC.syscall(pivot, root.encode(), f"{root}/old".encode()))
    os.chdir("/")
    _call("umount", LIBC.umount2(b"/old", 2))
    os.rmdir("/old")
    _mount(None, "/", None, REMOUNT | READ_ONLY | NO_SUID | NO_DEVICES)
    os.makedirs(work, exist_ok=True)
    os.chmod(work, 0o777)
    os.chdir(work)


def limit(*, seconds: int, memory: int, processes: int, file: int, files: int) -> None:
    """Set the limits of this process and what it starts.

    Args:
        seconds: of processor time for each process.
        memory: bytes of address space for each process.
        processes: of the user.
        file: bytes of a file.
        files: open at once.
    """
    for kind, value in (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_NPROC, processes),
        (resource.RLIMIT_FSIZE, file),
        (resource.RLIMIT_NOFILE, files),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (value, value))


def drop(user: int) -> None:
    """Become another user for good, without groups, and never gain privileges again.

    Args:
        user: number of user and group; the process must be root's.
    """
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    no_new_privileges()


def no_new_privileges() -> None:
    """Never gain privileges again, by whatever file is executed."""
    _call("prctl", LIBC.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0))


def filter_calls() -> bool:
    """Refuse system calls that a program has no use for; False where the machine is unknown."""
    known = FORBIDDEN.get(platform.machine())
    if known is None:
        return False
    architecture, numbers = known
    load, equal, at_least, answer = 0x20, 0x15, 0x35, 0x06
    tests = [(at_least, 0x40000000), *((equal, number) for number in numbers)]  # the first: another numbering
    code = [(load, 0, 0, 4), (equal, 0, len(tests) + 2, architecture), (load, 0, 0, 0)]
    code += [(test, len(tests) - i, 0, value) for i, (test, value) in enumerate(tests)]
    code += [(answer, 0, 0, 0x7FFF0000), (answer, 0, 0, 0x00050001)]  # allowed; else: not permitted
    raw = b"".join(struct.pack("HBBI", *line) for line in code)
    program = ctypes.create_string_buffer(raw)

    class Filter(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))

    whole = Filter(len(code), ctypes.cast(program, ctypes.c_void_p))
    return LIBC.prctl(22, SECCOMP_FILTER, ctypes.byref(whole), 0, 0) == 0


def die_with_parent() -> None:
    """Be killed when the parent ends; a change of user forgets it."""
    _call("prctl", LIBC.prctl(DEATH_SIGNAL, 9, 0, 0, 0))


def adopt_orphans() -> None:
    """Become the parent of descendants whose parents end."""
    _call("prctl", LIBC.prctl(CHILD_SUBREAPER, 1, 0, 0, 0))


def _bind(source: str, target: str) -> None:
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        Path(target).touch()
    _mount(source, target, None, BIND | RECURSIVE)
    _mount(None, target, None, REMOUNT | BIND | READ_ONLY | NO_SUID)


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    raw = [None if text is None else text.encode() for text in (source, target, kind, data)]
    _call(f"mount {target}", LIBC.mount(raw[0], raw[1], raw[2], ctypes.c_ulong(flags), raw[3]))


def _call(what: str, result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
