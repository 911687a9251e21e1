"""One self-contained page: no script, no network, and whatever kernels say, inert in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_forecasters_plugin._version import __version__
from gpu_forecasters_plugin.report.parts import Section
from gpu_forecasters_plugin.report.texts import on_one_line

__all__ = ["Page", "render"]

_TEMPLATES = Path(__file__).with_name("templates")


@dataclass(frozen=True)
class Page:
    """What a page says.

    Attributes:
        title: heading and name of the page.
        about: what it is of.
        verdict: what came of it, in one sentence.
        notes: what to bear in mind with it.
        figures: the most important numbers, by name.
        sections: all the rest.
        data: the same for programs: plain values.
    """

    title: str
    about: str
    verdict: str
    notes: Sequence[str]
    figures: Sequence[tuple[str, str]]
    sections: Sequence[Section]
    data: Mapping[str, Any]


def render(page: Page) -> str:
    """The page as HTML; the same page gives the same text."""
    import jinja2
    import markupsafe

    def shown(value: Any) -> Any:
        """Every value that a template prints, on its way to the escaping of HTML."""
        return on_one_line(value) if isinstance(value, str) and not hasattr(value, "__html__") else value

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        finalize=shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"sort_keys": True, "allow_nan": False}
    style = (_TEMPLATES / "page.css").read_text(encoding="utf-8")
    return environment.get_template("page.html.jinja").render(
        **{
            name: getattr(page, name)
            for name in ("title", "about", "verdict", "notes", "figures", "sections")
        },
        data=_bounded(page.data),
        style=markupsafe.Markup(style),  # ours: no text of others is in it
        version=__version__,
    )


def _bounded(value: Any) -> Any:
    """The same values, with their texts as short as on the page."""
    if isinstance(value, Mapping):
        return {on_one_line(str(key)): _bounded(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_bounded(inner) for inner in value]
    return on_one_line(value) if isinstance(value, str) else value
