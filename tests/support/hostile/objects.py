"""Changes of the objects in which a reply lies on the link."""

from __future__ import annotations

import json
from collections.abc import Callable

from support.hostile.replies import Draw


def _bits(objects: dict[str, bytes], root: str, draw: Draw) -> str:
    """Bits of any object but the numbers themselves."""
    victim = draw.choice(list(objects))
    data = bytearray(objects[victim])
    for _ in range(draw.choice([1, 1, 3, 20])):
        place = draw.randrange(min(len(data), 140) if data.startswith(b"ArrayChunk") else len(data))
        data[place] ^= 1 << draw.randrange(8)
    objects[victim] = bytes(data)
    return root


def _cut(objects: dict[str, bytes], root: str, draw: Draw) -> str:
    victim = draw.choice(list(objects))
    objects[victim] = objects[victim][: draw.randrange(len(objects[victim]))]
    return root


def _missing(objects: dict[str, bytes], root: str, draw: Draw) -> str:
    objects[draw.choice(list(objects))] = b""
    return root


def _foreign_child(objects: dict[str, bytes], root: str, draw: Draw) -> str:
    """An object that names another one of the reply as its child."""
    names = list(objects)
    for _ in range(100):
        parent, old, new = (draw.choice(names) for _ in range(3))
        if old != new and old.encode() in objects[parent]:
            objects[parent] = objects[parent].replace(old.encode(), new.encode())
            return root
    objects[root] = b""
    return root


def _not_a_message(objects: dict[str, bytes], root: str, draw: Draw) -> str:
    return draw.choice([name for name in objects if name != root])


def _bomb(objects: dict[str, bytes], root: str, draw: Draw) -> str:
    """An array that names its one chunk very often."""
    for name, content in objects.items():
        if content.startswith(b"Array "):
            head, body = content.split(b"\0", 1)
            described = {**json.loads(body), "arraychunk_ids": [0] * 3 * 10**5}
            body = json.dumps(described).encode()
            objects[name] = b" ".join([*head.split(b" ")[:-1], str(len(body)).encode()]) + b"\0" + body
            break
    return root


#: Changes of the objects in which a reply lies on the link.
OF_OBJECTS: dict[str, Callable[[dict[str, bytes], str, Draw], str]] = {
    "bits of an object": _bits,
    "an object cut": _cut,
    "an object missing": _missing,
    "another child": _foreign_child,
    "not a message": _not_a_message,
    "a chunk named often": _bomb,
}
