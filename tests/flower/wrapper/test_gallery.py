"""What of the gallery of apps needs neither the apps nor their packages."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[3] / "simulations" / "apps"
sys.path.insert(0, str(FOLDER))
from edits import Edit, EditError, edited, lines_changed  # noqa: E402
from fetching import name_of, pinned, requirements  # noqa: E402
from gallery import has_strategy  # noqa: E402
from gallery_page import page_of  # noqa: E402
from listed_apps import APPS, COMMIT, REFUSED  # noqa: E402
from made_up import TABLES, rows  # noqa: E402

sys.path.remove(str(FOLDER))

SERVER = "import a\n\ndef main():\n    start()\n"


def test_an_edit_replaces_one_line() -> None:
    after = edited(SERVER, [Edit("import a", "import a\nimport b"), Edit("    start()", "    begin()")])
    assert after == "import a\nimport b\n\ndef main():\n    begin()\n"
    assert lines_changed(SERVER, after) == (2, 1)


@pytest.mark.parametrize(("line", "times"), [("start()", 0), ("    start() ", 0), ("import b", 0), ("", 2)])
def test_a_line_that_is_not_there_once_is_refused(line: str, times: int) -> None:
    said = f"must be one line of the file; it is there {times} times"
    with pytest.raises(EditError, match=said) as refusal:
        edited(SERVER, [Edit(line, "x")])
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("app", APPS, ids=lambda app: app.name)
def test_an_app_changes_by_three_lines(app) -> None:
    server = "\n".join(edit.line for edit in app.edits)
    assert lines_changed(server, edited(server, app.edits)) == (3, 0)
    assert set(app.data) <= {*TABLES, "tiny-bert"}
    assert set(app.ways) | set(app.why_not) >= {"run_app", "flwr run"}


def test_rows_have_the_declared_columns() -> None:
    for name, columns in TABLES.items():
        made = rows(name, 30, seed=1)
        assert list(made) == list(columns)
        assert {len(values) for values in made.values()} == {30}
        assert repr(made) == repr(rows(name, 30, seed=1))
    pictures = rows("uoft-cs/cifar10", 30, seed=1)
    assert {(p.shape, p.dtype.name) for p in pictures["img"]} == {((32, 32, 3), "uint8")}
    assert set(pictures["label"]) == set(range(10))
    brightness = [np.mean(picture) for picture in pictures["img"][:10]]
    assert brightness == sorted(brightness)


def test_the_library_of_data_sets_finds_them_by_name(tmp_path: Path) -> None:
    names = ["uoft-cs/cifar10", "scikit-learn/adult-census-income"]
    look = f"import datasets\nfor name in {names!r}: print(datasets.load_dataset(name))"
    offline = os.environ | {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    make = [sys.executable, FOLDER / "made_up.py", tmp_path, *names, "--rows", "20"]
    subprocess.run(make, env=offline, check=True, timeout=300)
    found = subprocess.run(
        [sys.executable, "-c", look], env=offline, check=True, capture_output=True, text=True, timeout=300
    ).stdout
    for name in names:
        assert f"features: {list(TABLES[name])!r}" in found
    assert found.count("num_rows: 20") == found.count("num_rows: 4") == 2


def test_the_projects_own_packages_are_not_the_apps_to_choose(tmp_path: Path) -> None:
    asked = ["flwr[simulation]>=1.27.0", "flwr-datasets[vision]>=0.6.0", "torch==2.8.0"]
    (tmp_path / "pyproject.toml").write_text(f"[project]\ndependencies = {asked!r}\n")
    assert requirements([tmp_path]) == ["torch==2.8.0"]
    assert sorted(map(name_of, pinned())) == ["flwr", "flwr-datasets", "ray"]


def test_a_strategy_is_seen_in_a_server() -> None:
    assert has_strategy("from flwr.serverapp.strategy import FedAvg\n")
    assert has_strategy("    result = anything.start(\n")
    assert not has_strategy("from flwr.serverapp import Grid\nreplies = grid.send_and_receive(messages)\n")


def test_the_page_tells_what_failed() -> None:
    good = {"seconds": 1.0, "round_seconds": 0.25, "model_loads": True}
    row = {"name": "a", "kind": "k", "added": 3, "removed": 0, "workers": None, "why_not": {}}
    rows = [
        {**row, "plain": good, "run_app": good, "flwr run": good, "as_wanted": True},
        {**row, "name": "b", "run_app": {"error": "it is | broken"}, "as_wanted": False},
    ]
    refused = [{"name": "c", "kind": "trees", "line": "no mean", "as_wanted": False}]
    page = page_of(
        {"commit": COMMIT, "date": "2026-01-01", "cores": 2, "load": 3}
        | {"trained": rows, "refused": refused, "without_strategy": []}
    )
    assert "1 of 2 apps" in page
    assert "| k | +3 | yes | yes | – | yes | 0.25 | 0.25 |" in page
    assert "| k | +3 | no | – | – | no | – | – |" in page
    assert "* b, `run_app`: it is \\| broken" in page
    assert "| trees | **no** |" in page
    assert f"not run this time: {', '.join(app.name for app in APPS)}." in page


def test_what_must_be_refused_is_tried_with_three_lines_or_more() -> None:
    for app in REFUSED:
        server = "\n".join(edit.line for edit in app.edits)
        assert lines_changed(server, edited(server, app.edits))[0] >= 3
