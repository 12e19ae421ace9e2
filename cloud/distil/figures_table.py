"""An exit's figures for people: a row for each kind of task with a bar for what a pass commits, and one line of sum."""

from collections.abc import Mapping
from typing import Any

from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

# The draft length that the bars and the last line are for.
SHOWN_LENGTH = "6"
_BAR_WIDTH = 12


def figures_table(figures: Mapping[str, Any]) -> Table:
    """Rates in percent; the bar begins at the one token that a pass commits without any draft. Fits into 80 columns.

    `T 0.8` is the first draft's acceptance under the shared noise, `of best` its share of what rejection sampling could
    reach.
    """
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("task")
    for name in ("covered", "first", "top 4", f"T {figures['sampled']['temperature']}", "of best", "a pass"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", width=_BAR_WIDTH)
    rows = {**figures["by_category"], "all": figures}
    most = max(row["tokens_per_pass"][SHOWN_LENGTH] for row in rows.values())
    for name, row in rows.items():
        passes = row["tokens_per_pass"]
        cells = (
            *(f"{row[key]:.0%}" for key in ("covered", "first_position_acceptance", "top4")),
            f"{row['sampled']['first_position_acceptance']:.0%}",
            f"{row['coupled_over_max']:.0%}",
            f"{passes[SHOWN_LENGTH]:.2f}",
        )
        share = (passes[SHOWN_LENGTH] - 1) / max(most - 1, 1e-9)
        style = "bold" if name == "all" else ""
        bar = ProgressBar(total=1, completed=share, width=_BAR_WIDTH, complete_style="green", finished_style="green")
        table.add_row(Text(name, style), *(Text(cell, style) for cell in cells), bar)
    return table


def headline(figures: Mapping[str, Any]) -> Text:
    """The figure that matters, and how it comes about."""
    depths = " ".join(f"{rate:.0%}" for rate in figures["acceptance_by_depth"])
    return Text.assemble(
        (f"{figures['tokens_per_pass'][SHOWN_LENGTH]:.2f}", "bold green"),
        f" tokens a pass with {SHOWN_LENGTH} drafts, over {figures['answers']} answers; accepted by depth: {depths}",
    )
