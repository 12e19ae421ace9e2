"""One session in the cloud: the committed trunk, the drafts on it, and how much of it the KV cache holds.

Arithmetic only: no tensors, no clock. Between passes `cached < position`, since the last committed token is fed by
the next pass to get what follows it.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cloud.batch import Verdict, Work
from shared.errors import Code, PeerError, Refused
from shared.frames import Commit, Draft, FinishReason, HiddenRows, Open, Timings
from shared.hidden_codec import decode_rows
from shared.params import CLOUD_PLACEMENTS, Limits, Placement
from shared.trie import DraftTrie, extend_hash

Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What must be known of the model to check a request."""

    vocab_size: int
    hidden_size: int
    max_context: int


class Sequence:
    """The state of one session between its Open and its last frame."""

    def __init__(self, slot: int, frame: Open, shape: ModelShape, limits: Limits, now: float) -> None:
        """Raises Refused for a request that can't be served, with what would be right."""
        _check(frame, shape, limits)
        self.slot = slot
        self.session = frame.session
        self.params = frame.params
        self.placement = frame.placement
        self.prompt_len = frame.prompt_len
        self.stop_ids = frozenset(frame.stop_ids)
        self.hidden = frame.hidden
        self.end = min(frame.prompt_len + frame.max_tokens, shape.max_context)
        self.trie = DraftTrie(frame.tokens, limits.max_draft_nodes)
        self.cached = 0
        self.waiting_since = now
        self.last_heard = now
        self._shape = shape
        self._asked = True
        # In split mode rows join at the cut once the text so far has been prefilled from ids.
        self._joined = False
        self._rows: dict[Place, NDArray[np.float32]] = {}
        self._path: list[int] = []

    @property
    def finished(self) -> FinishReason | None:
        """Why nothing more will be decoded, if so; a stop token wins over the token limit."""
        if self.trie.position > self.prompt_len and self.trie.tokens[-1] in self.stop_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if self.trie.position >= self.end else None

    @property
    def prefilling(self) -> bool:
        return self.trie.position - self.cached > 1

    @property
    def ready(self) -> bool:
        """Whether a pass would bring this session on."""
        if self.prefilling:
            return True
        if self._joined and (self.trie.position, self.trie.hash) not in self._rows:
            return False
        return self.placement is Placement.AR or self._asked or self.trie.size > 0

    def draft(self, frame: Draft, now: float) -> None:
        """Grow the trie by a Draft; one that names an unknown place is stale and changes nothing.

        Raises PeerError for tokens outside the vocabulary, hidden states that don't fit, or a full window.
        """
        self.last_heard = now
        _check_tokens(frame.tokens, self._shape.vocab_size)
        if (frame.hidden is None) != (self.hidden is None):
            raise PeerError(
                Code.BAD_HIDDEN, f"this session was opened with hidden={self.hidden}; its drafts must match"
            )
        was_ready = self.ready
        if self.trie.grow(frame.at, frame.hash, frame.tokens, frame.parents) is None:
            return
        if frame.hidden is not None:
            self._keep_rows(frame, frame.hidden)
        if (frame.at, frame.hash) == (self.trie.position, self.trie.hash):
            self._asked = True
        if not was_ready:
            self._wait_from(now)

    def steer(self, placement: Placement, now: float) -> None:
        """Change the placement. Raises PeerError for one that this session can't have."""
        problem = _placement_problem(placement, self.hidden)
        if problem:
            raise PeerError(Code.BAD_REQUEST, problem)
        if not self.ready:
            self._wait_from(now)
        self.placement = placement
        self.last_heard = now

    def _wait_from(self, arrived: float) -> None:
        """A frame came that there is now something to do for; one that came during this session's own pass waits
        from the end of that pass."""
        self.waiting_since = max(self.waiting_since, arrived)

    def work(self, budget: int) -> Work:
        """The rows of the next pass, at most `budget` of them. Call it only when `ready`."""
        tokens = self.trie.tokens
        trunk = list(tokens[self.cached : self.cached + budget])
        whole = self.cached + len(trunk) == self.trie.position
        # The pass itself adds one token, so drafts for the last place of the answer would be of no use.
        room = min(budget - len(trunk), self.end - self.trie.position - 1) if whole else 0
        self._path = self.trie.first_path(room)
        rows = None
        if self._joined:
            rows = self._path_rows()
            self._path = self._path[: len(rows) - 1]
        return Work(
            slot=self.slot,
            start=self.cached,
            tokens=(*trunk, *self._path),
            targets_from=len(trunk) - 1 if whole else len(trunk),
            params=self.params,
            prompt_len=self.prompt_len,
            hidden=rows,
            history=tuple(tokens[: self.cached]) if self.params.needs_history else None,
        )

    def complete(self, work: Work, verdict: Verdict, verify_us: int, rows: int, now: float) -> Commit | None:
        """Take the verdict on the last `work`: commit what the target chose; None for a chunk of a prompt."""
        queue_us = max(0, round((now - self.waiting_since) * 1e6) - verify_us)
        if not verdict.targets:
            self.cached += len(work.tokens)
            return None
        at, hash = self.trie.position, self.trie.hash
        tokens, accepted = self._judge(verdict.targets)
        self.trie.commit(tokens)
        self.cached = at + accepted
        self.waiting_since = now
        self._asked = False
        self._joined = self.hidden is not None
        self._rows = {place: row for place, row in self._rows.items() if self.trie.knows(*place)}
        timings = Timings(queue_us, verify_us, rows)
        return Commit(self.session, at, hash, tuple(tokens), accepted, len(self._path), timings)

    def _judge(self, targets: tuple[int, ...]) -> tuple[list[int], int]:
        """Walk the drafted path along the target's own tokens: those to commit, and how many were drafted.

        The first of stop token, token limit and difference ends the walk (hazard 3: nothing leaks after a stop).
        """
        tokens: list[int] = []
        accepted = 0
        for depth, target in enumerate(targets):
            tokens.append(target)
            drafted = depth < len(self._path) and self._path[depth] == target
            accepted += drafted
            if not drafted or target in self.stop_ids or self.trie.position + len(tokens) >= self.end:
                break
        return tokens, accepted

    def _keep_rows(self, frame: Draft, hidden: HiddenRows) -> None:
        """Keep the residuals of a Draft by the place after each token, for the places that still count."""
        lineage = self.trie.lineage(frame.at, frame.hash, hidden.first)
        assert lineage is not None, "grow has just found this place"
        places = list(lineage)
        reached: list[Place] = []
        parents = frame.parents or range(-1, len(frame.tokens) - 1)
        for token, parent in zip(frame.tokens, parents, strict=True):
            position, value = (frame.at, frame.hash) if parent == -1 else reached[parent]
            reached.append((position + 1, extend_hash(value, token)))
        places += reached
        rows = decode_rows(hidden.data, hidden.codec, self._shape.hidden_size)
        if hidden.codec != self.hidden or len(rows) != len(places):
            raise PeerError(
                Code.BAD_HIDDEN,
                f"{len(rows)} rows of {hidden.codec} from position {hidden.first} for a draft that ends {len(places)} "
                f"tokens later; this session takes one row of {self.hidden} a token",
            )
        self._rows.update((place, row) for place, row in zip(places, rows, strict=True) if self.trie.knows(*place))

    def _path_rows(self) -> NDArray[np.float32]:
        """The residuals of the last committed token and of the drafted path, as far as they have come."""
        place = self.trie.position, self.trie.hash
        rows = [self._rows[place]]
        for token in self._path:
            place = place[0] + 1, extend_hash(place[1], token)
            if place not in self._rows:
                break
            rows.append(self._rows[place])
        return np.stack(rows)


