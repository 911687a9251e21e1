"""One look at one kernel: a single forecast outside any run, and what a run would make of it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpu_forecasters_plugin.bins import BINS, N_BINS
from gpu_forecasters_plugin.candidate import MAX_SOURCE_CHARACTERS, Candidate, decode_source
from gpu_forecasters_plugin.config import DeferralConfig, ForecasterConfig, SurrogateConfig
from gpu_forecasters_plugin.device import detect_device
from gpu_forecasters_plugin.errors import ConfigError
from gpu_forecasters_plugin.forecast import FailureKind, Forecast, ForecastOutcome, Query
from gpu_forecasters_plugin.forecasters import ContainedForecaster, warm_start_tasks
from gpu_forecasters_plugin.forecasters.factory import build_forecaster
from gpu_forecasters_plugin.printable import printable
from gpu_forecasters_plugin.recorded.pool import recorded_references
from gpu_forecasters_plugin.screen.pool_screen import open_screen
from gpu_forecasters_plugin.screen.verdict import Verdict

__all__ = ["ADVICE", "Look", "look_at", "read_kernel"]

ADVICE = {
    FailureKind.TIMEOUT: "raise forecaster.deadline_s, ask for less (readout: logprobs, a smaller max_tokens), or find "
    "out what the endpoint is busy with",
    FailureKind.RATE_LIMITED: "wait, lower forecaster.concurrency, or raise the limit at the provider",
    FailureKind.UNREACHABLE: "check forecaster.base_url, that the server runs, and the API key's variable",
    FailureKind.REFUSED: "see what the endpoint says: a wrong key, base_url or model name, or a model that declines",
    FailureKind.TRUNCATED: "raise forecaster.max_tokens, or let the model think less",
    FailureKind.EMPTY: "the model, the file of recorded forecasts or the compiler has no answer for this kernel",
    FailureKind.INVALID: "the answer is no forecast: try another readout, or a model that follows a schema",
}
"""What to do about each kind of failure."""


@dataclass(frozen=True)
class Look:
    """A forecast of one kernel.

    Attributes:
        query: what was asked.
        outcome: what was answered.
        forecaster: name of the forecaster.
        model: the language model behind it; empty without one.
        prompt_hash: hash of its prompt templates and settings; empty without a prompt.
        basis: what the forecaster knows when no run has measured anything.
        deferral: when a forecast is not trusted.
        verdict: what the compiler said of the kernel; ``None`` where nobody asked it.
    """

    query: Query
    outcome: ForecastOutcome
    forecaster: str
    model: str
    prompt_hash: str
    basis: str
    deferral: DeferralConfig
    verdict: Verdict | None = None

    @property
    def confidence(self) -> float | None:
        """The confidence that the threshold is compared with; ``None`` without a forecast."""
        return (
            self.outcome.confidence(self.deferral.confidence) if isinstance(self.outcome, Forecast) else None
        )

    @property
    def deferred_because(self) -> str | None:
        """Why a run would let the GPU decide; ``None`` where it would trust the forecast."""
        threshold, confidence = self.deferral.threshold, self.confidence
        if self.outcome.suspicions:
            return f"the kernel is not to be trusted: {', '.join(self.outcome.suspicions)}"
        if confidence is None:
            return "there is no forecast"
        if threshold is not None and confidence < threshold:
            return f"its confidence {confidence:.2f} is below the threshold {threshold:g}"
        return None

    def summary(self) -> dict[str, Any]:
        """Everything about it, for JSON."""
        forecast = self.outcome if isinstance(self.outcome, Forecast) else None
        return {
            "task": self.query.task,
            "device": self.query.device,
            "forecaster": self.forecaster,
            "model": self.model or None,
            "prompt_hash": self.prompt_hash or None,
            "basis": self.basis,
            "bin_scheme": BINS.name,
            "bins": [
                {"bin": number, "name": BINS.labels[number - 1], "interval": BINS.describe(number)}
                for number in range(1, N_BINS + 1)
            ],
            **_belief(forecast),
            "confidence": self.confidence,
            "confidence_kind": self.deferral.confidence,
            "threshold": self.deferral.threshold,
            "deferred": self.deferred_because is not None,
            "deferred_because": self.deferred_because,
            "suspicions": list(self.outcome.suspicions),
            "screening": None if self.verdict is None else self._screening(self.verdict),
            "cost": asdict(self.outcome.cost),
            "failure": None if forecast else self._failure(),
        }

    @staticmethod
    def _screening(verdict: Verdict) -> dict[str, Any]:
        return {name: getattr(verdict, name) for name in ("status", "fault", "line", "message", "stopped")}

    def _failure(self) -> dict[str, str]:
        assert not isinstance(self.outcome, Forecast)
        return {
            "kind": str(self.outcome.kind),
            "detail": self.outcome.detail,
            "advice": ADVICE[self.outcome.kind],
        }


def _belief(forecast: Forecast | None) -> dict[str, Any]:
    if forecast is None:
        names = ("probabilities", "predicted_bin", "predicted_name", "expected_speedup", "expected_log2")
        risks = ("p_ok", "p_invalid", "p_incorrect")
        return dict.fromkeys((*names, *risks, "raw_sum", "covered_mass", "disagrees", "components"))
    return {
        "probabilities": list(forecast.probabilities),
        "predicted_bin": forecast.predicted_bin,
        "predicted_name": BINS.labels[forecast.predicted_bin - 1],
        "expected_speedup": 2 ** forecast.expected_log2(),
        "expected_log2": forecast.expected_log2(),
        "p_ok": forecast.p_ok,
        "p_invalid": forecast.p_invalid,
        "p_incorrect": forecast.p_incorrect,
        "raw_sum": forecast.raw_sum,
        "covered_mass": forecast.covered_mass,
        "disagrees": forecast.disagrees,
        "components": {name: list(values) for name, values in forecast.components.items()},
    }


def read_kernel(path: Path, what: str) -> Candidate:
    """A kernel's source from a file.

    Args:
        path: the file.
        what: what to call it in an error.

    Raises:
        ConfigError: the file cannot be read, or is no kernel at all.
    """
    try:
        with path.open("rb") as file:  # a device never ends; a few bytes beyond the limit say as much
            kernel = Candidate(what, decode_source(file.read(4 * MAX_SOURCE_CHARACTERS + 4)))
    except OSError as error:
        raise ConfigError(f"cannot read the {what} {path}: {error.strerror}") from None
    if kernel.problem is not None:
        raise ConfigError(f"{what} {path}: {kernel.problem}")
    return kernel


def look_at(reference: Candidate, candidate: Candidate, config: SurrogateConfig, task: str = "") -> Look:
    """Ask the configured forecaster about one kernel, as at the start of a run.

    Args:
        reference: the kernel that the bins are relative to.
        candidate: the kernel in question.
        config: the ``surrogate:`` section.
        task: what the kernels compute, where the configuration does not say; a warm start leaves it out.

    Raises:
        ConfigError, ForecasterError, MissingExtraError: the forecaster cannot be built.
    """
    task = config.task or task
    operation = recorded_references().get(reference.key, task)
    forecaster = build_forecaster(config.forecaster, seed=config.seed, operation=operation)
    device = detect_device(config.device).name
    verdicts = _compiled([reference, candidate], config, device)
    verdict = verdicts.get(candidate.key)
    profile = None if reference.key not in verdicts else verdicts[reference.key].profile
    query = Query(
        candidate.key,
        candidate.code,
        reference.code,
        reference.code,
        task=task,
        device=device,
        shapes=config.shapes or "",
        profile=None if verdict is None else verdict.profile,
        anchor_profile=profile,
        reference_profile=profile,
        screened=None if verdict is None else verdict.status.value,
    )
    try:
        (outcome,) = ContainedForecaster(forecaster).forecast([query])
    finally:
        forecaster.close()
    known = [_basis(member, operation) for member in config.forecaster.members()]
    return Look(
        query,
        outcome,
        forecaster.name,
        forecaster.model,
        forecaster.prompt_hash,
        printable("; ".join(filter(None, known))),
        config.deferral,
        verdict,
    )


def _compiled(kernels: Sequence[Candidate], config: SurrogateConfig, device: str) -> dict[str, Verdict]:
    """What the compiler says of each, by key, the reference first; nothing without a task file to run them dry by."""
    if config.screen.task_file is None:
        return {}
    with tempfile.TemporaryDirectory(prefix="gpu-forecasters-") as folder:
        screen = open_screen(
            config.screen,
            kernels[0],
            device=device,
            folder=Path(folder),
            disassemble=config.forecaster.sees_profiles,
        )
        if screen is None:
            return {}
        try:
            return screen.verdicts(kernels)
        finally:
            screen.close()


def _basis(config: ForecasterConfig, operation: str) -> str:
    """What a forecaster knows before anything was measured; of one made of others, nothing that is its own."""
    match config.kind:
        case "learned":
            count = len(warm_start_tasks(exclude_operation=operation)) if config.warm_start else 0
            start = (
                f"a warm start from {count} recorded tasks of other operations" if count else "no warm start"
            )
            return f"learned: {start}, and nothing measured yet"
        case "roofline":
            return "roofline: what the compiler made of both kernels, and nothing measured yet"
        case "climatology" | "random":
            return f"{config.kind}: nothing of the kernel's text"
        case "replay":
            return f"replay: forecasts recorded in {config.path}"
        case "openai_server":
            return f"{config.model} at {', '.join(config.base_url)}, read out by {config.readout}"
        case "vllm_local" | "transformers_local":
            adapter = "" if config.lora is None else f" with the adapter {config.lora}"
            return f"{config.model}{adapter} in this process, read out by {config.readout}"
        case "mixture" | "recalibrated":
            return ""
        case _:
            return f"{config.kind}: a plugin's forecaster"
