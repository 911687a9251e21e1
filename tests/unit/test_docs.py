"""What README and the pages under docs/ say of links, settings, commands and files is so."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from gpu_forecasters_plugin.cli.app import app
from gpu_forecasters_plugin.config import SurrogateConfig, parse_surrogate_config
from gpu_forecasters_plugin.forecasters.language_model.settings import LanguageModelSettings
from gpu_forecasters_plugin.training.settings import parse_training_settings

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*/README.md")])
PARSERS = {"surrogate": parse_surrogate_config, "training": parse_training_settings}
PASSES_ON = ("openevolve", "shinka")
"""Commands that take a host's own options too."""


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


pages = pytest.mark.parametrize("page", PAGES, ids=name_of)


def prose(page: Path) -> str:
    """A page without its code."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"^(?: {4}|\t).*$", "", text, flags=re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The fragments that its headings make, as GitHub does."""
    headings = re.findall(r"^#+ (.+)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def command_lines(page: Path) -> Iterator[list[str]]:
    """The arguments of each ``gpu-forecasters`` that a code block shows."""
    joined = re.sub(r"\\\n\s*", "", page.read_text())
    for line in re.findall(r"^(?: {4}|\$ )gpu-forecasters (.+)$", joined, flags=re.MULTILINE):
        yield line.partition("  #")[0].split()


def leaves(value: Any, path: str = "") -> Iterator[str]:
    """The dotted names of all settings in nested mappings."""
    if not isinstance(value, dict) or not value:
        yield path
        return
    for key, entry in value.items():
        yield from leaves(entry, f"{path}.{key}" if path else key)


@pages
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", prose(page)):
        path, _, anchor = target.partition("#")
        linked = page.parent / path if path else page
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), target


@pages
def test_files_and_make_targets_that_it_names_exist(page: Path) -> None:
    named = re.findall(r"`((?:docs|examples|benchmarks|tests|\.ci)/[\w./-]+)`", prose(page))
    assert [path for path in named if not (ROOT / path).exists()] == []
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert set(re.findall(r"(?:`| {4})make ([\w-]+)", page.read_text())) <= set(targets)


@pages
def test_commands_that_it_shows_exist_with_their_options(page: Path) -> None:
    for words in command_lines(page):
        command: Any = get_command(app)
        while words and hasattr(command, "commands"):
            name = words.pop(0)
            assert name in command.commands, name
            command = command.commands[name]
        known = {option for parameter in command.params for option in parameter.opts}
        options = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert command.name in PASSES_ON or options <= known, options - known


# The settings of plugins.md are those of a plugin: see test_plugin_guide.py.
@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "plugins.md"], ids=name_of)
def test_settings_that_it_shows_are_accepted(page: Path) -> None:
    for block in re.findall(r"^```yaml\n(.*?)^```$", page.read_text(), flags=re.DOTALL | re.MULTILINE):
        ((section, settings),) = yaml.safe_load(block).items()
        PARSERS[section](settings)


def test_the_page_of_all_settings_has_all_of_them_with_their_defaults() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    shown = yaml.safe_load(text.split("```yaml\n")[1].split("```")[0])["surrogate"]
    assert parse_surrogate_config(shown) == SurrogateConfig()
    elsewhere = {f"forecaster.{name}" for name in LanguageModelSettings.model_fields}
    elsewhere |= {f"forecaster.{name}" for name in ("experts", "forecaster", "weights", "path", "options")}
    known = set(leaves(SurrogateConfig().model_dump(mode="json")))
    assert {name for name in known if not name.startswith(tuple(elsewhere))} == {
        name for name in leaves(shown) if not name.startswith(tuple(elsewhere))
    }


def test_the_language_models_page_has_all_settings_of_language_models() -> None:
    text = (ROOT / "docs" / "language-model.md").read_text()
    assert [name for name in LanguageModelSettings.model_fields if f"`{name}`" not in text] == []
