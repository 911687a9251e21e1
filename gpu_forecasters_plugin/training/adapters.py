"""The folder of a trained adapter: PEFT's two files, and ``forecaster.json``, which says how to ask it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_forecasters_plugin.errors import ConfigError
from gpu_forecasters_plugin.files import write_json
from gpu_forecasters_plugin.forecasters.language_model.adapter_card import CARD_FILE
from gpu_forecasters_plugin.training.base_model import BaseModel
from gpu_forecasters_plugin.training.loop import saving_explained

__all__ = ["adapter_identity", "check_prompts", "point_to", "save_adapter"]

_WEIGHTS = "adapter_model.safetensors"


def save_adapter(base: BaseModel, folder: Path, card: Mapping[str, Any]) -> None:
    """Write an adapter, whole or not at all; one that was there before is replaced.

    Args:
        base: the trained model.
        folder: where vLLM's ``--lora-modules``, ``vllm_local`` and PEFT find it.
        card: what ``forecaster.json`` says.

    Raises:
        OutputError: it cannot be written.
    """
    unfinished = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        with saving_explained(folder.parent):
            base.model.save_pretrained(unfinished)
            write_json(unfinished / CARD_FILE, card)
            shutil.rmtree(folder, ignore_errors=True)
            os.replace(unfinished, folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def adapter_identity(folder: Path) -> str:
    """Hash of an adapter's weights, 32 hexadecimal digits.

    Raises:
        ConfigError: there are none.
    """
    try:
        return hashlib.sha256((folder / _WEIGHTS).read_bytes()).hexdigest()[:32]
    except OSError as error:
        raise ConfigError(f"adapter: {folder / _WEIGHTS} cannot be read: {error.strerror}") from None


def check_prompts(folder: Path, prompt_hashes: Mapping[str, str], max_kernel_tokens: int) -> None:
    """Make sure that an adapter was trained on the prompts that it is to be trained on; other tools' pass.

    Raises:
        ConfigError: it was not.
    """
    file = folder / CARD_FILE
    if not file.exists():
        return
    try:
        card = json.loads(file.read_text(encoding="utf-8"))
        known, tokens = dict(card["prompt_hashes"]), int(card["max_kernel_tokens"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"adapter: {file} cannot be read: {type(error).__name__}: {error}") from None
    if tokens != max_kernel_tokens:
        raise ConfigError(
            f"adapter: {folder} was trained with max_kernel_tokens {tokens}, not {max_kernel_tokens}: set it to that"
        )
    differing = [name for name, value in prompt_hashes.items() if known.get(name, value) != value]
    if differing:
        raise ConfigError(
            f"adapter: {folder} was trained on other prompts ({differing[0]}), those of another version: begin anew"
        )


def point_to(link: Path, folder: Path) -> None:
    """Let a symbolic link name another folder, from one moment to the next."""
    unfinished = link.with_name(f".{link.name}.{os.getpid()}")
    unfinished.unlink(missing_ok=True)
    unfinished.symlink_to(folder.absolute(), target_is_directory=True)
    os.replace(unfinished, link)
