"""Check of the screen: what compiles here, how well it is confined, and whether the evaluator can be run dry."""

from __future__ import annotations

from pathlib import Path

from gpu_forecasters_plugin.config import SurrogateConfig
from gpu_forecasters_plugin.device import detect_device
from gpu_forecasters_plugin.doctor._base import CheckResult, Status
from gpu_forecasters_plugin.errors import GpuForecastersError
from gpu_forecasters_plugin.screen.architectures import ARCHITECTURES, architecture, architecture_of_device
from gpu_forecasters_plugin.screen.cache import compiler_versions
from gpu_forecasters_plugin.screen.jobs import ScreenJob
from gpu_forecasters_plugin.screen.verdict import Status as Verdicts
from gpu_forecasters_plugin.screen.workshop import Workshop

__all__ = ["check_screen"]

_NAME = "screen"
_USUAL = ("initial_program.py", "evaluator.py")
_WANTED = ("namespaces", "read-only files", "system calls")


def check_screen(config: SurrogateConfig, path: Path | None, deadline_s: float) -> CheckResult:
    """Whether candidates can be screened, by running the initial program dry where it lies beside the configuration.

    Args:
        config: the ``surrogate:`` section.
        path: the file that it is from.
        deadline_s: how long to wait for a verdict, in seconds.
    """
    screen = config.screen
    device = detect_device(config.device).name
    arch = architecture_of_device(device) if screen.arch == "auto" else architecture(screen.arch)
    if arch is None:
        advice = f"write surrogate.screen.arch, one of {', '.join(ARCHITECTURES)}"
        return CheckResult(_NAME, Status.FAIL, f"the architecture of {device!r} is not known", advice)
    program, evaluator = (None if path is None else path.absolute().parent / name for name in _USUAL)
    caller = Path(screen.task_file) if screen.task_file is not None else evaluator
    if program is None or caller is None or not (program.is_file() and caller.is_file()):
        advice = (
            "gpu-forecasters profile PROGRAM --evaluator EVALUATOR --out DIR tells whether it can be run dry"
        )
        seen = f"no {' and '.join(_USUAL)} beside the configuration to try it with"
        return CheckResult(_NAME, Status.SKIPPED, seen, advice)
    job = ScreenJob(
        program.read_text("utf-8", "surrogateescape"),
        arch.name,
        evaluator=None if screen.task_file is not None else str(caller),
        task_file=screen.task_file,
        device=device,
        seconds=deadline_s,
        memory_mib=screen.memory_mib,
    )
    return _tried(job)


def _tried(job: ScreenJob) -> CheckResult:
    workshop = Workshop()
    try:
        verdict = workshop.screen(job)
    except GpuForecastersError as error:
        return CheckResult(_NAME, Status.FAIL, str(error), "or set surrogate.screen.policy: off")
    finally:
        workshop.close()
    if verdict.status is not Verdicts.VALID:
        advice = "give surrogate.screen.task_file a file with make_inputs() and ENTRY_POINT"
        seen = (
            f"the initial program cannot be run dry, so everything would be undecided: {verdict.headline()}"
        )
        return CheckResult(_NAME, Status.WARN, seen, advice)
    versions = ", ".join(
        f"{name} {version.partition('@')[0]}" for name, version in compiler_versions().items()
    )
    seen = f"the initial program is {verdict.headline()} for {job.arch} ({versions}); {verdict.seconds:.1f} s"
    missing = [name for name in _WANTED if name not in verdict.sandbox]
    if missing:
        advice = "allow user namespaces, or screen only what you would run here anyway (docs/screening.md)"
        return CheckResult(_NAME, Status.WARN, f"{seen}; not confined by: {', '.join(missing)}", advice)
    return CheckResult(_NAME, Status.OK, f"{seen}; confined by: {', '.join(verdict.sandbox)}")
