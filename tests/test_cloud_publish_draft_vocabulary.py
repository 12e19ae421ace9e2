"""Which tokens can be drafted."""

import pytest

from cloud.publish.draft_vocabulary import default_size, draft_ids
from shared.errors import BadInput

SMOLLM2_135M = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
}


def test_the_lowest_ids_and_the_stops_are_drafted_in_ascending_order() -> None:
    assert draft_ids(100, 6, [2, 90, 91]).tolist() == [0, 1, 2, 3, 90, 91]
    assert draft_ids(100, 6, [2, 2]).tolist() == [0, 1, 2, 3, 4, 5]
    assert draft_ids(5, 5, [1]).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("size", [0, 2, 101])
def test_a_size_that_leaves_no_token_or_exceeds_the_vocabulary_is_refused(size: int) -> None:
    with pytest.raises(BadInput, match="use 3 to 100"):
        draft_ids(100, size, [2, 90])


def test_the_head_is_cut_where_it_is_dear() -> None:
    assert default_size(SMOLLM2_135M, 10) == 24576
    assert default_size(SMOLLM2_135M, 28) == 49152
    assert default_size({**SMOLLM2_135M, "vocab_size": 8000}, 1) == 8000
