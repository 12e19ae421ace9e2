"""The draft trie: committed tokens are the trunk, drafts are a trie rooted at its end (PROTOCOL.md, "Places").

A place is named by its position (the number of tokens before it) and the rolling hash of those tokens. Both sides
keep the same trie: a Draft grows it under any known place, a Commit walks it and re-roots. A frame that names an
unknown place changes nothing, which makes repeated, late and stale frames harmless.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from shared.errors import Code, PeerError
from shared.noise import GAMMA, mix64

EMPTY_HASH = 0


def extend_hash(value: int, token: int) -> int:
    """The prefix hash after one more token. For a fixed prefix, different tokens give different hashes."""
    return mix64(value + (token + 1) * GAMMA)


def prefix_hash(tokens: Iterable[int]) -> int:
    """The prefix hash of a whole list of tokens."""
    value = EMPTY_HASH
    for token in tokens:
        value = extend_hash(value, token)
    return value


@dataclass(slots=True)
class _Node:
    token: int
    parent: int
    position: int
    hash: int
    children: dict[int, int] = field(default_factory=dict)


class DraftTrie:
    """The trunk and what is drafted beyond it. Node ids are never used twice."""

    def __init__(self, trunk: Sequence[int], max_nodes: int) -> None:
        self.max_nodes = max_nodes
        self._tokens: list[int] = []
        self._hashes = [EMPTY_HASH]
        self._next_id = 0
        self._nodes: dict[int, _Node] = {}
        self._places: dict[tuple[int, int], int] = {}
        for token in trunk:
            self._append(token)
        self._root = self._new_root()

    @property
    def tokens(self) -> Sequence[int]:
        """The committed tokens, prompt included. Read it, don't keep it: it grows."""
        return self._tokens

    @property
    def position(self) -> int:
        return len(self._tokens)

    @property
    def hash(self) -> int:
        return self._hashes[-1]

    @property
    def root(self) -> int:
        """The node at the trunk's end."""
        return self._root

    @property
    def size(self) -> int:
        """How many drafted nodes there are."""
        return len(self._nodes) - 1

    def __contains__(self, node: int) -> bool:
        return node in self._nodes

    def hash_at(self, position: int) -> int:
        """The prefix hash of the first `position` committed tokens."""
        return self._hashes[position]

    def place(self, node: int) -> tuple[int, int]:
        """(position, hash) of the place after `node`."""
        entry = self._nodes[node]
        return entry.position, entry.hash

    def token(self, node: int) -> int:
        """The token of a drafted node."""
        return self._nodes[node].token

    def child(self, node: int, token: int) -> int | None:
        return self._nodes[node].children.get(token)

    def path(self, node: int) -> list[int]:
        """The tokens from the trunk's end down to `node`."""
        tokens: list[int] = []
        while node != self._root:
            entry = self._nodes[node]
            tokens.append(entry.token)
            node = entry.parent
        return tokens[::-1]

    def lineage(self, at: int, hash: int, first: int) -> list[tuple[int, int]] | None:
        """The places after the tokens at positions first .. at - 1 on the way to (at, hash), or None if unknown."""
        places: list[tuple[int, int]] = []
        node = self._places.get((at, hash))
        position = at
        while node is not None and node != self._root and position > first:
            places.append((position, self._nodes[node].hash))
            node, position = self._nodes[node].parent, position - 1
        if node is None and not self._on_trunk(at, hash):
            return None
        places.extend((end, self._hashes[end]) for end in range(position, first, -1))
        return places[::-1]

    def knows(self, position: int, hash: int) -> bool:
        """Whether (position, hash) is a place of the trie at or beyond the trunk's end."""
        return (position, hash) in self._places

    def first_path(self, limit: int) -> list[int]:
        """The tokens along the first-drafted child at each place, at most `limit`."""
        tokens: list[int] = []
        entry = self._nodes[self._root]
        while entry.children and len(tokens) < limit:
            token, node = next(iter(entry.children.items()))
            tokens.append(token)
            entry = self._nodes[node]
        return tokens

    def add(self, parent: int, token: int) -> int:
        """The child of `parent` for `token`, made if it isn't there.

        Raises PeerError (window_exceeded) when the trie is full.
        """
        entry = self._nodes[parent]
        known = entry.children.get(token)
        if known is not None:
            return known
        if self.size >= self.max_nodes:
            raise PeerError(
                Code.WINDOW_EXCEEDED, f"more than {self.max_nodes} drafted tokens are waiting for a verdict"
            )
        return self._insert(token, parent, entry.position + 1, extend_hash(entry.hash, token))

    def grow(self, at: int, hash: int, tokens: Sequence[int], parents: Sequence[int] | None = None) -> int | None:
        """Add drafted `tokens` under the place (at, hash); how many nodes are new, or None for an unknown place.

        `parents[i]` is the index in `tokens` of the parent of token i (which comes first), or -1 for the place
        itself; None is a chain. What leaves the trunk at a committed position is stale and is left out with all that
        grows on it.

        Raises PeerError (window_exceeded) when the trie is full.
        """
        if parents is None:
            parents = range(-1, len(tokens) - 1)
        # A place is a node id, or a trunk position written as ~position, or None for what is pruned.
        start = self._places.get((at, hash))
        if start is None:
            if not self._on_trunk(at, hash):
                return None
            start = ~at
        before = self.size
        reached: list[int | None] = []
        for token, parent in zip(tokens, parents, strict=True):
            reached.append(self._step(start if parent == -1 else reached[parent], token))
        return self.size - before

    def commit(self, tokens: Sequence[int]) -> int:
        """Append `tokens` to the trunk, re-root and drop the rest; how many of them were drafted."""
        matched = 0
        node: int | None = self._root
        for token in tokens:
            node = None if node is None else self._nodes[node].children.get(token)
            matched += node is not None
            self._append(token)
        if node is None:
            self._nodes.clear()
            self._places.clear()
            self._root = self._new_root()
        elif node != self._root:
            self._reroot(node)
        return matched

    def merge_commit(self, at: int, hash: int, tokens: Sequence[int]) -> list[int] | None:
        """Apply a Commit that names a place of the trunk: the tokens that are new, or None for an unknown place.

        Raises PeerError (bad_frame) when a token differs from the one already committed there.
        """
        if not self._on_trunk(at, hash):
            return None
        overlap = min(len(tokens), self.position - at)
        if list(tokens[:overlap]) != self._tokens[at : at + overlap]:
            raise PeerError(Code.BAD_FRAME, f"a Commit at {at} changes tokens that are committed already")
        fresh = list(tokens[overlap:])
        self.commit(fresh)
        return fresh

    def _on_trunk(self, at: int, hash: int) -> bool:
        return 0 <= at < len(self._hashes) and self._hashes[at] == hash

    def _step(self, place: int | None, token: int) -> int | None:
        if place is None:
            return None
        if place >= 0:
            return self.add(place, token)
        position = ~place
        if position == self.position:
            return self.add(self._root, token)
        return ~(position + 1) if self._tokens[position] == token else None

    def _append(self, token: int) -> None:
        self._tokens.append(token)
        self._hashes.append(extend_hash(self._hashes[-1], token))

    def _insert(self, token: int, parent: int, position: int, hash: int) -> int:
        node = self._next_id
        self._next_id += 1
        self._nodes[node] = _Node(token, parent, position, hash)
        self._places[position, hash] = node
        if parent >= 0:
            self._nodes[parent].children[token] = node
        return node

    def _new_root(self) -> int:
        return self._insert(-1, -1, self.position, self.hash)

    def _reroot(self, root: int) -> None:
        kept: dict[int, _Node] = {}
        waiting = [root]
        while waiting:
            node = waiting.pop()
            kept[node] = self._nodes[node]
            waiting.extend(kept[node].children.values())
        self._nodes = kept
        self._places = {(entry.position, entry.hash): node for node, entry in kept.items()}
        kept[root].parent = -1
        self._root = root
