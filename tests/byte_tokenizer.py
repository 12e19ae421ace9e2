"""Small byte-level tokenizers, made in the test's process."""

import json
from collections.abc import Iterable, Sequence

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from edge.token_bytes import TokenBytes, token_bytes


def byte_level_tokenizer(texts: Iterable[str], special: Sequence[str] = (), vocab_size: int = 300) -> Tokenizer:
    """A byte-level BPE tokenizer trained on a few texts: all bytes, and some merges."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def byte_table(special: Sequence[str] = ()) -> TokenBytes:
    """Ids 0 to 255 are the bytes themselves; special tokens follow."""
    pieces = [bytes([byte]) for byte in range(256)]
    return TokenBytes(
        pieces=(*pieces, *(name.encode() for name in special)),
        special=frozenset(range(256, 256 + len(special))),
    )


def table_of(tokenizer: Tokenizer) -> TokenBytes:
    """The byte table of a tokenizer."""
    return token_bytes(json.loads(tokenizer.to_str()))
