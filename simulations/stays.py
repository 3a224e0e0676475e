"""Count the functions and files of the package through which a pushed row travels until it is committed.

    python simulations/stays.py [--json]

One row of three numbers is pushed to a stream that is warm, under `sys.setprofile`; every Python function of
the package that is entered counts once, and so does its file.
"""

from __future__ import annotations

import argparse
import collections
import json
import sys
import tempfile
from pathlib import Path
from types import FrameType

import fedmf


def travelled(package: Path) -> dict[str, set[str]]:
    """The functions entered by one push, by file."""
    seen: dict[str, set[str]] = collections.defaultdict(set)

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(package)):
            name = Path(frame.f_code.co_filename).relative_to(package).as_posix()
            seen[name].add(f"{frame.f_code.co_qualname}:{frame.f_code.co_firstlineno}")

    with tempfile.TemporaryDirectory() as folder:
        asked = {"epsilon": 8.0, "delta": 1e-5, "clip_norm": 1.0, "dimension": 3, "rounds": 100, "seed": 0}
        with fedmf.PrivateStream(Path(folder) / "state", **asked) as stream:
            for i in range(5):
                stream.push([0.1, 0.2, 0.3], user=f"u{i}")
            sys.setprofile(profile)
            stream.push([0.1, 0.2, 0.3], user="ann", key="order 17")
            sys.setprofile(None)
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args()
    seen = travelled(Path(fedmf.__file__).resolve().parent)
    found = {"functions": sum(map(len, seen.values())), "files": len(seen)}
    if options.json:
        print(json.dumps({**found, "by_file": {name: sorted(names) for name, names in sorted(seen.items())}}))
        return
    print(f"a pushed row: {found['functions']} functions in {found['files']} files")
    for name, names in sorted(seen.items()):
        print(f"  {name:<50}{len(names):>4}")


if __name__ == "__main__":
    main()
