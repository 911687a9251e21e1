"""Figures as files."""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["png_bytes"]


def png_bytes(figure: Figure) -> bytes:
    """A figure as PNG, at 150 dots per inch."""
    image = io.BytesIO()
    with warnings.catch_warnings():
        # A name in a script that the font lacks is drawn as boxes, which says enough.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(image, dpi=150, format="png")
    return image.getvalue()
