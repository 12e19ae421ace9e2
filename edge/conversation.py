"""A conversation on the terminal: each turn carries the ones before it."""

from collections.abc import Iterable

from rich.console import Console

from edge.device import Device
from edge.display import notice
from edge.report import answer_report
from edge.speaker import Speaker
from edge.tokenizer import Message
from shared.errors import EdgewiseError


def converse(device: Device, screen: Console, notices: Console, lines: Iterable[str]) -> int:
    """Answer each line until there are no more; Ctrl-C stops an answer, and the program only at the prompt."""
    speaker = Speaker(screen, notices)
    history: list[Message] = []
    prompts = iter(lines)
    while True:
        if screen.is_terminal:
            screen.print("[bold]you[/] ", end="")
        try:
            line = next(prompts, None)
        except KeyboardInterrupt:
            line = None
        if line is None:
            if screen.is_terminal:
                # The shell's own prompt belongs on a line of its own.
                screen.print()
            return 0
        if not line.strip():
            continue
        history.append(Message("user", line.strip()))
        try:
            answered = _turn(device, speaker, notices, history)
        except EdgewiseError as error:
            notice(notices, "red", "error:", error)
            history.pop()
            continue
        history.append(Message("assistant", answered))


def _turn(device: Device, speaker: Speaker, notices: Console, history: list[Message]) -> str:
    """One answer, or as much of it as there was when it was stopped."""
    made, text = device.chat(history)
    try:
        speaker.speak(made, text)
    except KeyboardInterrupt:
        notices.print("[yellow]stopped[/]")
    report = answer_report(made, text.text)
    per_pass = report["tokens_per_pass"]
    shown = f"{per_pass:.2f} tokens a pass, " if per_pass else ""
    notices.print(f"[dim]{shown}{report['tokens_per_s']:.1f} tokens/s[/]", highlight=False)
    return text.text