def _check(frame: Open, shape: ModelShape, limits: Limits) -> None:
    if not frame.tokens or not frame.prompt_len:
        raise Refused(Code.BAD_REQUEST, "the prompt is empty; send at least one token")
    if not frame.prompt_len <= len(frame.tokens):
        raise Refused(Code.BAD_REQUEST, f"prompt_len is {frame.prompt_len}, but only {len(frame.tokens)} tokens came")
    if len(frame.tokens) > shape.max_context:
        raise Refused(Code.TOO_LONG, f"{len(frame.tokens)} tokens; the context holds {shape.max_context}")
    if not 1 <= frame.max_tokens <= limits.max_new_tokens:
        raise Refused(Code.BAD_REQUEST, f"max_tokens is {frame.max_tokens}; it must be 1 to {limits.max_new_tokens}")
    if frame.hidden is not None and frame.hidden not in limits.hidden_codecs:
        raise Refused(
            Code.BAD_HIDDEN,
            f"unknown hidden codec {frame.hidden!r}; this cloud takes {', '.join(limits.hidden_codecs)}",
        )
    problem = _placement_problem(frame.placement, frame.hidden)
    if problem:
        raise Refused(Code.BAD_REQUEST, problem)
    try:
        _check_tokens(frame.tokens, shape.vocab_size)
    except PeerError as error:
        raise Refused(Code.BAD_REQUEST, error.message) from error


def _placement_problem(placement: Placement, hidden: str | None) -> str | None:
    if placement not in CLOUD_PLACEMENTS:
        return f"placement {placement} has no cloud in it; use {' or '.join(CLOUD_PLACEMENTS)}"
    if hidden is not None and placement is not Placement.EDGE:
        return f"hidden states come with drafts, so they go with placement edge, not {placement}"
    return None


def _check_tokens(tokens: tuple[int, ...], vocab_size: int) -> None:
    highest = max(tokens, default=0)
    if highest >= vocab_size:
        raise PeerError(Code.BAD_FRAME, f"token {highest} is outside the vocabulary of {vocab_size}")
