"""One answer from its prompt to its end: drafts, sends, takes verdicts, and goes on alone when the link is gone.

Runs in the thread that owns the draft model. Whether to go on alone is decided by the link, never by a refusal
(hazard 20).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from edge.answer import Answer
from edge.drafter import Drafter
from edge.link_events import Declined, Fatal, FrameReceived, LinkDown, LinkEvent, LinkUp
from edge.pacing import FixedPacing
from edge.plan import Plan, WhenBack
from edge.statistics import Statistics
from edge.uplink import Uplink
from shared.errors import Code, LinkLost, PeerError, Refused
from shared.frames import Cancel, Commit, Draft, Finish, HiddenRows, Open, Opened, Refuse
from shared.hidden_codec import bytes_per_row, encode_rows
from shared.params import Placement

# Room in a frame for all but its hidden states, in bytes.
FRAME_OVERHEAD = 16384
# How long one wait for an event lasts at most, in seconds, so that Ctrl-C is never held up.
WAIT = 0.5


class StopCheck(Protocol):
    """Looks for stop strings as tokens come: `edge.answer_text.AnswerText`."""

    def extend(self, tokens: Sequence[int]) -> int | None:
        """Take all committed tokens of the answer; how many to keep when a stop string has come, else None."""
        ...

    def stop_in(self, drafted: Sequence[int]) -> int | None:
        """As `extend`, for drafted tokens that may yet be taken back: nothing is remembered."""
        ...


class Generation:
    """The loop around one Answer. `uplink` is None for an answer that stays on the device."""

    def __init__(
        self,
        answer: Answer,
        drafter: Drafter,
        text: StopCheck,
        uplink: Uplink | None,
        plan: Plan,
        clock: Callable[[], float],
    ) -> None:
        self.answer = answer
        self.text = text
        self.statistics = Statistics()
        self.lost: LinkLost | None = None
        self._drafter = drafter
        self._uplink = uplink if plan.placement is not Placement.LOCAL else None
        self._plan = plan
        self._clock = clock
        self._session: int | None = None
        self._opened_at = 0
        self._sent_at: float | None = None
        self._retry_at: float | None = None
        self._give_up_at: float | None = None
        self._ended_alone_at: float | None = None

    @property
    def alone(self) -> bool:
        """Whether the device now writes without the cloud."""
        return self._uplink is None or self._uplink.lost

    def run(self) -> Iterator[None]:
        """Make the answer; yields whenever there is something new to show.

        Raises Refused, PeerError or BadInput when the cloud declines for good; what was committed stays in `answer`.
        """
        self.statistics.started = self._clock()
        start = self._channel_bytes()
        try:
            if self._uplink is not None and self._uplink.up:
                self._open(self._uplink)
            while self.answer.finish_reason is None:
                changed = self._take_events(0.0)
                if self.answer.finish_reason is None:
                    changed |= self._advance()
                if changed:
                    yield
        finally:
            if self._session is not None and self.answer.finish_reason is None:
                self._send(Cancel(self._session))
            self.statistics.finished = self._clock()
            self.statistics.bytes_up, self.statistics.bytes_down = (
                now - before for now, before in zip(self._channel_bytes(), start, strict=True)
            )

    def _advance(self) -> bool:
        """Do the next thing there is to do; whether it changed what is shown."""
        if self.alone:
            return self._write_alone()
        if self._session is None:
            self._drafter.sync(self.answer.trie.tokens, self.answer.drafted)
            return self._wait_to_open()
        return self._write_with_cloud(self._session)

    def _write_alone(self) -> bool:
        if self._ended_alone_at is not None:
            return self._end_alone(self._ended_alone_at)
        if self.answer.can_draft:
            self._draft_one()
            self.statistics.local_tokens += 1
            self.statistics.saw_token(self._clock())
        if not self.answer.can_draft or self.text.stop_in(self.answer.drafted) is not None:
            self._ended_alone_at = self._clock()
        return True

    def _end_alone(self, since: float) -> bool:
        """End with what was written alone, unless a link that was just lost comes back to revise it."""
        linger = self._plan.linger_s if self._plan.when_back is WhenBack.REVISE and self.statistics.links_lost else 0.0
        if self._clock() - since < linger:
            return self._take_events(WAIT)
        if self.answer.can_draft:
            self.answer.keep_local()
        else:
            self.answer.finish_locally()
        self._commit_text()
        return True

    def _write_with_cloud(self, session: int) -> bool:
        answer, pacing = self.answer, self._pacing()
        room = pacing.window - answer.in_flight - answer.unsent
        if self._plan.placement is Placement.EDGE and room > 0 and answer.worth_drafting:
            self._draft_one()
            if room == 1 or answer.unsent >= pacing.draft_length or not answer.worth_drafting:
                self._send_draft(session)
            return True
        if answer.unsent and answer.in_flight < self._max_in_flight():
            self._send_draft(session)
        elif not answer.awaits_verdict and self._plan.placement is not Placement.AR:
            self._send_draft(session)
        else:
            if self._plan.placement is Placement.AR:
                # Drafting keeps the cache warm by itself; here this is what lets the device go on within one token's
                # time when the link is lost.
                self._drafter.sync(answer.trie.tokens, answer.drafted)
            return self._take_events(WAIT)
        return False

    def _wait_to_open(self) -> bool:
        now = self._clock()
        if self._retry_at is not None and now >= self._retry_at and self._uplink is not None:
            self._open(self._uplink)
            return False
        return self._take_events(WAIT if self._retry_at is None else min(WAIT, self._retry_at - now))

    def _draft_one(self) -> None:
        self._feed()
        began = self._clock()
        self.answer.grow(self._drafter.next_token())
        self.statistics.draft_s += self._clock() - began
        self.statistics.draft_steps += 1

    def _feed(self) -> None:
        """Bring the draft model's cache to the tip."""
        began = self._clock()
        self._drafter.sync(self.answer.trie.tokens, self.answer.drafted)
        self.statistics.draft_s += self._clock() - began

    def _send_draft(self, session: int) -> None:
        if self._plan.hidden is not None:
            # The row of the last draft is wanted too, and nothing else has fed it yet.
            self._feed()
        began = self._clock()
        draft = self.answer.take_draft(session, self._max_in_flight() - self.answer.in_flight)
        if self._plan.hidden is not None:
            draft = self._with_hidden(draft, self._plan.hidden)
        self._send(draft)
        self._sent_at = began
        self.statistics.send_s += self._clock() - began

    def _with_hidden(self, draft: Draft, codec: str) -> Draft:
        """Add the residuals that the cloud lacks: of the drafts, and of its own last token where there is one."""
        on_cloud_token = draft.at == self.answer.trie.position > self._opened_at
        first = draft.at - 1 if on_cloud_token else draft.at
        rows = self._drafter.rows(first, draft.at + len(draft.tokens))
        return replace(draft, hidden=HiddenRows(codec, first, encode_rows(rows, codec)))

    def _take_events(self, timeout: float) -> bool:
        """Take what has come, waiting up to `timeout` seconds for the first; whether what is shown changed."""
        if self._uplink is None:
            return False
        changed = False
        event = self._uplink.take(timeout)
        while event is not None:
            changed |= self._on_event(event, self._uplink)
            if self.answer.finish_reason is not None:
                return True
            event = self._uplink.take(0.0)
        return changed

    def _on_event(self, event: LinkEvent, uplink: Uplink) -> bool:
        match event:
            case LinkUp():
                if self._plan.when_back is WhenBack.KEEP and self.lost is not None:
                    self.answer.keep_local()
                    self._commit_text()
                self._open(uplink)
            case LinkDown(error=error):
                self.lost = error
                self.statistics.links_lost += self._session is not None
                self._session = None
                self._sent_at = None
                self._retry_at = None
            case Declined(error=refused, retry_in_s=wait):
                self._session = None
                self._sent_at = None
                if not self.alone:
                    self._be_patient(refused, wait)
            case Fatal(error=error):
                self._session = None
                raise error
            case FrameReceived(frame=Opened() | Commit() | Finish() | Refuse() as frame):
                if frame.session == self._session:
                    return self._on_frame(frame, uplink)
                return False
            case FrameReceived():
                # A Drain ends in a lost link, which the link itself repairs.
                return False
        return True

    def _on_frame(self, frame: Opened | Commit | Finish | Refuse, uplink: Uplink) -> bool:
        match frame:
            case Opened(at=at, hash=hash):
                if (at, hash) != (self.answer.trie.position, self.answer.trie.hash):
                    raise PeerError(Code.BAD_FRAME, "the cloud opened this session on another text")
            case Commit():
                return self._on_commit(frame)
            case Finish():
                self._session = None
                if not self.answer.finish(frame):
                    self._open(uplink)
                return True
            case Refuse():
                self._session = None
                self._on_refusal(frame, uplink)
                return True
        return False

    def _on_commit(self, frame: Commit) -> bool:
        began = self._clock()
        fresh = self.answer.commit(frame)
        if fresh is None:
            return False
        self._give_up_at = None
        self.statistics.committed(frame, None if self._sent_at is None else began - self._sent_at)
        self._sent_at = None
        self.statistics.saw_token(began)
        self._commit_text()
        self.statistics.commit_s += self._clock() - began
        return True

    def _commit_text(self) -> None:
        """Turn committed tokens into text; a stop string ends the answer before it."""
        keep = self.text.extend(self.answer.tokens)
        if keep is None:
            return
        self.answer.cut(keep)
        if self._session is not None:
            self._send(Cancel(self._session))
            self._session = None

    def _on_refusal(self, refuse: Refuse, uplink: Uplink) -> None:
        if refuse.code is Code.DRAINING:
            return
        if refuse.code is Code.IDLE:
            self._open(uplink)
            return
        refused = Refused(refuse.code, refuse.message, refuse.retry_after)
        if refuse.code is not Code.BUSY or refuse.retry_after is None:
            raise refused
        self._be_patient(refused, refuse.retry_after)
        self._retry_at = self._clock() + refuse.retry_after

    def _be_patient(self, refused: Refused, wait: float) -> None:
        """Let a full cloud be asked again after `wait` seconds, or raise `refused` when that has gone on too long."""
        now = self._clock()
        if self._give_up_at is None:
            self._give_up_at = now + self._plan.busy_patience_s
        if now + wait > self._give_up_at:
            raise refused

    def _open(self, uplink: Uplink) -> None:
        if self.answer.finish_reason is not None:
            return
        self.lost = None
        self._retry_at = None
        self._ended_alone_at = None
        self._session = uplink.new_session()
        self._opened_at = self.answer.trie.position
        self._send(self.answer.open(self._session, self._plan.placement, self._plan.hidden))

    def _pacing(self) -> FixedPacing:
        assert self._uplink is not None and self._uplink.limits is not None, "a session is open"
        return self._plan.pacing.within(self._uplink.limits.max_draft_nodes)

    def _max_in_flight(self) -> int:
        """How many drafted tokens may wait for a verdict, so that they also fit into one frame."""
        assert self._uplink is not None and self._uplink.limits is not None, "a session is open"
        limits = self._uplink.limits
        if self._plan.hidden is None:
            return limits.max_draft_nodes
        row = bytes_per_row(self._plan.hidden, self._drafter.hidden_size)
        return max(1, min(limits.max_draft_nodes, (limits.max_frame_bytes - FRAME_OVERHEAD) // row - 1))

    def _send(self, frame: Draft | Cancel | Open) -> None:
        assert self._uplink is not None
        self._uplink.channel.send(frame)

    def _channel_bytes(self) -> tuple[int, int]:
        if self._uplink is None:
            return 0, 0
        return self._uplink.channel.bytes_up, self._uplink.channel.bytes_down
