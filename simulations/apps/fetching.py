"""Apps of another repository at one commit, and environments in which they run."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
#: What the project brings itself, in the version that it is tested with.
OURS: Final = ("flwr", "flwr-datasets", "ray")
#: Of these the builds without CUDA are taken.
_TORCH: Final = ("torch", "torchvision")


class FetchError(RuntimeError):
    """A repository or a package cannot be had; the message is one line."""


def fetched(repository: str, commit: str, folders: Iterable[str], place: Path) -> Path:
    """Check out some folders of one commit, and load nothing else.

    Args:
        repository: address or path.
        commit: its whole hash.
        folders: to check out.
        place: where; a checkout that is there is taken further.

    Returns:
        ``place``.
    """
    place.mkdir(parents=True, exist_ok=True)
    wanted = [f"/{folder}/" for folder in sorted(set(folders))]
    stamp = place / ".git" / f"holds-{_digest(repository, commit, wanted)}"
    if stamp.exists():
        return place
    git = ["git", "-C", str(place)]
    # A repository on this disk serves part of itself only if its own end is told to.
    serve = "git -c uploadpack.allowFilter=true -c uploadpack.allowAnySHA1InWant=true upload-pack"
    if not (place / ".git").exists():
        done(["git", "init", "--quiet", str(place)])
        done([*git, "remote", "add", "origin", repository])
        done([*git, "config", "remote.origin.uploadpack", serve])
    try:
        done([*git, "fetch", "--quiet", "--depth", "1", "--filter=blob:none", "origin", commit])
    except FetchError as error:
        raise FetchError(
            f"{error} Needed is {repository} at {commit[:10]}; where that is out of reach, give a clone on "
            "this disk: make apps APPS='--repository /path/to/flower'."
        ) from None
    done([*git, "sparse-checkout", "set", "--no-cone", *wanted])
    done([*git, "checkout", "--quiet", "--force", commit])
    stamp.touch()
    return place


def name_of(requirement: str) -> str:
    """The package that a requirement is about.

    >>> name_of("flwr-datasets[vision]>=0.6.0")
    'flwr-datasets'
    """
    return re.split(r"[^\w.-]", requirement.strip())[0].lower()


def requirements(apps: Iterable[Path]) -> list[str]:
    """What apps ask for in their ``pyproject.toml``, without what the project brings."""
    asked = set[str]()
    for app in apps:
        project = tomllib.loads((app / "pyproject.toml").read_text())["project"]
        asked |= {one for one in project["dependencies"] if name_of(one) not in OURS}
    return sorted(asked)


def pinned(names: Sequence[str] = OURS) -> list[str]:
    """Versions of the project's own environment."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [line.split()[0] for line in lines if "==" in line and line.split("==")[0] in names]


def environment(place: Path, asked: Sequence[str], index: str) -> Path:
    """A virtual environment with the project's checkout and what apps ask for; its interpreter.

    One that is there and was made of the same is taken.

    Args:
        place: its folder.
        asked: requirements.
        index: of torch's builds without CUDA.
    """
    torch = [one for one in asked if name_of(one) in _TORCH] or pinned(_TORCH)
    wanted = [*asked, *torch, *pinned()]
    stamp = place / f"made-of-{_digest(wanted, str(ROOT))}"
    python = place / "bin" / "python"
    if stamp.exists():
        return python
    done([sys.executable, "-m", "venv", "--clear", str(place)])
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    try:
        done([*install, "--retries", "1", "--index-url", index, *torch])
    except FetchError as error:  # as for the project itself: rather a larger build than none
        print(f"{error} It is taken from where pip looks otherwise.", flush=True)
        done([*install, *torch])
    done([*install, "--editable", f"{ROOT}[ray,data]", *wanted])
    stamp.touch()
    return python


def _digest(*values: object) -> str:
    return hashlib.sha256(repr(values).encode()).hexdigest()[:16]


def done(command: list[str]) -> str:
    """Run a command to its end; what it prints.

    Raises:
        FetchError: it failed.
    """
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode:
        said = (ended.stderr.strip() or ended.stdout.strip() or "no words").splitlines()
        why = next((line for line in said if line.startswith(("fatal:", "error:"))), said[-1])
        raise FetchError(f"{' '.join(command[:6])} … failed: {why[:500]}")
    return ended.stdout
