"""From files of answered prompts to fitted exit entries, each with its recipe and what it reaches on text held out."""

from collections.abc import Sequence
from pathlib import Path
from random import Random

import torch

from cloud.publish.conversations import ChatFormat, read_conversations
from cloud.publish.exit_entry import EntryRecipe, save_entry
from cloud.publish.exit_fit import agreement, fit_entries
from cloud.publish.split import check_cut
from cloud.publish.tokenizer_files import tokenizer_files
from cloud.source import ModelSource
from cloud.target import load_target
from shared.bundle import Progress
from shared.errors import BadInput

# Answers whose agreement is measured, and which the fit doesn't see.
HELD_OUT = 30
MAX_TOKENS = 512


def fit(
    source: ModelSource,
    cuts: Sequence[int],
    data: Sequence[Path],
    out: Path,
    conversations: int,
    seed: int,
    progress: Progress,
) -> dict[Path, EntryRecipe]:
    """Fit an entry for each cut on so many conversations, drawn by `seed`, and write `cut<N>.safetensors` into `out`.

    The answers should be the model's own. Raises BadInput for cuts that can't be, and for files that can't be used or
    hold too little.
    """
    for cut in cuts:
        check_cut(source.config, cut)
    known = read_conversations(data)
    if conversations < 1 or len(known) < HELD_OUT + conversations:
        raise BadInput(
            f"{conversations} conversations and {HELD_OUT} held out are wanted, and the files hold {len(known)}; "
            f"use --conversations {max(1, len(known) - HELD_OUT)} or more text"
        )
    chat = ChatFormat(tokenizer_files(source))
    drawn = Random(seed).sample(known, HELD_OUT + conversations)
    pairs = [chat.answered_ids(conversation) for conversation in drawn]
    held = [(prompt, answer[: max(0, MAX_TOKENS - len(prompt))]) for prompt, answer in pairs[:HELD_OUT]]
    held = [(prompt, answer) for prompt, answer in held if answer]
    texts = [[*prompt, *answer][:MAX_TOKENS] for prompt, answer in pairs[HELD_OUT:]]
    progress("load the model", 0, 1)
    model = load_target(source, torch.float32)
    progress("load the model", 1, 1)
    entries = fit_entries(model, texts, cuts, lambda done, total: progress("read the text", done, total))
    rows = sum(len(ids) - 1 for ids in texts)
    longest = max(map(len, texts))
    names = ", ".join(sorted(path.name for path in data))
    reached = agreement(model, held, entries, lambda done, total: progress("measure", done, total))
    out.mkdir(parents=True, exist_ok=True)
    made = {}
    for cut, entry in entries.items():
        recipe = EntryRecipe(source.weights_sha256, cut, rows, f"{names}; seed {seed}", longest, round(reached[cut], 4))
        path = out / f"cut{cut}.safetensors"
        save_entry(path, entry, recipe)
        made[path] = recipe
    return made
