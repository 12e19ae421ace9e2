"""Which tokens a head chooses among: the frequent ones, and those that stand in the conversation.

A name, a number or a foreign word that stands in the prompt is likely to be repeated and is rarely a frequent token.
"""

import torch
from torch import Tensor


class DraftVocabulary:
    """The frequent tokens [V] and the output matrix [vocab, d], whose dtype and device are those to compute in."""

    def __init__(self, frequent: Tensor, whole: Tensor) -> None:
        self.frequent = frequent
        self.whole = whole
        self._rows = whole[frequent]
        self._is_frequent = torch.zeros(len(whole), dtype=torch.bool, device=whole.device)
        self._is_frequent[frequent] = True

    def rows_with(self, ids: Tensor) -> Tensor:
        """The output rows of the frequent tokens and of those in `ids` [n] that aren't: [V + k, d]."""
        found = ids.unique()
        return torch.cat([self._rows, self.whole[found[~self._is_frequent[found]]]])

    def allowed(self, ids: Tensor, first: int) -> Tensor:
        """What can be drafted after each of `ids` [n] from `first` on, when those up to it are known.

        Bool [n - first, vocab].
        """
        count = len(ids)
        begins = torch.full((len(self.whole),), count, device=ids.device)
        begins.scatter_reduce_(0, ids, torch.arange(count, device=ids.device), "amin")
        begins[self.frequent] = 0
        return begins[None, :] <= torch.arange(first, count, device=ids.device)[:, None]
