"""How many tokens to draft before asking the cloud, and how many may wait for a verdict."""

from dataclasses import dataclass

from shared.errors import BadInput


@dataclass(frozen=True, slots=True)
class FixedPacing:
    """Drafts of `draft_length` tokens, at most `window` of them in flight.

    Equal numbers are stop-and-wait; a window of two drafts keeps drafting while the verdict on the first is on its way.
    """

    draft_length: int = 4
    window: int = 8

    def __post_init__(self) -> None:
        if not 1 <= self.draft_length <= self.window:
            raise BadInput(f"draft length {self.draft_length} must be 1 or more and at most the window, {self.window}")

    def within(self, max_draft_nodes: int) -> "FixedPacing":
        """The same pacing under the cloud's bound."""
        window = min(self.window, max_draft_nodes)
        return FixedPacing(min(self.draft_length, window), window)
