"""Whether a trained adapter is asked as it was trained: the same prompts, and as much of each kernel in them.

An adapter asked otherwise answers all the same, only worse; so this is a warning and no error.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

from gpu_forecasters_plugin.forecasters.language_model.settings import LanguageModelSettings
from gpu_forecasters_plugin.printable import printable

__all__ = ["CARD_FILE", "adapter_differences", "warn_of_adapter"]

logger = logging.getLogger(__name__)

CARD_FILE = "forecaster.json"
"""Beside an adapter's weights: how to ask it, as ``gpu-forecasters train`` writes it."""


def adapter_differences(settings: LanguageModelSettings, prompts: str) -> list[str]:
    """How the settings differ from what the adapter was trained with, a line each; adapters of other tools say nothing.

    Args:
        settings: name the adapter's folder, if there is one.
        prompts: identity of the prompts that are written by these settings.
    """
    file = Path(settings.lora or "") / CARD_FILE
    if settings.lora is None or not file.is_file():
        return []
    try:
        card = json.loads(file.read_text(encoding="utf-8"))
        tokens = int(card["max_kernel_tokens"])
        hashes = {str(name): value for name, value in dict(card["prompt_hashes"]).items()}
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        return [f"{file} cannot be read ({type(error).__name__}): how the adapter was trained is not known"]
    if tokens != settings.max_kernel_tokens:
        # The prompts' identity depends on this as well: it would say the same twice.
        return [
            f"the adapter {settings.lora} was trained with max_kernel_tokens {tokens}, and is asked with "
            f"{settings.max_kernel_tokens}: set max_kernel_tokens: {tokens}"
        ]
    if settings.readout not in hashes:
        known = printable(", ".join(sorted(hashes)))
        return [
            f"the adapter {settings.lora} was trained for the readout {known}, not for {settings.readout}"
        ]
    if hashes[settings.readout] != prompts:
        return [
            f"the adapter {settings.lora} was trained on prompts of another form: other settings of the prompt, such "
            "as reasoning or static_profile, or another version of this package"
        ]
    return []


def warn_of_adapter(settings: LanguageModelSettings, prompts: str) -> None:
    """Say how the adapter is asked otherwise than it was trained."""
    for line in adapter_differences(settings, prompts):
        logger.warning("%s", line)
