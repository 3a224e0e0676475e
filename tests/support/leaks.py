"""A secret that tests plant, and whether a text shows it."""

from __future__ import annotations

import traceback

SECRET = bytes(range(100, 132))


def shows_secret(text: str) -> bool:
    forms = (
        SECRET.hex(),
        SECRET.hex().upper(),
        repr(SECRET)[2:-1],
        str(list(SECRET))[1:-1],
        SECRET.decode("latin-1"),
    )
    return any(form in text for form in forms)


def chain_text(error: BaseException) -> str:
    return "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())
