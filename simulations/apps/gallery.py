"""Apps of others, made private by three lines on their server and nothing else.

    python simulations/apps/gallery.py [APP ...] [--repository ADDRESS] [--environments FOLDER]
        [--index ADDRESS] [--output FILE]

Takes the apps of `listed_apps.py` from Flower's repository at one commit, puts the wrapper around their
strategy, makes up data of the shape of theirs, and runs them: plain and private with `run_app`, private with
`flwr run` on Flower's simulation engine, some on a SuperLink with SuperNodes. What cannot be private in this
way must be refused with one line before anything is spent. Each group of apps has a virtual environment with
what they ask for. Writes what became of them as JSON and as a page beside it; with names of apps their rows
replace those of an earlier record. Exit code 1 if an app did not do what it should.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from edits import edited, lines_changed  # noqa: E402
from fetching import ROOT, FetchError, environment, fetched, requirements  # noqa: E402
from gallery_page import page_of  # noqa: E402
from listed_apps import ALSO, APPS, COMMIT, REFUSED, ROUNDS, WITHOUT_STRATEGY, App, Refused  # noqa: E402

_CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "fedmf-gallery"
_SECONDS: Final = 600.0


class Gallery:
    """Where everything is, and what was made.

    Args:
        repository: of Flower.
        environments: folder of virtual environments.
        index: of torch's builds without CUDA.
        place: a folder of this run's own.
    """

    def __init__(self, repository: str, environments: Path, index: str, place: Path) -> None:
        self._environments, self._index, self._place = environments, index, place
        names = {app.name.split("/")[0] for app in (*APPS, *REFUSED)} | set(WITHOUT_STRATEGY)
        folders = [f"examples/{name}" for name in names]
        checkout = fetched(repository, COMMIT, folders, environments / "flower")
        self.examples = checkout / "examples"
        self._pythons = dict[str, Path]()
        self._hubs = dict[tuple[str, ...], Path]()

    def python(self, group: str) -> Path:
        """The interpreter in which a group of apps runs."""
        if group not in self._pythons:
            names = {app.name for app in (*APPS, *REFUSED) if app.environment == group}
            asked = requirements(self.examples / name for name in sorted(names))
            asked += ALSO.get(group, ())
            print(f"environment {group}: {', '.join(asked)}", flush=True)
            self._pythons[group] = environment(self._environments / group, asked, self._index)
        return self._pythons[group]

    def hub(self, app: App | Refused) -> Path:
        """A hub's home with the data of an app."""
        if app.data not in self._hubs:
            folder = self._place / f"hub-{len(self._hubs)}"
            folder.mkdir()
            command = [self.python(app.environment), HERE / "made_up.py", folder, *app.data]
            subprocess.run(command, check=True, env=os.environ | {"HF_HUB_OFFLINE": "1"})
            self._hubs[app.data] = folder
        return self._hubs[app.data]

    def copy(self, app: App | Refused, private: bool) -> tuple[Path, tuple[int, int]]:
        """A copy of the app; how many lines were added and removed."""
        folder = Path(tempfile.mkdtemp(dir=self._place)) / app.name
        shutil.copytree(self.examples / app.name, folder, ignore=shutil.ignore_patterns("_static"))
        server = folder / app.server
        before = server.read_text()
        after = edited(before, app.edits) if private else before
        server.write_text(after)
        return folder, lines_changed(before, after)

    def run(self, app: App | Refused, way: str, private: bool = True) -> dict[str, Any]:
        """Run a new copy of the app in its environment; what became of it."""
        folder, _ = self.copy(app, private)
        hub, place = self.hub(app), folder.parent / "place"
        (place / "home").mkdir(parents=True)
        task = {
            "way": way,
            "private": private,
            "folder": str(folder),
            "place": str(place),
            "nodes": 8,
            "rounds": ROUNDS,
            "config": {key: self._filled(value, hub) for key, value in app.config.items()},
        }
        if isinstance(app, App):
            task |= {
                "nodes": app.nodes,
                "workers": app.workers,
                "loads": app.loads.replace("{hub}", str(hub)),
                "prepare": app.prepare,
                "node_config": app.node_config,
                "authenticated": app.authenticated,
            }
        (place / "task.json").write_text(json.dumps(task))
        outcome = place / "result.json"
        command = [self.python(app.environment), HERE / "one_way.py", place / "task.json", outcome]
        with (place / "log.txt").open("w") as log:
            ended: int | str
            try:
                ended = subprocess.run(
                    command,
                    cwd=place,
                    env=self._variables(hub, place),
                    stdout=log,
                    stderr=log,
                    timeout=_SECONDS,
                ).returncode
            except subprocess.TimeoutExpired:
                ended = f"more than {_SECONDS:g} seconds"
        if not outcome.exists():
            last = (place / "log.txt").read_text(errors="replace")[-1000:]
            return {"error": f"it ended with {ended}: {last}"}
        said = outcome.read_text()
        for own in (
            self._place,
            self._environments,
        ):  # errors name files; where they lie is nobody's business
            said = said.replace(str(own), "…")
        return json.loads(said)

    @staticmethod
    def _filled(value: Any, hub: Path) -> Any:
        return value.replace("{hub}", str(hub)) if isinstance(value, str) else value

    def _variables(self, hub: Path, place: Path) -> dict[str, str]:
        """Of a process in an app's environment: nothing of this one's, nothing from outside."""
        passed = {key: os.environ[key] for key in ("PATH", "LANG", "TMPDIR") if key in os.environ}
        return passed | {
            "HOME": str(place / "home"),
            "XDG_CACHE_HOME": str(self._environments / "cache"),  # programs are compiled once
            "HF_HOME": str(hub),
            "HF_HUB_OFFLINE": "1",
            "WANDB_MODE": "disabled",
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }

    def trained(self, app: App) -> dict[str, Any]:
        """All ways of an app that becomes private."""
        _, (added, removed) = self.copy(app, private=True)
        row: dict[str, Any] = {"name": app.name, "kind": app.kind, "added": added, "removed": removed}
        row["workers"], row["why_not"] = app.workers, dict(app.why_not)
        if "run_app" in app.ways:
            row["plain"] = self.run(app, "run_app", private=False)
        row |= {way: self.run(app, way) for way in app.ways}
        row["as_wanted"] = not any("error" in row.get(way, {}) for way in ("plain", *app.ways))
        return row

    def refused(self, app: Refused) -> dict[str, Any]:
        """An app that must be refused."""
        said = self.run(app, "refused")
        line = said.get("refused", said.get("error", ""))
        row = {"name": app.name, "kind": app.kind, "line": line}
        return row | {"as_wanted": "refused" in said and app.says in line}

    def without_strategy(self, name: str) -> dict[str, Any]:
        """An app that has nothing to put a wrapper around, if it still has nothing."""
        file, kind = WITHOUT_STRATEGY[name]
        text = (self.examples / name / file).read_text()
        return {"name": name, "kind": kind, "as_wanted": not has_strategy(text)}


