"""The exit where nothing was fitted to it: the model's own last block, its input shifted to where it expects it.

The residual stream has a large mean that grows from layer to layer, and the last block is tuned to the mean it meets.
Fed from the cut as it is, it drafts next to nothing; with the two means' difference added it agrees with the full model
on a good part of the tokens from some four fifths of the depth on. The difference is measured on a short fixed text.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedModel

from cloud.publish.exit_fit import residuals

CALIBRATION_CHAT = (
    (
        "What is the capital of France, and what is it known for?",
        "The capital of France is Paris. It is known for the Eiffel Tower, the Louvre, its cafes and its long history "
        "of art and fashion. Millions of people visit the city every year.",
    ),
    (
        "Write a Python function that adds up the even numbers in a list.",
        "Here is a function that does this:\n\n```python\ndef sum_even(numbers):\n    total = 0\n"
        "    for n in numbers:\n        if n % 2 == 0:\n            total += n\n    return total\n```\n\nIt goes "
        "through the list, and adds each number that can be divided by 2 without a remainder.",
    ),
    (
        "Tom has 12 apples. He gives 5 to Ann and buys 8 more. How many has he now?",
        "Tom starts with 12 apples. After giving 5 to Ann he has 12 - 5 = 7. Then he buys 8 more, so he has 7 + 8 = 15 "
        "apples. The answer is 15.",
    ),
    (
        "Give me three tips for sleeping better.",
        "1. Go to bed at the same time every day, so that your body gets used to it.\n2. Keep your room dark, quiet "
        "and cool.\n3. Avoid screens, coffee and heavy meals in the hours before you go to bed.",
    ),
)


def exit_shift(model: PreTrainedModel, texts: Sequence[Sequence[int]], cut: int) -> NDArray[np.float32]:
    """Mean residual before the last block less that after `cut` layers: float32 `[d]`, over the given token ids.

    Rounded to hundredths, far below its size, so that builds on different machines come out the same.
    """
    width = model.config.hidden_size
    here, there, rows = np.zeros(width), np.zeros(width), 0
    for ids in texts:
        states = residuals(model, ids)
        # The first position's residual is an outlier many times as long as the others.
        here += states[cut][1:].double().sum(0).numpy()
        there += states[-2][1:].double().sum(0).numpy()
        rows += len(ids) - 1
    return np.round((there - here) / rows, 2).astype(np.float32)
