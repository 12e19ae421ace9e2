"""Progress bars for work in named stages."""

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class StageProgress:
    """One bar a stage, drawn on the terminal; silent where there is none."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description:<28}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> "StageProgress":
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def update(self, stage: str, done: int, total: int, note: str = "") -> None:
        """Show that `done` of `total` units of `stage` are finished, and beside it how it stands."""
        if stage not in self._tasks:
            self._tasks[stage] = self._progress.add_task(stage, total=total, note=note)
        self._progress.update(self._tasks[stage], completed=done, total=total, note=note)
