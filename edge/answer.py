"""The device's truth about one answer: what is committed and from where, and what is drafted beyond it.

Pure: no socket, clock or model. The cloud's side of a session can be rebuilt from this at any time.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from itertools import groupby

from shared.frames import Commit, Draft, Finish, FinishReason, Open
from shared.params import Placement, SamplingParams
from shared.trie import DraftTrie


class Provenance(StrEnum):
    """Where a token of an answer came from."""

    ACCEPTED = "draft-accepted"
    CLOUD = "cloud"
    LOCAL = "local"


class Answer:
    """The committed tokens with their provenance, and the drafted path that grows on them.

    A device draws one path; `tip` is its end. What it has sent is in flight until a Commit passes over it.
    """

    def __init__(
        self, prompt: Sequence[int], params: SamplingParams, max_tokens: int, stop_ids: frozenset[int], max_context: int
    ) -> None:
        self.prompt_len = len(prompt)
        self.params = params
        self.max_tokens = max_tokens
        self.stop_ids = stop_ids
        self.end = min(self.prompt_len + max_tokens, max_context)
        self.finish_reason: FinishReason | None = None
        self.trie = DraftTrie(prompt, max_nodes=max_context)
        self.tip = self.trie.root
        self.provenance: list[Provenance] = []
        self._sent_to = self.trie.root
        self._asked: tuple[int, int] | None = None

    @property
    def tokens(self) -> list[int]:
        """The committed tokens of the answer, without the prompt."""
        return list(self.trie.tokens[self.prompt_len :])

    @property
    def drafted(self) -> list[int]:
        """The tokens beyond the committed ones, down to the tip."""
        return self.trie.path(self.tip)

    @property
    def position(self) -> int:
        """Where the next token goes: committed and drafted tokens, prompt included."""
        return self.trie.place(self.tip)[0]

    @property
    def in_flight(self) -> int:
        """Drafted tokens that the cloud has and that no Commit has passed over."""
        return self.trie.place(self._sent_to)[0] - self.trie.position

    @property
    def unsent(self) -> int:
        return self.position - self.trie.place(self._sent_to)[0]

    @property
    def awaits_verdict(self) -> bool:
        """Whether the cloud has something to answer."""
        return self.in_flight > 0 or self._asked == (self.trie.position, self.trie.hash)

    @property
    def can_draft(self) -> bool:
        """Whether a token may follow the tip: a drafted stop token only ends the drafting (hazard 3)."""
        return self.position < self.end and not self.tip_stops

    @property
    def tip_stops(self) -> bool:
        """Whether the drafted path ends in a stop token."""
        return self.tip != self.trie.root and self.trie.token(self.tip) in self.stop_ids

    @property
    def worth_drafting(self) -> bool:
        """Whether the cloud would look at one more drafted token: its own token takes the last place."""
        return self.position + 1 < self.end and self.can_draft

    @property
    def provenance_runs(self) -> list[tuple[Provenance, int]]:
        """The provenance of the answer as (kind, count) runs."""
        return [(kind, len(list(group))) for kind, group in groupby(self.provenance)]

    def open(self, session: int, placement: Placement, hidden: str | None) -> Open:
        """Begin or resume with the cloud: whatever was in flight is unsent again."""
        self._sent_to = self.trie.root
        self._asked = self.trie.position, self.trie.hash
        return Open(
            session=session,
            tokens=tuple(self.trie.tokens),
            prompt_len=self.prompt_len,
            max_tokens=self.max_tokens,
            params=self.params,
            placement=placement,
            stop_ids=tuple(sorted(self.stop_ids)),
            hidden=hidden,
        )

    def grow(self, token: int) -> None:
        """Draft one more token at the tip."""
        self.tip = self.trie.add(self.tip, token)

    def take_draft(self, session: int, limit: int) -> Draft:
        """The next `limit` unsent tokens as a Draft; without any it is empty and asks for a pass."""
        at, hash = self.trie.place(self._sent_to)
        first = at - self.trie.position
        tokens = self.drafted[first : first + limit]
        for token in tokens:
            child = self.trie.child(self._sent_to, token)
            assert child is not None, "the drafted path is in the trie"
            self._sent_to = child
        if not tokens:
            self._asked = at, hash
        return Draft(session, at, hash, tuple(tokens))

    def commit(self, frame: Commit) -> int | None:
        """Take the cloud's verdict: how many tokens are new, or None when it names an unknown place.

        The tip stays where it is when the Commit runs along the drafted path, else it goes back to the trunk's end.
        """
        overlap = self.trie.position - frame.at
        fresh = self.trie.merge_commit(frame.at, frame.hash, frame.tokens)
        if fresh is None:
            return None
        self._record(
            Provenance.ACCEPTED if overlap + index < frame.accepted else Provenance.CLOUD for index in range(len(fresh))
        )
        return len(fresh)

    def finish(self, frame: Finish) -> bool:
        """Take the cloud's end of the answer; False when it names another place than the trunk's end."""
        if (frame.at, frame.hash) != (self.trie.position, self.trie.hash):
            return False
        self.finish_reason = frame.reason
        return True

    def keep_local(self) -> None:
        """Commit the drafted path as the device wrote it."""
        tail = self.drafted
        self.trie.commit(tail)
        self._record(Provenance.LOCAL for _ in tail)

    def finish_locally(self) -> None:
        """End the answer with what the device wrote alone."""
        self.finish_reason = FinishReason.STOP if self.tip_stops else FinishReason.LENGTH
        self.keep_local()

    def cut(self, keep: int) -> None:
        """End the answer after its first `keep` tokens, since a stop string begins there (hazard 3)."""
        del self.provenance[keep:]
        self.trie = DraftTrie(self.trie.tokens[: self.prompt_len + keep], max_nodes=self.trie.max_nodes)
        self.tip = self._sent_to = self.trie.root
        self.finish_reason = FinishReason.STOP

    def _record(self, kinds: Iterable[Provenance]) -> None:
        self.provenance.extend(kinds)
        if self.tip not in self.trie:
            self.tip = self.trie.root
        if self._sent_to not in self.trie:
            self._sent_to = self.trie.root
