"""A bundle that is open on this device, with its link to the cloud: makes one answer after the other."""

import time
from collections.abc import Sequence
from types import TracebackType

from edge.answer import Answer
from edge.answer_text import AnswerText
from edge.config import DeviceConfig
from edge.drafter import Drafter
from edge.generation import Generation
from edge.link import Link
from edge.link_config import LinkConfig
from edge.onnx_model import open_model
from edge.tokenizer import BundleTokenizer, Message
from edge.uplink import Uplink
from shared.bundle import load_manifest, verify_files
from shared.errors import BadInput
from shared.params import Placement


class Device:
    """Owns the draft model, the tokenizer and the link; used as a context manager, by one thread."""

    def __init__(self, config: DeviceConfig) -> None:
        """Raises BundleError for a bundle whose files are not what its manifest says."""
        self.config = config
        self.manifest = load_manifest(config.bundle)
        verify_files(config.bundle, self.manifest)
        self.tokenizer = BundleTokenizer(config.bundle)
        self.model = open_model(config.bundle, self.manifest, threads=config.threads)
        self.link: Link | None = None
        self._uplink: Uplink | None = None
        if config.plan.placement is not Placement.LOCAL:
            self.link = Link(LinkConfig(config.cloud, self.manifest.identity, token=config.token, ca=config.ca))
            self._uplink = Uplink(self.link)

    def __enter__(self) -> "Device":
        if self.link is not None:
            self.link.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.link is not None:
            self.link.close()
        self.model.close()

    def chat(self, messages: Sequence[Message]) -> tuple[Generation, AnswerText]:
        """The answer to a conversation, not yet begun, and its text.

        Raises BadInput for a conversation that the template refuses or that leaves no room for an answer.
        """
        if self.config.system is not None:
            messages = [Message("system", self.config.system), *messages]
        return self.complete(self.tokenizer.encode_chat(messages))

    def complete(self, prompt: Sequence[int]) -> tuple[Generation, AnswerText]:
        """The continuation of token ids, not yet begun, and its text."""
        config = self.config
        if not prompt:
            raise BadInput("the prompt is empty; say something")
        if len(prompt) >= self.model.max_context:
            raise BadInput(
                f"the prompt has {len(prompt)} tokens; the context holds {self.model.max_context} with the answer"
            )
        stop_ids = frozenset(self.manifest.stop_ids)
        answer = Answer(prompt, config.params, config.max_tokens, stop_ids, self.model.max_context)
        drafter = Drafter(self.model, config.params, len(prompt), keep_hidden=config.plan.hidden is not None)
        text = AnswerText(self.tokenizer, config.stops)
        return Generation(answer, drafter, text, self._uplink, config.plan, time.monotonic), text
