"""Tables that fit: where a terminal is too narrow for all columns, the least important ones go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich.console import RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

GAP = 2
LEAST_BAR, MOST_BAR = 8, 28
LEAST_NAME = 9
"""What is left of the first column, whose texts may be cut, before another column goes."""
ALWAYS = 99


class Column(NamedTuple):
    """A column and its cells: texts, or shares (from 0 to 1) that are drawn as bars."""

    heading: str
    cells: Sequence[Text | float | None]
    rank: int = ALWAYS
    """The least goes first."""
    is_number: bool = True

    @property
    def is_bar(self) -> bool:
        """Tell whether it is drawn."""
        return not self.heading

    @property
    def width(self) -> int:
        """Return what it needs."""
        if self.is_bar:
            return LEAST_BAR
        texts = [cell.cell_len for cell in self.cells if isinstance(cell, Text)]
        return max(len(self.heading), *texts, 0)


def fitted(columns: Sequence[Column], width: int) -> Table:
    """Return a table of at most `width` columns of a terminal; the first column is a name's."""
    kept = list(columns)
    while len(kept) > 1 and _least_width(kept) > width:
        lowest = min(kept[1:], key=lambda column: column.rank)
        if lowest.rank == ALWAYS:
            break
        kept.remove(lowest)
    name, *others = kept
    room = width - sum(GAP + column.width for column in others)
    widths = [max(1, min(name.width, room)), *(column.width for column in others)]
    bar_width = min(MOST_BAR, LEAST_BAR + max(0, room - name.width))
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="dim")
    for column, column_width in zip(kept, widths, strict=True):
        table.add_column(
            column.heading,
            justify="right" if column.is_number else "left",
            no_wrap=True,
            overflow="ellipsis",
            width=bar_width if column.is_bar else column_width,
        )
    for row in range(len(name.cells)):
        table.add_row(*(_drawn(column.cells[row], bar_width) for column in kept))
    return table


def _least_width(columns: Sequence[Column]) -> int:
    name, *others = columns
    return min(name.width, LEAST_NAME) + sum(GAP + column.width for column in others)


def _drawn(cell: Text | float | None, width: int) -> RenderableType:
    if isinstance(cell, Text):
        return cell
    if cell is None:
        return Text()
    return ProgressBar(total=1.0, completed=round(cell, 2), width=width, complete_style="cyan")
