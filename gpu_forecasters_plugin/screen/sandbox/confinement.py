"""What keeps a candidate's process from harming anything else. Two steps, one before and one after its fork."""

from __future__ import annotations

import glob
import os
import resource
from dataclasses import dataclass, field

from gpu_forecasters_plugin.screen.sandbox import linux

__all__ = ["PROTECTIONS", "Confinement", "SandboxLimits"]

_MIB = 1024 * 1024
PROTECTIONS = ("namespaces", "read-only files", "processes", "system calls")
"""Names of all protections that there are (see ``docs/screening.md``)."""

_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 1, 2, 4, 8


@dataclass(frozen=True)
class SandboxLimits:
    """What one candidate may use.

    Attributes:
        seconds: wall time.
        memory_mib: memory of all its processes together.
        processes: processes at once, its compilers included.
        scratch_mib: files in its scratch folder together, and the largest single one.
        answer_bytes: longest answer that is read from it.
    """

    seconds: float = 20.0
    memory_mib: int = 6144
    processes: int = 64
    scratch_mib: int = 512
    answer_bytes: int = 4 * _MIB


@dataclass
class Confinement:
    """The protections that hold, as far as this machine allows them."""

    limits: SandboxLimits
    scratch: str
    held: list[str] = field(default_factory=list)

    @property
    def has_namespaces(self) -> bool:
        """Whether the candidate sees no process but its own."""
        return "namespaces" in self.held

    def before_fork(self) -> None:
        """In the process that is to watch the candidate's."""
        linux.adopt_orphans()
        try:
            linux.new_namespaces()
        except OSError:
            return
        self.held.append("namespaces")
        try:
            linux.make_read_only()
            size = f"size={self.limits.scratch_mib}m,mode=700"
            for folder in (self.scratch, "/dev/shm"):
                if os.path.isdir(folder):
                    linux.mount("tmpfs", folder, size, _MS_NOSUID | _MS_NODEV)
        except OSError:
            return
        self.held.append("read-only files")

    def after_fork(self) -> None:
        """In the candidate's process, before any of its code runs."""
        if self.has_namespaces:
            self._hide_others()
        limit = resource.setrlimit
        data = self.limits.memory_mib * _MIB
        limit(resource.RLIMIT_DATA, (data, data))
        largest = self.limits.scratch_mib * _MIB
        limit(resource.RLIMIT_FSIZE, (largest, largest))
        limit(resource.RLIMIT_CORE, (0, 0))
        seconds = int(self.limits.seconds) + 5
        limit(resource.RLIMIT_CPU, (seconds, seconds))
        if self.has_namespaces:
            linux.drop_capabilities()
        linux.set_no_new_privileges()
        try:
            linux.forbid_calls(signals=not self.has_namespaces)
        except OSError:
            return
        self.held.append("system calls")

    def _hide_others(self) -> None:
        """The host's processes, and its GPUs: what is screened is to run without one."""
        try:
            linux.mount("proc", "/proc", "", _MS_RDONLY | _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
            self.held.append("processes")
            for device in glob.glob("/dev/nvidia*"):
                if not os.path.isdir(device):
                    linux.bind("/dev/null", device)
        except OSError:
            pass  # a container that hides parts of its own /proc
