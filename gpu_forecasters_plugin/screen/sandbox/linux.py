"""The few system calls that Python has no name for, and what is made of them."""

from __future__ import annotations

import ctypes
import os
import platform
from contextlib import suppress

import psutil

__all__ = [
    "adopt_orphans",
    "bind",
    "die_with_parent",
    "drop_capabilities",
    "end_descendants",
    "forbid_calls",
    "make_read_only",
    "mount",
    "new_namespaces",
    "prctl",
    "set_no_new_privileges",
]

_libc = ctypes.CDLL(None, use_errno=True)

_NEW_MOUNTS, _NEW_UTS, _NEW_IPC = 0x00020000, 0x04000000, 0x08000000
_NEW_USER, _NEW_PIDS, _NEW_NETWORK = 0x10000000, 0x20000000, 0x40000000
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000
_MOUNT_ATTR_RDONLY, _AT_RECURSIVE, _AT_FDCWD = 0x1, 0x8000, -100
_MOUNT_SETATTR = 442
_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 24, 22, 38
_PR_SET_CHILD_SUBREAPER = 36
_CAPABILITY_VERSION_3 = 0x20080522
_SECCOMP_MODE_FILTER = 2


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def prctl(option: int, value: int = 0) -> None:
    """Set an attribute of this process, with one argument."""
    _check(_libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0), f"prctl {option}")


def die_with_parent(number: int) -> None:
    """Have this process sent a signal when its parent ends."""
    prctl(_PR_SET_PDEATHSIG, number)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_descendants() -> None:
    """Kill all that this process has started, adopted orphans too; returns when they are gone and waited for."""
    while children := psutil.Process().children(recursive=True):
        for process in children:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def set_no_new_privileges() -> None:
    """No program that is started from here on gains rights from its file."""
    prctl(_PR_SET_NO_NEW_PRIVS, 1)


def new_namespaces() -> None:
    """Leave the host's users, mounts, processes to come, network, System V objects and host name behind.

    Raises:
        OSError: it is not allowed here, as in many containers; nothing has changed.
    """
    user, group = os.geteuid(), os.getegid()
    wanted = _NEW_USER | _NEW_MOUNTS | _NEW_PIDS | _NEW_NETWORK | _NEW_IPC | _NEW_UTS
    _check(_libc.unshare(wanted), "unshare")
    for name, content in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(content)
    _check(_libc.mount(None, b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None), "private mounts")


def mount(kind: str, target: str, options: str = "", flags: int = 0) -> None:
    """Mount a file system that needs no device."""
    arguments = (kind.encode(), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), options.encode())
    _check(_libc.mount(*arguments), f"mount {kind} on {target}")


class _MountAttributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd")]


def make_read_only() -> None:
    """Make every mount of this namespace read-only.

    Raises:
        OSError: the kernel is older than 5.12, or does not allow it.
    """
    attributes = _MountAttributes(_MOUNT_ATTR_RDONLY, 0, 0, 0)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    _check(
        _libc.syscall(
            ctypes.c_long(_MOUNT_SETATTR),
            ctypes.c_int(_AT_FDCWD),
            b"/",
            ctypes.c_uint(_AT_RECURSIVE),
            ctypes.byref(attributes),
            size,
        ),
        "mount_setattr",
    )


class _CapabilityHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


def drop_capabilities() -> None:
    """Give up every capability, for this process and all that it starts."""
    for number in range(64):
        if _libc.prctl(_PR_CAPBSET_DROP, ctypes.c_ulong(number), 0, 0, 0) != 0:
            break  # past the last capability, or not allowed to: then there is none to drop
    header = _CapabilityHeader(_CAPABILITY_VERSION_3, 0)
    nothing = (ctypes.c_uint32 * 6)()
    _check(_libc.capset(ctypes.byref(header), ctypes.byref(nothing)), "capset")


# Numbers of <asm/unistd.h>: (x86-64, arm64). None where the architecture has no such call.
_FORBIDDEN: dict[str, tuple[int | None, int | None]] = {
    # Ways out: the network and sockets of others by their path, whatever their namespace.
    "connect": (42, 203),
    # Other processes.
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    # The file system's shape, and namespaces in which one could change it.
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "mount_setattr": (442, 442),
    # Parts of the kernel that a compiler has no use for, and that had holes.
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "kexec_load": (246, 104),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "swapon": (167, 224),
    "reboot": (169, 142),
}
_SIGNALS: dict[str, tuple[int, int]] = {
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "pidfd_send_signal": (424, 424),
}
_AUDIT = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
_ALLOW, _ERRNO, _EPERM = 0x7FFF0000, 0x00050000, 1
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_FOREIGN_ABI = 0x40000000


class _Instruction(ctypes.Structure):
    _fields_ = [
        ("code", ctypes.c_uint16),
        ("jt", ctypes.c_uint8),
        ("jf", ctypes.c_uint8),
        ("k", ctypes.c_uint32),
    ]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint16), ("filter", ctypes.POINTER(_Instruction))]


def forbid_calls(*, signals: bool) -> None:
    """Have system calls that a compiler does not need fail with EPERM, here and in all that is started from here.

    Args:
        signals: forbid signals to processes too; needed where there is no namespace of processes.

    Raises:
        OSError: the kernel has no seccomp filters, or the processor's calls are not known here.
    """
    if platform.machine() not in _AUDIT:
        raise OSError(f"no list of system calls for {platform.machine()}")
    audit, column = _AUDIT[platform.machine()]
    table = {**_FORBIDDEN, **(_SIGNALS if signals else {})}
    numbers = [number for pair in table.values() if (number := pair[column]) is not None]
    refuse = len(numbers) + 1  # instructions from the first comparison to the refusal
    code = [
        _Instruction(_LOAD, 0, 0, 4),
        _Instruction(_EQUAL, 0, refuse + 1, audit),
        _Instruction(_LOAD, 0, 0, 0),
        _Instruction(_AT_LEAST, refuse - 1, 0, _FOREIGN_ABI),
    ]
    code += [_Instruction(_EQUAL, len(numbers) - place, 0, number) for place, number in enumerate(numbers)]
    code += [_Instruction(_RETURN, 0, 0, _ALLOW), _Instruction(_RETURN, 0, 0, _ERRNO | _EPERM)]
    block = (_Instruction * len(code))(*code)
    program = _Program(len(code), block)
    arguments = (ctypes.c_ulong(_SECCOMP_MODE_FILTER), ctypes.byref(program), 0, 0)
    _check(_libc.prctl(_PR_SET_SECCOMP, *arguments), "seccomp")


def bind(source: str, target: str) -> None:
    """Put one file in the place of another."""
    arguments = (os.fsencode(source), os.fsencode(target), None, ctypes.c_ulong(_MS_BIND), None)
    _check(_libc.mount(*arguments), f"bind {source} on {target}")
