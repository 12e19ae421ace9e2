"""An answer on the terminal: coloured by where each token came from, or plain text where there is no terminal."""

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from edge.answer import Provenance

Runs = Sequence[tuple[Provenance, str]]

STYLES = MappingProxyType({Provenance.ACCEPTED: "green", Provenance.CLOUD: "bright_blue", Provenance.LOCAL: "yellow"})
PROVISIONAL = "dim"
PROVISIONAL_ALONE = "dim yellow"
REDRAWS_PER_S = 12
# All control characters but tab and newline: text of a model must not steer the terminal.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class AnswerView(Protocol):
    """Shows one answer as it grows."""

    def update(self, runs: Runs, provisional: str, alone: bool) -> None:
        """Show `runs`, which are final and only ever grow, and the text that may yet be taken back.

        `alone`: the device writes without the cloud.
        """
        ...

    def note(self, style: str, label: str, message: object) -> None:
        """Say what happened meanwhile, without harm to the answer."""
        ...

    def finish(self, runs: Runs) -> None:
        """Show the whole answer and end its last line."""
        ...


class NoView:
    """Shows no answer, only notes."""

    def __init__(self, notes: Console) -> None:
        self._notes = notes

    def update(self, runs: Runs, provisional: str, alone: bool) -> None:
        pass

    def note(self, style: str, label: str, message: object) -> None:
        notice(self._notes, style, label, message)

    def finish(self, runs: Runs) -> None:
        pass


class PlainView(NoView):
    """For pipes and files: final text only, as it becomes final, and nothing but the text; notes go to `notes`."""

    def __init__(self, console: Console, notes: Console) -> None:
        super().__init__(notes)
        self._file = console.file
        self._written = 0

    def update(self, runs: Runs, provisional: str, alone: bool) -> None:
        self._write(runs)

    def finish(self, runs: Runs) -> None:
        self._write(runs)
        self._file.write("\n")
        self._file.flush()

    def _write(self, runs: Runs) -> None:
        text = "".join(piece for _, piece in runs)
        if len(text) > self._written:
            self._file.write(text[self._written :])
            self._file.flush()
            self._written = len(text)


class LiveView:
    """For terminals. Finished lines are printed for good; only what follows is drawn again and again."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._printed = 0
        self._tail = _Tail()
        self._live = Live(self._tail, console=console, refresh_per_second=REDRAWS_PER_S, transient=True)
        self._started = False

    def update(self, runs: Runs, provisional: str, alone: bool) -> None:
        if not self._started:
            self._started = True
            self._live.start()
        # Up to here all lines are complete.
        end = "".join(piece for _, piece in runs).rfind("\n")
        if end >= self._printed:
            self._console.print(styled(runs, self._printed, end))
            self._printed = end + 1
        self._tail.show(runs, self._printed, provisional, PROVISIONAL_ALONE if alone else PROVISIONAL)

    def note(self, style: str, label: str, message: object) -> None:
        # By the console that draws the answer: it puts the line above, where another one would write into it.
        notice(self._console, style, label, message)

    def finish(self, runs: Runs) -> None:
        self._live.stop()
        self._console.print(styled(runs, self._printed))
        self._console.print(legend())


class _Tail:
    """The last, unfinished line; turned into text only when it is drawn, which is rarer than it changes."""

    def __init__(self) -> None:
        self._now: tuple[Runs, int, str, str] = ((), 0, "", PROVISIONAL)

    def show(self, runs: Runs, first: int, provisional: str, style: str) -> None:
        self._now = runs, first, provisional, style

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        runs, first, provisional, style = self._now
        text = styled(runs, first)
        text.append(_printable(provisional), style)
        # A live region taller than the screen can't be redrawn: show its end.
        height = max(1, options.size.height - 1)
        for line in console.render_lines(text, options, pad=False)[-height:]:
            yield from line
            yield Segment.line()


def styled(runs: Runs, first: int = 0, end: int | None = None) -> Text:
    """The characters first .. end of the answer in the colours of their provenance."""
    text = Text()
    at = 0
    for kind, piece in runs:
        stop = len(piece) if end is None else end - at
        shown = piece[max(0, first - at) : max(0, stop)]
        text.append(_printable(shown), STYLES[kind])
        at += len(piece)
    return text


def notice(console: Console, style: str, label: str, message: object) -> None:
    """One line about what happened: `label` in colour, the message as it is, unwrapped so that it can be searched."""
    console.print(Text.assemble((label, style), f" {message}"), soft_wrap=True)


def legend() -> Text:
    """What the colours mean, in one line."""
    words = {Provenance.ACCEPTED: "drafted here, accepted", Provenance.CLOUD: "cloud", Provenance.LOCAL: "local only"}
    parts = [Text.assemble(("■ ", STYLES[kind]), (words[kind], "dim")) for kind in Provenance]
    return Text("   ").join(parts)


def summary_table(columns: Mapping[str, Mapping[str, str]]) -> Table:
    """One row a label, one column an answer; a label that an answer lacks is a dash there."""
    table = Table(show_header=len(columns) > 1, header_style="bold", box=None, pad_edge=False)
    table.add_column("")
    for name in columns:
        table.add_column(name)
    labels = dict.fromkeys(label for rows in columns.values() for label in rows)
    for label in labels:
        # Values are text, not markup: a path in square brackets must stay as it is.
        table.add_row(Text(label, "dim"), *(Text(rows.get(label, "–")) for rows in columns.values()))
    return table


def _printable(text: str) -> str:
    return _CONTROL.sub("�", text.replace("\r\n", "\n"))
