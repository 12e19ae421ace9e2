"""Whether token ids can follow what a model holds."""

from collections.abc import Sequence

from shared.errors import BadInput


def check_ids(ids: Sequence[int], length: int, max_context: int, vocab_size: int) -> None:
    """Raises BadInput unless `ids` are of this vocabulary and fit after `length` cached tokens."""
    if not ids:
        raise BadInput("no tokens were given; at least one is needed")
    if length + len(ids) > max_context:
        raise BadInput(
            f"{length + len(ids)} tokens don't fit: the bundle was built for a context of {max_context}; "
            "shorten the text, or build it with a larger --max-context"
        )
    if min(ids) < 0 or max(ids) >= vocab_size:
        raise BadInput(f"token ids must lie from 0 to {vocab_size - 1}")
