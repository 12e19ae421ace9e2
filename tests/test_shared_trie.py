"""The draft trie against a plain model of it: a set of token paths."""

from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from shared.errors import Code, PeerError
from shared.noise import GAMMA, MASK, mix64
from shared.trie import EMPTY_HASH, DraftTrie, extend_hash, prefix_hash

Path = tuple[int, ...]
MAX_NODES = 12


class PathTrie:
    """The trie as the specification words it: all drafted prefixes as whole texts, in the order of their drafting.

    Slow and plain; shares only the prefix hash with the code under test.
    """

    def __init__(self, trunk: Sequence[int]) -> None:
        self.trunk = tuple(trunk)
        self.drafted: list[Path] = []

    def texts(self) -> list[Path]:
        """Every text that has a place: the trunk's prefixes and what is drafted."""
        return [self.trunk[:end] for end in range(len(self.trunk) + 1)] + self.drafted

    def find(self, at: int, hash: int) -> Path | None:
        return next((text for text in self.texts() if (len(text), prefix_hash(text)) == (at, hash)), None)

    def grow(self, at: int, hash: int, tokens: Sequence[int], parents: Sequence[int]) -> int | None:
        start = self.find(at, hash)
        if start is None:
            return None
        reached: list[Path] = []
        new = 0
        for token, parent in zip(tokens, parents, strict=True):
            text = (start if parent == -1 else reached[parent]) + (token,)
            reached.append(text)
            if text[: len(self.trunk)] != self.trunk[: len(text)] or len(text) <= len(self.trunk):
                continue
            if text not in self.drafted:
                self.drafted.append(text)
                new += 1
        return new

    def commit(self, tokens: Sequence[int]) -> int:
        matched = 0
        for token in tokens:
            self.trunk += (token,)
            matched += self.trunk in self.drafted
        size = len(self.trunk)
        self.drafted = [text for text in self.drafted if len(text) > size and text[:size] == self.trunk]
        return matched

    def first_path(self, limit: int) -> list[int]:
        text = self.trunk
        while len(text) < len(self.trunk) + limit:
            children = [path for path in self.drafted if len(path) == len(text) + 1 and path[:-1] == text]
            if not children:
                break
            text = children[0]
        return list(text[len(self.trunk) :])


tokens = st.lists(st.integers(0, 2), max_size=4)


