"""Runs one generation and shows it as it grows."""

from collections.abc import Callable

from rich.console import Console

from edge.answer_text import AnswerText
from edge.display import AnswerView, LiveView, NoView, PlainView
from edge.generation import Generation


class Speaker:
    """Shows answers on `screen` (None shows nothing) and what happens to the link on `notices`."""

    def __init__(self, screen: Console | None, notices: Console) -> None:
        self._screen = screen
        self._notices = notices

    def speak(self, made: Generation, text: AnswerText, each: Callable[[], None] | None = None) -> None:
        """Run `made` to its end; `each` is called after every change.

        Raises what the generation raises; the text that is final stays on the screen.
        """
        view = self._view()
        told = False
        try:
            for _ in made.run():
                if made.lost is not None and not told:
                    view.note("yellow", "no link:", f"{made.lost}; going on alone")
                if told and made.lost is None:
                    view.note("green", "the link is back:", "going on with the cloud")
                told = made.lost is not None
                view.update(text.runs(made.answer.provenance_runs), text.provisional(made.answer.drafted), made.alone)
                if each is not None:
                    each()
        finally:
            text.finish()
            view.finish(text.runs(made.answer.provenance_runs))

    def _view(self) -> AnswerView:
        if self._screen is None:
            return NoView(self._notices)
        if self._screen.is_terminal:
            return LiveView(self._screen)
        return PlainView(self._screen, self._notices)
