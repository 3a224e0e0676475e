"""Conversion of texts to token numbers, in sequences of one length.

Vocabularies are public: no user's text changes one.
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
        name: "bytes" or "tokenizer".
        size: count of the numbers, padding included: tokens lie in 1..size − 1.
        digest: SHA-256 in hexadecimal of the description that decides the numbers.
        encode: returns the tokens of a string, shape (tokens,). A tokenizer reads bytes that are
            not UTF-8 as U+FFFD.

    Guarantees: the tokens are a function of the string and the vocabulary alone, and every string
    has tokens, even if it is not UTF-8.
    """

    name: str
    size: int
    digest: str
    encode: Callable[[bytes], NDArray[np.int64]]

    def __str__(self) -> str:
        """Return name, size and digest, for lists of public inputs."""
        return f"{self.name}, {self.size} numbers, SHA-256 {self.digest}"


def byte_vocabulary() -> Vocabulary:
    """Return the vocabulary in which each byte b is the token b + 1.

    >>> byte_vocabulary().encode("aé".encode()).tolist(), byte_vocabulary().size
    ([98, 196, 170], 257)
    """
    digest = hashlib.sha256(b"fedmf bytes: token = byte + 1").hexdigest()

    def encode(text: bytes) -> NDArray[np.int64]:
        return np.frombuffer(text, dtype=np.uint8).astype(np.int64) + 1

    return Vocabulary("bytes", 257, digest, encode)


def tokenizer_vocabulary(description: str) -> Vocabulary:
    """Return the vocabulary of a tokenizer of the library tokenizers (extra ``lm``).

    Token i has the number i + 1. A string that the tokenizer rejects counts as empty.

    Args:
        description: content of a ``tokenizer.json``.

    Raises:
        ValueError: the library is missing, or the description is not that of a tokenizer.
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
        except BaseException:  # includes the library's panics: a text must not stop the others
            return np.zeros(0, dtype=np.int64)
        return np.asarray(encoded.ids, dtype=np.int64) + 1

    size = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 2
    return Vocabulary("tokenizer", size, hashlib.sha256(description.encode()).hexdigest(), encode)


def public_vocabulary(path: str) -> Vocabulary:
    """Return the vocabulary of the tokenizer in a public file, or of bytes.

    Args:
        path: path of a ``tokenizer.json``; empty for bytes.

    Raises:
        ValueError: the file cannot be used, or the library tokenizers is missing.
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
    """Cut a text into sequences for predicting each next token.

    With x_0, …, x_L the text, sequence i has the features x_{iT}, …, x_{iT+T−1} and the labels
    x_{iT+1}, …, x_{iT+T}; at the end of the text features are 0 and labels −100.

    Args:
        tokens: the text, shape (L + 1,).
        length: T ≥ 1.

    Returns:
        Features and labels, shape (⌈L/T⌉, T). A text of fewer than two tokens has none.

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
    """Return at most ``most`` of 0, …, count − 1, evenly spaced; all of them if it is None.

    >>> evenly(10, 4).tolist(), evenly(3, 4).tolist()
    ([0, 2, 5, 7], [0, 1, 2])
    """
    if most is None or count <= most:
        return np.arange(count)
    return np.arange(most) * count // most


def padded(tokens: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """Return the first T tokens of a text, padded with zeros, shape (1, T).

    >>> padded(np.array([5, 6]), 3).tolist()
    [[5, 6, 0]]
    """
    return np.pad(tokens[:length], (0, max(0, length - len(tokens))))[None]
