"""What sections of a page are made of. Texts are plain: the page escapes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_forecasters_plugin.report.texts import CodeLine

__all__ = ["Item", "Listing", "Picture", "Section", "Table"]


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        caption: what it shows.
        headings: of each column, and whether it holds numbers.
        rows: cells as text.
    """

    caption: str
    headings: Sequence[tuple[str, bool]]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Picture:
    """A picture.

    Attributes:
        svg: the element, as :func:`~gpu_forecasters_plugin.report.drawing.svg` makes it: no text of others in it.
        caption: what it shows.
        table: the numbers behind it.
    """

    svg: str
    caption: str
    table: Table


@dataclass(frozen=True)
class Listing:
    """Lines of a source or of a diff under a title."""

    title: str
    lines: Sequence[CodeLine]


@dataclass(frozen=True)
class Item:
    """A sentence, and a listing to unfold."""

    text: str
    listing: Listing


@dataclass(frozen=True)
class Section:
    """A part of the page, in the order in which it is shown.

    Attributes:
        id: what links lead to.
        title: heading.
        paragraphs: text.
        pictures: two stand side by side where there is room.
        tables: below them.
        listings: below these.
        groups: items under headings.
    """

    id: str
    title: str
    paragraphs: Sequence[str] = ()
    pictures: Sequence[Picture] = ()
    tables: Sequence[Table] = ()
    listings: Sequence[Listing] = ()
    groups: Sequence[tuple[str, Sequence[Item]]] = ()