class TrieMachine(RuleBasedStateMachine):
    """Frames in any order, early, late, repeated or for places that never were (hazard 7: nothing is applied twice)."""

    @initialize(prompt=st.lists(st.integers(0, 2), min_size=1, max_size=4))
    def start(self, prompt: list[int]) -> None:
        self.trie = DraftTrie(prompt, MAX_NODES)
        self.model = PathTrie(prompt)
        self.places = [(len(prompt), prefix_hash(prompt))]
        self.drafts: list[tuple[int, int, list[int], list[int]]] = []
        self.commits: list[tuple[int, int, list[int]]] = []

    def send_draft(self, draft: tuple[int, int, list[int], list[int]]) -> None:
        trial = PathTrie(self.model.trunk)
        trial.drafted = list(self.model.drafted)
        new = trial.grow(*draft)
        if len(trial.drafted) > MAX_NODES:
            with pytest.raises(PeerError) as caught:
                self.trie.grow(*draft)
            assert caught.value.code is Code.WINDOW_EXCEEDED
            # A session that overruns its window is refused, so both tries start anew.
            self.trie = DraftTrie(self.model.trunk, MAX_NODES)
            self.model = PathTrie(self.model.trunk)
            return
        assert self.trie.grow(*draft) == new
        self.model = trial

    @rule(data=st.data(), drafted=tokens, chain=st.booleans())
    def grow(self, data: st.DataObject, drafted: list[int], chain: bool) -> None:
        """A Draft at any place that was ever known, the stale ones too."""
        at, hash = data.draw(st.sampled_from(self.places))
        parents = list(range(-1, len(drafted) - 1))
        if not chain:
            parents = [data.draw(st.integers(-1, index - 1)) for index in range(len(drafted))]
        draft = (at, hash, drafted, parents)
        self.drafts.append(draft)
        self.send_draft(draft)
        self.places += [(len(text), prefix_hash(text)) for text in self.model.drafted]
        self.places = sorted(set(self.places))

    @rule(back=st.integers(1, 3), agree=st.integers(0, 3), drafted=tokens)
    def draft_overtaken_by_a_commit(self, back: int, agree: int, drafted: list[int]) -> None:
        """A Draft on a place of the trunk, which runs along it for a while."""
        at = max(0, self.trie.position - back)
        along = list(self.model.trunk[at : at + agree])
        tokens = along + drafted
        self.send_draft((at, self.trie.hash_at(at), tokens, list(range(-1, len(tokens) - 1))))

    @rule(data=st.data())
    def repeat_a_draft(self, data: st.DataObject) -> None:
        if self.drafts:
            self.send_draft(data.draw(st.sampled_from(self.drafts)))

    @rule(drafted=tokens)
    def draft_at_a_place_that_never_was(self, drafted: list[int]) -> None:
        before = self.trie.size
        assert self.trie.grow(self.trie.position, self.trie.hash ^ 1, drafted) is None
        assert self.trie.grow(self.trie.position + 99, self.trie.hash, drafted) is None
        assert self.trie.size == before

    @rule(data=st.data(), more=tokens)
    def commit(self, data: st.DataObject, more: list[int]) -> None:
        """The verdict runs along a drafted path for a while, then goes its own way."""
        path = self.model.first_path(data.draw(st.integers(0, 5)))
        commit = (self.trie.position, self.trie.hash, path + more)
        self.commits.append(commit)
        expected = self.model.commit(path + more)
        assert self.trie.commit(path + more) == expected
        self.places.append((self.trie.position, self.trie.hash))

    @rule(data=st.data(), more=tokens)
    def merge_a_commit_that_overlaps(self, data: st.DataObject, more: list[int]) -> None:
        at = data.draw(st.integers(0, self.trie.position))
        committed = list(self.model.trunk[at:])
        fresh = self.trie.merge_commit(at, self.trie.hash_at(at), committed + more)
        assert fresh == more
        self.model.commit(more)
        self.places.append((self.trie.position, self.trie.hash))

    @rule(data=st.data())
    def repeat_a_commit(self, data: st.DataObject) -> None:
        if self.commits:
            before = self.trie.size
            assert self.trie.merge_commit(*data.draw(st.sampled_from(self.commits))) == []
            assert self.trie.size == before

    @rule(data=st.data())
    def a_commit_that_rewrites_is_refused(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, self.trie.position - 1))
        with pytest.raises(PeerError) as caught:
            self.trie.merge_commit(at, self.trie.hash_at(at), [self.model.trunk[at] + 1, 0])
        assert caught.value.code is Code.BAD_FRAME

    @rule()
    def a_commit_at_an_unknown_place_changes_nothing(self) -> None:
        assert self.trie.merge_commit(self.trie.position, self.trie.hash ^ 1, [0]) is None
        assert self.trie.merge_commit(self.trie.position + 1, self.trie.hash, [0]) is None

    @invariant()
    def is_the_model(self) -> None:
        trie, model = self.trie, self.model
        assert tuple(trie.tokens) == model.trunk
        assert (trie.position, trie.hash) == (len(model.trunk), prefix_hash(model.trunk))
        assert [trie.hash_at(end) for end in range(trie.position + 1)] == [
            prefix_hash(model.trunk[:end]) for end in range(len(model.trunk) + 1)
        ]
        assert trie.size == len(model.drafted) <= MAX_NODES
        assert trie.first_path(99) == model.first_path(99)
        assert trie.first_path(2) == model.first_path(2)
        for text in model.drafted:
            assert trie.knows(len(text), prefix_hash(text))
        assert trie.knows(trie.position, trie.hash)
        assert not trie.knows(trie.position, trie.hash ^ 1)
        if trie.position:
            assert not trie.knows(trie.position - 1, trie.hash_at(trie.position - 1))

    @invariant()
    def walks_like_the_model(self) -> None:
        for text in self.model.drafted:
            node = self.trie.root
            for token in text[len(self.model.trunk) :]:
                child = self.trie.child(node, token)
                assert child is not None and child in self.trie and self.trie.token(child) == token
                node = child
            assert self.trie.path(node) == list(text[len(self.model.trunk) :])
            assert self.trie.place(node) == (len(text), prefix_hash(text))

    @invariant()
    def lineages_are_those_of_the_model(self) -> None:
        for text in self.model.texts():
            at, hash = len(text), prefix_hash(text)
            for first in {0, at // 2, max(0, at - 1), at}:
                expected = [(end, prefix_hash(text[:end])) for end in range(first + 1, at + 1)]
                assert self.trie.lineage(at, hash, first) == expected
        assert self.trie.lineage(self.trie.position, self.trie.hash ^ 1, 0) is None


TestTrieMachine = TrieMachine.TestCase
TestTrieMachine.settings = settings(max_examples=25, stateful_step_count=15, deadline=None, report_multiple_bugs=False)


class TwoSidesMachine(RuleBasedStateMachine):
    """A device and a cloud that exchange frames over two queues, each in order; either side may repeat one."""

    @initialize(prompt=st.lists(st.integers(0, 2), min_size=1, max_size=3))
    def start(self, prompt: list[int]) -> None:
        self.device, self.cloud = DraftTrie(prompt, 10**6), DraftTrie(prompt, 10**6)
        self.up: list[tuple[int, int, list[int]]] = []
        self.down: list[tuple[int, int, list[int]]] = []
        self.sent: list[tuple[int, int, list[int]]] = []
        self.decided: list[tuple[int, int, list[int]]] = []

    @rule(drafted=tokens, depth=st.integers(0, 3))
    def device_drafts(self, drafted: list[int], depth: int) -> None:
        path = self.device.first_path(depth)
        node = self.device.root
        for token in path:
            child = self.device.child(node, token)
            assert child is not None
            node = child
        draft = (*self.device.place(node), drafted)
        self.device.grow(*draft)
        self.up.append(draft)
        self.sent.append(draft)

    @rule()
    def draft_arrives(self) -> None:
        if self.up:
            self.cloud.grow(*self.up.pop(0))

    @rule(depth=st.integers(0, 4), own=st.integers(0, 2))
    def cloud_decides(self, depth: int, own: int) -> None:
        place = self.cloud.position, self.cloud.hash
        verdict = [*self.cloud.first_path(depth), own]
        self.cloud.commit(verdict)
        self.down.append((*place, verdict))
        self.decided.append((*place, verdict))

    @rule()
    def commit_arrives(self) -> None:
        if self.down:
            assert self.device.merge_commit(*self.down.pop(0)) is not None

    @rule(data=st.data())
    def a_frame_comes_again(self, data: st.DataObject) -> None:
        """Hazard 7: a repeated frame is merged, not executed again."""
        arrived = len(self.sent) - len(self.up)
        if arrived:
            before = self.cloud.position
            self.cloud.grow(*data.draw(st.sampled_from(self.sent[:arrived])))
            assert self.cloud.position == before
        taken = len(self.decided) - len(self.down)
        if taken:
            text = list(self.device.tokens)
            self.device.merge_commit(*data.draw(st.sampled_from(self.decided[:taken])))
            assert list(self.device.tokens) == text

    @invariant()
    def the_device_is_never_ahead(self) -> None:
        assert list(self.cloud.tokens[: self.device.position]) == list(self.device.tokens)

    def teardown(self) -> None:
        """Once all has arrived, both hold the same text and the same drafts."""
        if not hasattr(self, "device"):
            return
        while self.up:
            self.draft_arrives()
        while self.down:
            self.commit_arrives()
        assert list(self.device.tokens) == list(self.cloud.tokens)
        assert self.device.hash == self.cloud.hash
        assert self.drafts_of(self.device) == self.drafts_of(self.cloud)

    @staticmethod
    def drafts_of(trie: DraftTrie) -> set[Path]:
        found: set[Path] = set()
        waiting: list[tuple[int, Path]] = [(trie.root, ())]
        while waiting:
            node, path = waiting.pop()
            for token in range(3):
                child = trie.child(node, token)
                if child is not None:
                    found.add((*path, token))
                    waiting.append((child, (*path, token)))
        assert len(found) == trie.size
        return found


TestTwoSidesMachine = TwoSidesMachine.TestCase
TestTwoSidesMachine.settings = settings(
    max_examples=30, stateful_step_count=20, deadline=None, report_multiple_bugs=False
)


def test_the_hash_is_the_one_that_the_specification_gives() -> None:
    value = EMPTY_HASH
    for token in (1, 2, 3):
        value = mix64((value + (token + 1) * GAMMA) & MASK)
    assert prefix_hash([1, 2, 3]) == value
    assert prefix_hash([]) == 0


def test_different_tokens_after_one_prefix_have_different_hashes() -> None:
    hashes = {extend_hash(12345, token) for token in range(50_000)}
    assert len(hashes) == 50_000


def test_order_and_length_count() -> None:
    texts = [(1, 2), (2, 1), (1, 2, 0), (0, 1, 2), (0,), (0, 0), ()]
    assert len({prefix_hash(text) for text in texts}) == len(texts)


def test_a_full_trie_takes_what_it_has_already() -> None:
    trie = DraftTrie([1], max_nodes=2)
    assert trie.grow(*trie.place(trie.root), [5, 6]) == 2
    assert trie.grow(*trie.place(trie.root), [5, 6]) == 0
    with pytest.raises(PeerError, match="more than 2 drafted tokens"):
        trie.grow(*trie.place(trie.root), [5, 6, 7])


def test_a_sibling_that_the_verdict_takes_keeps_its_own_drafts() -> None:
    trie = DraftTrie([1], max_nodes=9)
    trie.grow(1, trie.hash, [5, 6, 7, 8], [-1, -1, 1, 2])  # 5, and 6 → 7 → 8
    assert trie.commit([6, 7]) == 2
    assert trie.first_path(9) == [8]
    assert trie.size == 1


@pytest.mark.parametrize(
    ("at", "drafted", "parents", "left"),
    [
        (1, [2, 3, 4], None, [4]),
        (1, [2, 9, 4], None, []),
        (1, [9, 3, 4], None, []),
        (2, [3, 4, 5], None, [4, 5]),
        (2, [3], None, []),
        (3, [4], None, [4]),
        (0, [1, 2, 3, 4], None, [4]),
        (1, [9, 2, 3, 4, 5], [-1, -1, 1, 2, 0], [4]),
    ],
)
def test_a_draft_that_a_commit_overtook_keeps_what_still_fits(
    at: int, drafted: list[int], parents: list[int] | None, left: list[int]
) -> None:
    """The trunk is 1 2 3; what leaves it is stale, with all that grows on it."""
    trie = DraftTrie([1, 2, 3], max_nodes=9)
    assert trie.grow(at, prefix_hash([1, 2, 3][:at]), drafted, parents) == len(left)
    assert trie.first_path(9) == left
    assert trie.size == len(left)


def test_node_ids_are_never_used_twice() -> None:
    """A device keeps ids across commits: one that is gone must not come back as another."""
    trie = DraftTrie([1], max_nodes=9)
    seen: set[int] = {trie.root}
    for token in range(20):
        node = trie.add(trie.root, token)
        assert node not in seen
        seen.add(node)
        trie.commit([token, token + 1])
        assert node not in trie
        assert trie.root not in seen
        seen.add(trie.root)
