"""Texts as token numbers: vocabularies, sequences, and the modules of Python's standard library as users."""

from fedmf.data.text.code_tokens import CodeTokens
from fedmf.data.text.installed_modules import StandardLibrary, standard_library
from fedmf.data.text.sequences import PADDING, evenly, next_tokens, padded, tagged
from fedmf.data.text.vocabulary import (
    BpeVocabulary,
    ByteVocabulary,
    Vocabulary,
    WordVocabulary,
    public_vocabulary,
)

__all__ = [
    "PADDING",
    "BpeVocabulary",
    "ByteVocabulary",
    "CodeTokens",
    "StandardLibrary",
    "Vocabulary",
    "WordVocabulary",
    "evenly",
    "next_tokens",
    "padded",
    "public_vocabulary",
    "standard_library",
    "tagged",
]
