"""Whether the configured forecaster can be built, and answers; and what is known of its hardware."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from gpu_forecasters_plugin.bins import BINS
from gpu_forecasters_plugin.config import ForecasterConfig, SurrogateConfig
from gpu_forecasters_plugin.device import UNKNOWN_DEVICE, detect_device
from gpu_forecasters_plugin.doctor._base import CheckResult, Status
from gpu_forecasters_plugin.doctor.samples import SAMPLE_TASK, sample_kernels
from gpu_forecasters_plugin.errors import ConfigError, ForecasterError, MissingExtraError
from gpu_forecasters_plugin.forecast import FailureKind, ForecastFailure
from gpu_forecasters_plugin.forecasters.language_model.adapter_card import adapter_differences
from gpu_forecasters_plugin.forecasters.language_model.hardware import hardware_facts
from gpu_forecasters_plugin.forecasters.language_model.prompting import PromptWriter
from gpu_forecasters_plugin.hub import is_hub_name
from gpu_forecasters_plugin.look import ADVICE, look_at

__all__ = ["LOCAL_PACKAGES", "check_forecaster", "check_hardware", "check_local_model"]

LOCAL_PACKAGES = {"vllm_local": ("vllm", "vllm"), "transformers_local": ("transformers", "train")}
"""What a language model in this process needs, and the extra that brings it."""


def check_hardware(config: SurrogateConfig) -> CheckResult:
    """Whether a prompt can say more of the GPU than its name."""
    name, device = "hardware facts", detect_device(config.device).name
    facts = hardware_facts(device)
    if device == UNKNOWN_DEVICE:
        advice = "write the usual name of the GPU that measures: surrogate.device: H100"
        return CheckResult(name, Status.WARN, "prompts say nothing of the hardware: no GPU is known", advice)
    if facts is None:
        advice = "prompts hold the name alone; where it is a known GPU, write its usual name: surrogate.device: H100"
        return CheckResult(name, Status.WARN, f"nothing is known of {device!r}", advice)
    seen = f"{facts.name}: {facts.multiprocessors} multiprocessors, {facts.memory_gb} GB {facts.memory_type}"
    return CheckResult(name, Status.OK, seen)


def check_local_model(settings: ForecasterConfig) -> CheckResult:
    """Whether there is something to load; loading it takes minutes and is left to a run."""
    name = "local model"
    package, extra = LOCAL_PACKAGES[settings.kind]
    if find_spec(package) is None:
        advice = f"pip install 'gpu-forecasters-plugin[{extra}]'"
        return CheckResult(name, Status.FAIL, f"{package} is not installed", advice)
    lora = settings.lora
    here = lora is not None and not is_hub_name(lora, Path())
    if lora is not None and here and not (Path(lora) / "adapter_config.json").exists():
        return CheckResult(name, Status.FAIL, f"no LoRA adapter in {lora}", "set forecaster.lora")
    differences = adapter_differences(settings, PromptWriter.from_settings(settings).hash)
    if differences:
        return CheckResult(name, Status.WARN, differences[0], "ask the adapter as it was trained")
    if Path(settings.model or "").is_dir():
        return CheckResult(name, Status.OK, f"{settings.model}, a folder; it is loaded when a run starts")
    return CheckResult(name, Status.OK, f"{settings.model}, found or fetched when a run starts")


def _silent_on_samples(config: SurrogateConfig) -> str:
    """Why a forecaster that has no answer for a sample kernel may have some in a run; empty where it would not."""
    if config.forecaster.kind == "replay":
        return "the recorded forecasts can be read; the sample kernel is not among them"
    if config.screen.policy != "off" and any(m.kind == "roofline" for m in config.forecaster.members()):
        return "roofline goes by the compiler's profiles of this task's kernels; the sample kernel is none of them"
    return ""


def check_forecaster(config: SurrogateConfig) -> CheckResult:
    """One whole forecast of a recorded kernel, as a run would ask for it."""
    name = "forecaster"
    try:
        look = look_at(*sample_kernels(), config.model_copy(update={"task": SAMPLE_TASK}))
    except (ConfigError, ForecasterError, MissingExtraError) as error:
        return CheckResult(name, Status.FAIL, str(error), "mend surrogate.forecaster")
    if isinstance(look.outcome, ForecastFailure):
        if look.outcome.kind is FailureKind.EMPTY and (seen := _silent_on_samples(config)):
            return CheckResult(name, Status.OK, seen)
        seen = f"{look.forecaster} has no forecast, {look.outcome.kind}: {look.outcome.detail}"
        return CheckResult(name, Status.FAIL, seen, ADVICE[look.outcome.kind])
    forecast = look.outcome
    seen = (
        f"{look.forecaster} forecasts a sample kernel: {BINS.labels[forecast.predicted_bin - 1]}, "
        f"confidence {look.confidence:.2f}, {forecast.cost.seconds:.2f} s"
    )
    return CheckResult(name, Status.OK, seen)
