"""Pictures as part of a page: inline SVG whose text is text and whose colours are the page's own.

Matplotlib draws with the colours of the light theme; each is replaced by the style sheet's variable of the same
meaning, so that one picture is right in light, in dark and in print.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["GRID", "INK", "MUTED", "SERIES", "figure", "svg"]

INK, MUTED, GRID = "#1b1b1d", "#5c5c63", "#d8d8de"
SERIES = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#8c8c94", "#f0e442")
"""Okabe and Ito's palette, which colour-blind people can tell apart, with a grey for its black."""

_VARIABLES = {INK: "ink", MUTED: "muted", GRID: "grid"} | {
    colour: f"series-{number}" for number, colour in enumerate(SERIES, start=1)
}
_WIDTH_IN = 5.2
"""Drawn at the width of a phone, so that its text can be read there; larger screens enlarge it."""

_COLOUR = re.compile("|".join(_VARIABLES))
_IDENTIFIER = re.compile(r'(\bid="|href="#|url\(#)')
_HEAD = re.compile(r"<svg\b[^>]*?viewBox=\"([^\"]*)\"[^>]*>", re.DOTALL)
_METADATA = re.compile(r"<metadata>.*?</metadata>", re.DOTALL)
_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "report",
    "font.size": 11.5,
    "axes.titlesize": 11.5,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "text.color": INK,
    "text.parse_math": False,
    "legend.frameon": False,
    "legend.fontsize": 10.5,
    "legend.labelcolor": INK,
}


@contextmanager
def figure(height_in: float, *, panels: int = 1, **more: Any) -> Iterator[tuple[Figure, list[Axes]]]:
    """An empty picture in the page's style, to draw on within the block.

    Args:
        height_in: its height in inches; it is as wide as all others.
        panels: how many axes stand on top of each other.
        more: for :meth:`matplotlib.figure.Figure.subplots`.
    """
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.rc_context(cast(Any, _STYLE)):
        made = Figure(figsize=(_WIDTH_IN, height_in), layout="constrained")
        FigureCanvasSVG(made)
        axes = made.subplots(panels, squeeze=False, **more)
        yield made, list(axes[:, 0])


def svg(picture: Figure, name: str, description: str) -> str:
    """The picture as an SVG element.

    Args:
        picture: drawn within :func:`figure`.
        name: unique on the page; a letter first, then letters, digits and ``-``.
        description: what it shows, for those who cannot see it; plain text of ours.
    """
    import matplotlib

    image = io.StringIO()
    with matplotlib.rc_context(cast(Any, _STYLE)), warnings.catch_warnings():
        # A name in a script that the font lacks is drawn by the browser's fonts.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        picture.savefig(image, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = image.getvalue()
    text = _METADATA.sub("", text[text.index("<svg") :])
    text = _IDENTIFIER.sub(rf"\g<1>{name}-", text)
    text = _COLOUR.sub(lambda match: f"var(--{_VARIABLES[match.group()]})", text)
    head = f'<svg viewBox="\\1" role="img" aria-label="{description}" xmlns:xlink="http://www.w3.org/1999/xlink">'
    return _HEAD.sub(head, text, count=1)