def has_strategy(text: str) -> bool:
    """Whether a server app takes a strategy from Flower or from itself."""
    return re.search(r"from \S*strategy\S* import|import .*Strategy|\.start\(", text) is not None


def merged(rows: Mapping[str, list[dict[str, Any]]], earlier: Path) -> dict[str, list[dict[str, Any]]]:
    """Rows of this run in place of those of an earlier one, in the order of the catalogue."""
    before = json.loads(earlier.read_text()) if earlier.exists() else {}
    order = [(app.name, app.kind) for app in (*APPS, *REFUSED)]
    order += [(name, kind) for name, (_, kind) in WITHOUT_STRATEGY.items()]
    found = {}
    for part, new in rows.items():
        known = {(row["name"], row["kind"]): row for row in (*before.get(part, []), *new)}
        found[part] = [known[key] for key in order if key in known]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", metavar="APP")
    parser.add_argument("--repository", default="https://github.com/adap/flower")
    parser.add_argument("--environments", type=Path, default=_CACHE)
    parser.add_argument("--index", default="https://download.pytorch.org/whl/cpu", help="torch without CUDA")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "results" / "apps.json")
    options = parser.parse_args()

    def wanted(name: str) -> bool:
        return not options.names or name in options.names

    with tempfile.TemporaryDirectory() as folder:
        try:
            gallery = Gallery(options.repository, options.environments.resolve(), options.index, Path(folder))
            rows: dict[str, list[dict[str, Any]]] = {"trained": [], "refused": [], "without_strategy": []}
            for app in filter(lambda app: wanted(app.name), APPS):
                rows["trained"].append(told(gallery.trained(app)))
            for other in filter(lambda app: wanted(app.name), REFUSED):
                rows["refused"].append(told(gallery.refused(other)))
            for name in filter(wanted, WITHOUT_STRATEGY):
                rows["without_strategy"].append(told(gallery.without_strategy(name)))
        except FetchError as error:
            sys.exit(f"gallery: {error}")
    record = {
        "commit": COMMIT,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[2]),
        **(merged(rows, options.output) if options.names else rows),
    }
    options.output.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    options.output.with_suffix(".md").write_text(page_of(record))
    bad = [row["name"] for part in rows.values() for row in part if not row["as_wanted"]]
    sys.exit(f"not as wanted: {', '.join(bad)}" if bad else 0)


def told(row: dict[str, Any]) -> dict[str, Any]:
    """Print what became of an app."""
    print(json.dumps(row, ensure_ascii=False), flush=True)
    return row


if __name__ == "__main__":
    main()
