"""Token sequences of one length from texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

#: The label of a position that counts for nothing, as everywhere in torch.
PADDING: Final = -100


def next_tokens(
    tokens: NDArray[np.int64], length: int, most: int | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Cut a text into sequences, each token of which is to predict the one that follows.

    With x_0, …, x_L the text, sequence i has the features x_{iT}, …, x_{iT+T−1} and the labels
    x_{iT+1}, …, x_{iT+T}; at the end of the text features are 0 and labels −100.

    Args:
        tokens: the text, shape (L + 1,).
        length: T ≥ 1.
        most: at most so many sequences, evenly spaced over the text; None for all ⌈L/T⌉.

    Returns:
        Features and labels, shape (sequences, T). A text of fewer than two tokens has none.

    >>> features, labels = next_tokens(np.array([5, 6, 7, 8]), 2)
    >>> features.tolist(), labels.tolist()
    ([[5, 6], [7, 0]], [[6, 7], [8, -100]])
    """
    pairs = max(0, len(tokens) - 1)
    sequences = -(-pairs // length)
    features = np.zeros(sequences * length, dtype=np.int64)
    labels = np.full(sequences * length, PADDING, dtype=np.int64)
    features[:pairs], labels[:pairs] = tokens[:pairs], tokens[1 : pairs + 1]
    chosen = evenly(sequences, most)
    return features.reshape(-1, length)[chosen], labels.reshape(-1, length)[chosen]


def evenly(count: int, most: int | None) -> NDArray[np.int64]:
    """At most so many of 0, …, count − 1, evenly spaced: all of them where ``most`` is None.

    >>> evenly(10, 4).tolist(), evenly(3, 4).tolist()
    ([0, 2, 5, 7], [0, 1, 2])
    """
    if most is None or count <= most:
        return np.arange(count)
    return np.arange(most) * count // most


def padded(tokens: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """The first T tokens of a text, zeros behind its end: shape (1, T).

    >>> padded(np.array([5, 6]), 3).tolist()
    [[5, 6, 0]]
    """
    row = np.zeros((1, length), dtype=np.int64)
    row[0, : len(tokens)] = tokens[:length]
    return row


def tagged(
    pieces: Sequence[NDArray[np.int64]], tags: Sequence[str], classes: Sequence[str], length: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pieces of a text with a tag each, cut into sequences of T tokens.

    Args:
        pieces: tokens of each piece; its first one carries the tag, the others −100.
        tags: of the pieces; one that is missing or none of the classes is −100.
        classes: the tags that there are.
        length: T.

    Returns:
        Features and labels, shape (sequences, T).

    >>> features, labels = tagged([np.array([7, 8]), np.array([9])], ["N", "?"], ["V", "N"], 2)
    >>> features.tolist(), labels.tolist()
    ([[7, 8], [9, 0]], [[1, -100], [-100, -100]])
    """
    place = {name: number for number, name in enumerate(classes)}
    tokens = np.concatenate([np.arange(0), *pieces])
    marks = np.full(tokens.size, PADDING, dtype=np.int64)
    starts = np.cumsum([0, *(len(piece) for piece in pieces)])
    for piece, start, tag in zip(pieces, starts[:-1], tags, strict=False):
        if len(piece):
            marks[start] = place.get(tag, PADDING)
    count = -(-tokens.size // length)
    features = np.zeros(count * length, dtype=np.int64)
    labels = np.full(count * length, PADDING, dtype=np.int64)
    features[: tokens.size], labels[: tokens.size] = tokens, marks
    return features.reshape(-1, length), labels.reshape(-1, length)
