"""Texts as token numbers, in sequences of one length. Vocabularies are public: no user's text moves
one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedmf.data.structure import PADDING


@dataclass(frozen=True)
class Vocabulary:
    """Numbers for the pieces of a text; 0 is padding and stands for no piece.

    Args:
        name: bytes or tokenizer.
        size: how many numbers there are, padding included: tokens lie in 1..size − 1.
        digest: SHA-256 in hexadecimal of what decides the numbers.
        encode: gives the tokens of a string, shape (tokens,); bytes that are no UTF-8 count as
            U+FFFD, or as what they are.

    Guarantees: the tokens are a function of the string and the vocabulary alone, and every string,
    also one that is no UTF-8, becomes something.
    """

    name: str
    size: int
    digest: str
    encode: Callable[[bytes], NDArray[np.int64]]

    def __str__(self) -> str:
        """In words, for lists of public inputs."""
        return f"{self.name}, {self.size} numbers, SHA-256 {self.digest}"


def byte_vocabulary() -> Vocabulary:
    """Each byte b is the token b + 1.

    >>> byte_vocabulary().encode("aé".encode()).tolist(), byte_vocabulary().size
    ([98, 196, 170], 257)
    """
    digest = hashlib.sha256(b"fedmf bytes: token = byte + 1").hexdigest()
    return Vocabulary(
        "bytes", 257, digest, lambda text: np.frombuffer(text, dtype=np.uint8).astype(np.int64) + 1
    )


def tokenizer_vocabulary(description: str) -> Vocabulary:
    """Tokens of the library tokenizers (extra ``lm``), of bytes or words; token i has the number i
    + 1.

    A string that the tokenizer rejects counts as empty.

    Args:
        description: what a ``tokenizer.json`` holds.

    Raises:
        ValueError: the library is missing, or the description is none of a tokenizer.
    """
    try:
        import tokenizers
    except ImportError:
        raise ValueError("vocabulary_path needs the extra: pip install 'fedmf[lm]'.") from None
    try:
        tokenizer = tokenizers.Tokenizer.from_str(description)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"vocabulary must be a tokenizer of the library tokenizers: {reason}."
        ) from None

    def encode(text: bytes) -> NDArray[np.int64]:
        try:
            encoded = tokenizer.encode(text.decode("utf-8", "replace"), add_special_tokens=False)
        except (KeyboardInterrupt, SystemExit):
            raise
        except (
            BaseException
        ):  # the library's panics are no Exception; a text must not stop the others
            return np.zeros(0, dtype=np.int64)
        return np.asarray(encoded.ids, dtype=np.int64) + 1

    size = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 2
    return Vocabulary("tokenizer", size, hashlib.sha256(description.encode()).hexdigest(), encode)


def public_vocabulary(path: str) -> Vocabulary:
    """Bytes, or the tokenizer in a public file.

    Args:
        path: of a ``tokenizer.json``; empty for bytes.

    Raises:
        ValueError: the file cannot be used, or the library tokenizers is not there.
    """
    if not path:
        return byte_vocabulary()
    try:
        return tokenizer_vocabulary(Path(path).expanduser().read_text("utf-8", "replace"))
    except OSError as error:
        raise ValueError(
            f"vocabulary_path must be readable; got {path}: {error.strerror}."
        ) from None


def next_tokens(
    tokens: NDArray[np.int64], length: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Cut a string into sequences for predicting each next token.

    With x_0, …, x_L the text, sequence i has the features x_{iT}, …, x_{iT+T−1} and the labels
    x_{iT+1}, …, x_{iT+T}; at the end of the text features are 0 and labels −100.

    Args:
        tokens: the text, shape (L + 1,).
        length: T ≥ 1.

    Returns:
        Features and labels, shape (⌈L/T⌉, T). A string of fewer than two tokens has none.

    >>> features, labels = next_tokens(np.array([5, 6, 7, 8]), 2)
    >>> features.tolist(), labels.tolist()
    ([[5, 6], [7, 0]], [[6, 7], [8, -100]])
    """
    pairs = max(0, len(tokens) - 1)
    missing = (0, -pairs % length)
    features = np.pad(tokens[:pairs], missing)
    labels = np.pad(tokens[1 : pairs + 1], missing, constant_values=PADDING)
    return features.reshape(-1, length), labels.reshape(-1, length)


def evenly(count: int, most: int | None) -> NDArray[np.int64]:
    """At most so many of 0, …, count − 1, evenly spaced: all of them where ``most`` is None.

    >>> evenly(10, 4).tolist(), evenly(3, 4).tolist()
    ([0, 2, 5, 7], [0, 1, 2])
    """
    kept = count if most is None else min(count, most)
    return np.arange(kept) * count // max(kept, 1)


def padded(tokens: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """The first T tokens of a string, padded with zeros: shape (1, T).

    >>> padded(np.array([5, 6]), 3).tolist()
    [[5, 6, 0]]
    """
    return np.pad(tokens[:length], (0, max(0, length - len(tokens))))[None]
