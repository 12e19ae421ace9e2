"""What reaches the terminal, and what reaches a pipe."""

import io
import re

from rich.console import Console

from edge.answer import Provenance
from edge.display import LiveView, PlainView, styled, summary_table

DRAFTED = (Provenance.ACCEPTED, "one two")
CLOUD = (Provenance.CLOUD, " three\nfour")
LOCAL = (Provenance.LOCAL, " five")


def terminal(width: int = 40, height: int = 10) -> Console:
    return Console(
        file=io.StringIO(), force_terminal=True, width=width, height=height, color_system="standard", _environ={}
    )


def output(console: Console) -> str:
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_a_pipe_gets_final_text_only_and_each_piece_once() -> None:
    console = Console(file=io.StringIO(), _environ={})
    view = PlainView(console, console)
    view.update([DRAFTED], " perhaps", alone=False)
    assert output(console) == "one two"
    view.update([DRAFTED, CLOUD], " or not", alone=True)
    assert output(console) == "one two three\nfour"
    view.finish([DRAFTED, CLOUD, LOCAL])
    assert output(console) == "one two three\nfour five\n"


def test_a_pipe_gets_the_text_as_it_is() -> None:
    console = Console(file=io.StringIO(), width=10, _environ={})
    long = "[bold]" + "x" * 50 + "\x1b[31m"
    PlainView(console, console).finish([(Provenance.CLOUD, long)])
    assert output(console) == long + "\n"


def test_each_provenance_has_its_colour() -> None:
    text = styled([DRAFTED, CLOUD, LOCAL])
    assert text.plain == "one two three\nfour five"
    assert [(span.start, span.end, span.style) for span in text.spans] == [
        (0, 7, "green"),
        (7, 18, "bright_blue"),
        (18, 23, "yellow"),
    ]


def test_a_part_of_the_answer_keeps_its_colours() -> None:
    part = styled([DRAFTED, CLOUD, LOCAL], 4, 13)
    assert part.plain == "two three"
    assert [(span.start, span.end, span.style) for span in part.spans if span.start < span.end] == [
        (0, 3, "green"),
        (3, 9, "bright_blue"),
    ]
    assert styled([DRAFTED, CLOUD, LOCAL], 14).plain == "four five"


def test_text_of_a_model_does_not_steer_the_terminal() -> None:
    assert styled([(Provenance.CLOUD, "a\x1b[2Jb\x07\x9bc\td\r\ne")]).plain == "a�[2Jb��c\td\ne"


def test_a_terminal_ends_with_the_whole_text_and_the_legend() -> None:
    console = terminal()
    view = LiveView(console)
    view.update([DRAFTED], " wrong", alone=False)
    view.update([DRAFTED, CLOUD], " guess", alone=True)
    view.finish([DRAFTED, CLOUD, LOCAL])
    written = output(console)
    # What was drawn for the time being is erased; the end stands below the last erased line.
    standing = written.rpartition("\x1b[2K")[2]
    assert "four" in standing and "five" in standing and "local only" in standing
    assert "wrong" not in standing and "guess" not in standing
    assert "guess" in written, "provisional text was never shown"


def test_an_answer_that_never_began_leaves_the_terminal_in_order() -> None:
    console = terminal()
    LiveView(console).finish([])
    assert "accepted" in output(console)


def test_a_live_region_shows_the_end_of_a_long_line() -> None:
    console = terminal(width=10, height=4)
    view = LiveView(console)
    view.update([(Provenance.CLOUD, " ".join(f"word{n}" for n in range(20)))], "", alone=False)
    shown = console.render_lines(view._tail, console.options)
    text = "".join(segment.text for line in shown for segment in line)
    assert "word19" in text and "word0 " not in text
    view.finish([])


def test_the_summary_has_a_column_an_answer_and_no_markup() -> None:
    console = Console(file=io.StringIO(), width=80, _environ={})
    console.print(summary_table({"here": {"tokens": "5", "note": "[red]"}, "cloud": {"tokens": "6"}}))
    lines = [line.split() for line in output(console).splitlines()]
    assert lines == [["here", "cloud"], ["tokens", "5", "6"], ["note", "[red]", "–"]]


def test_a_note_on_a_terminal_stands_above_the_unfinished_line() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=60, height=20)
    view = LiveView(console)
    view.update([(Provenance.CLOUD, "half a li")], "", alone=False)
    view.note("yellow", "no link:", "cut")
    view.update([(Provenance.CLOUD, "half a line")], "", alone=True)
    view.finish([(Provenance.CLOUD, "half a line")])
    assert isinstance(console.file, io.StringIO)
    lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).strip() for line in console.file.getvalue().split("\n")]
    assert "no link: cut" in lines
    assert "half a line" in lines
