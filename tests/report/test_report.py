"""``fedmf report``: its figures are those of the records, and its page loads and leaks nothing."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import os
import re
import shutil
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.amplified_runs import ACCOUNTANTS, keys
from support.command_line import one_line
from support.directories import commit, create
from support.headers import record
from support.judged_tasks import judged_run
from support.small_runs import run_small, small_run

import fedmf
from fedmf.accounting import Verdict, at_least
from fedmf.cli.app import run
from fedmf.errors import LedgerError
from fedmf.noise.key import NoiseKey
from fedmf.report import RunFigures, read_run, render_report
from fedmf.report.lines import LineChart, Series
from fedmf.runs import METRICS
from fedmf.runs.directory import RunDirectory
from fedmf.runs.planning import plan_run
from fedmf.runs.recorded import header_of
from fedmf.statements import PrivacyStatement

HOSTILE = '<script src="http://x.test/a.js"></script><img src=x onerror=a()> "\' {{ 7 * 7 }} &'
LOADING = {"script", "img", "link", "iframe", "object", "embed", "base", "image", "use", "a", "form", "video"}
ALLOWED_ATTRIBUTES = {
    *("lang", "charset", "name", "content", "http-equiv", "class", "scope"),
    *("viewbox", "role", "aria-label", "aria-hidden", "font-size", "text-anchor", "transform"),
    *("fill", "stroke", "stroke-width", "stroke-dasharray", "width", "height", "d", "r"),
    *("x", "y", "x1", "x2", "y1", "y2", "cx", "cy"),
}


class Outline(HTMLParser):
    """Tags and attributes of a page, and whether they are nested as they should be."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text, self._open = "", list[str]()
        self.feed(page)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag != "meta":
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def pictures(page: str) -> list[ET.Element]:
    """Every picture, parsed as XML."""
    return [ET.fromstring(text) for text in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]


def check_page(page: str) -> Outline:
    """It loads nothing, runs nothing, and no picture is empty or has a place that is no number."""
    outline = Outline(page)
    assert outline.tags & LOADING == set()
    assert outline.attributes <= ALLOWED_ATTRIBUTES
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    assert style is not None
    assert "url(" not in style[1]
    assert "@import" not in style[1]
    assert "default-src 'none'" in page
    for picture in pictures(page):
        shapes = list(picture)
        assert any(shape.tag in ("path", "line") for shape in shapes)
        for shape in shapes:
            for name in ("d", "x", "y", "x1", "y2", "cx", "cy"):
                assert not re.search("nan|inf", shape.get(name, ""))
    return outline


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished runs; the first has one metric with a hostile name and one that is not private."""
    folder = tmp_path_factory.mktemp("runs")
    run_small(folder / "one", small_run())
    run_small(folder / "two", small_run(mechanism="identity", epsilon=3.0))
    table = pd.read_parquet(folder / "one" / METRICS)
    table[HOSTILE], table["federated_loss_not_private"] = table["loss"], 0.123456
    table.to_parquet(folder / "one" / METRICS)
    return folder


def written(path: Path) -> tuple[str, Outline]:
    page = path.read_text()
    return page, check_page(page)


def row(page: str, name: str) -> list[str]:
    """The values of a row of the table of figures."""
    found = re.search(rf'<th scope="row">{name}(?: <span.*?</span>)?</th>\s*(.*?)</tr>', page, re.DOTALL)
    assert found is not None
    return re.findall("<td>(.*?)</td>", found[1])


def test_several_runs_side_by_side_with_the_figures_of_account(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page_file = tmp_path / "page.html"
    assert run(["report", str(runs / "one"), str(runs / "two"), "--output", str(page_file)]) == 0
    assert "for the operator" in capsys.readouterr().err
    assert page_file.stat().st_mode & 0o777 == 0o600
    page, outline = written(page_file)
    said = [fedmf.account(runs / name).to_dict() for name in ("one", "two")]
    assert row(page, "epsilon planned") == [at_least(s["epsilon_planned"]) for s in said]
    assert row(page, "epsilon realised, worst") == [at_least(s["epsilon_realised"]) for s in said]
    half = [at_least(s["epsilon_realised_quantiles"]["0.5"]) for s in said]
    assert row(page, "epsilon realised, half at most") == half
    assert row(page, "mechanism") == [s["mechanism"] for s in said] == ["banded-toeplitz", "identity"]
    losses = [pd.read_parquet(runs / name / METRICS)["loss"].iloc[-1] for name in ("one", "two")]
    assert row(page, "last loss") == [f"{loss:.4g} after round 12" for loss in losses]
    assert HOSTILE in outline.text
    assert "two: what its statement says" in outline.text
    assert row(page, "privacy.epsilon") == ["8.0", "3.0"]


def test_nothing_that_no_record_vouches_for_is_published(runs: Path) -> None:
    figures = read_run(runs / "one")
    forged = dataclasses.replace(figures, name="secret_place", metrics={"forged_private": ((1, 1.0),)})
    for public in (False, True):
        page = render_report([forged], public=public)
        assert ("secret_place" in page, "forged_private" in page) == (not public, not public)


def test_the_page_that_may_be_public(runs: Path, tmp_path: Path) -> None:
    page_file = tmp_path / "page.html"
    assert run(["report", str(runs / "one"), "--output", str(page_file), "--publish"]) == 0
    assert page_file.stat().st_mode & 0o777 == 0o644
    _, outline = written(page_file)
    for word in ("realised", "not private", "took part when", "federated_loss", "0.1235", "accuracy"):
        assert word not in outline.text, word
    assert "Noise in a round's mean update" in outline.text


@pytest.mark.parametrize("kind", ["plain", *ACCOUNTANTS])
def test_public_pages_of_runs_that_differ_in_participation_alone_are_the_same(
    tmp_path: Path, kind: str
) -> None:
    given = small_run(None, **(keys(kind) if kind != "plain" else {}))
    plan = plan_run(given, given.optimizer_source.build([(3,)], given.cohorts.rounds), 3, {})
    header = header_of(given, plan, NoiseKey.from_seed(3), 3)
    busy = [["ann-7f3", "bob-7f3"], ["eve-7f3"], [], [], ["ann-7f3", "bob-7f3"], []]
    idle: list[list[str]] = [[], [], [], ["zoe-7f3"], [], []]
    pages = []
    for name, cohorts in (("busy", busy), ("idle", idle)):
        (tmp_path / name / "run").mkdir(parents=True)
        record(tmp_path / name / "run" / "ledger.sqlite", header, cohorts)
        figures = read_run(tmp_path / name / "run")
        with pytest.raises(LedgerError, match=r"cannot be published in a report: .*unauthenticated"):
            render_report([figures], public=True)
        figures = replace(figures, statement=replace(figures.statement, verdict=Verdict()))
        pages.append((render_report([figures], public=True), render_report([figures])))
    (busy_public, busy_page), (idle_public, idle_page) = pages
    assert busy_public == idle_public
    assert busy_page != idle_page
    for page in (busy_public, busy_page, idle_page):
        assert "7f3" not in check_page(page).text


@pytest.mark.parametrize("kind", ["training", "private evaluation"])
def test_every_point_of_the_curves_is_what_account_said_at_that_round(tmp_path: Path, kind: str) -> None:
    """Also a test of reading while the run goes on."""
    said: list[PrivacyStatement] = []
    seen: list[RunFigures] = []

    def note(_: object) -> None:
        said.append(fedmf.account(tmp_path / "run"))
        seen.append(read_run(tmp_path / "run"))

    given = small_run() if kind == "training" else judged_run()
    run_small(tmp_path / "run", given, on_report=note)
    spent, last = read_run(tmp_path / "run").spent, fedmf.account(tmp_path / "run").to_dict()
    assert spent.rounds == spent.past == tuple(range(13))
    for t, (statement, figures) in enumerate(zip(said, seen, strict=True), start=1):
        s = statement.to_dict()
        assert s["rounds_released"] == t
        assert figures.spent.past[-1] == t
        assert figures.spent.worst[-1] == s["epsilon_realised"]
        planned = s["epsilon_planned"] if s["epsilon_planned_so_far"] is None else s["epsilon_planned_so_far"]
        assert spent.planned[t] == pytest.approx(planned, rel=1e-9)
        check_page(render_report([figures]))
        if kind == "training":  # of evaluations, the one after round t may be recorded after its report
            assert spent.worst[t] == pytest.approx(s["epsilon_realised"], rel=1e-9)
            assert spent.median[t] == pytest.approx(s["epsilon_realised_quantiles"]["0.5"], rel=1e-9)
    assert (spent.worst[-1], spent.median[-1]) == (
        last["epsilon_realised"],
        last["epsilon_realised_quantiles"]["0.5"],
    )
    assert spent.planned[-1] == last["epsilon_planned"]
    assert list(spent.worst) == sorted(spent.worst)
    assert all(w <= p * (1 + 1e-9) for w, p in zip(spent.worst, spent.planned, strict=True))


def test_the_noise_is_that_of_the_dense_inverse(runs: Path) -> None:
    figures = read_run(runs / "one")
    header, s = figures.statement.header, figures.statement.to_dict()
    inverse = np.linalg.inv(header.plan.mechanism.factorization.materialize())
    scale = s["noise_std_added"] / s["cohort_size"]
    np.testing.assert_allclose(figures.noise.correlation, inverse, atol=1e-12)
    np.testing.assert_allclose(figures.noise.mean, scale * np.linalg.norm(inverse, axis=1), rtol=1e-12)
    total = np.linalg.norm(np.tril(np.ones((12, 12))) @ inverse, axis=1)
    np.testing.assert_allclose(figures.noise.total, scale * total, rtol=1e-12)
    length = figures.noise.mean * np.sqrt(s["dimension"])
    np.testing.assert_allclose(figures.noise.signal, s["clip_norm"] / length, rtol=1e-12)


def test_a_read_only_copy_without_its_key_says_so_on_the_same_page_and_stays_as_it_is(
    runs: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "one"
    shutil.copytree(runs / "one", copy)
    (copy / "noise.key").unlink()
    for path in [*copy.iterdir(), copy]:
        path.chmod(path.stat().st_mode & 0o555)

    def digest() -> dict[str, str]:
        return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(copy.iterdir())}

    before = digest()
    keyless, whole = render_report([read_run(copy)]), render_report([read_run(runs / "one")])
    assert "Record: whole as far as this copy knows." in check_page(whole).text
    assert "authenticated with their keys and whole" in check_page(whole).text
    assert "Record: UNAUTHENTICATED: " in check_page(keyless).text
    assert "not all of them authenticated" in check_page(keyless).text
    for word in ("verified ledgers", "authenticated with their keys"):
        assert word not in keyless
    apart = [*difflib.unified_diff(keyless.splitlines(), whole.splitlines(), n=0, lineterm="")]
    assert (
        len([line for line in apart if line[0] in "+-" and line[1] not in "+-"]) == 4
    )  # said above, and below
    assert digest() == before
    copy.chmod(0o755)


def test_a_run_without_noise_has_a_page(tmp_path: Path) -> None:
    run_small(tmp_path / "open", small_run(private=False))
    outline = check_page(render_report([read_run(tmp_path / "open")]))
    assert "No privacy: this run added no noise." in outline.text
    assert "Noise in a round" not in outline.text


def test_a_run_that_went_on_from_a_backup_shows_what_was_lost_and_no_curve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    place, backup = tmp_path / "run", tmp_path / "backup"
    with create(place) as directory:
        commit(directory, 0, 1.0)
    shutil.copytree(place, backup)
    with RunDirectory.open(place) as directory:
        commit(directory, 1, 2.0)
    shutil.rmtree(place)
    backup.rename(place)
    with RunDirectory.open(place, lambda *_: ["u2", "u3"]) as directory:
        commit(directory, 1, 2.0)
    assert fedmf.account(place).lost
    page = render_report([read_run(place)])
    text = check_page(page).text
    assert "run went on from a backup" in text
    assert "ε planned: what the plan allows" not in text
    said = fedmf.account(place).to_dict()
    assert row(page, "epsilon planned") == [at_least(said["epsilon_planned"])]
    assert row(page, "epsilon realised, worst") == [at_least(said["epsilon_realised"])]


REFUSED: dict[str, tuple[list[str], str]] = {
    "a stream": (["stream"], "keeps the state of a stream; fedmf report is about runs."),
    "no run": (["empty"], "is not a run directory"),
    "nothing": (["missing"], "is not a run directory"),
    "twice": (["one", "two/../one"], "got one of them twice"),
    "broken metrics": (["broken"], "cannot be read"),
    "taken": (["one", "--output", "taken.html"], "exists already and is not replaced"),
    "no folder": (["one", "--output", "none/page.html"], "cannot write"),
    "no page": (["one", "--output", "page.pdf"], "must end in .html"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_in_one_line(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    for name in ("stream", "empty"):
        (tmp_path / name).mkdir()
    (tmp_path / "stream" / "state.sqlite").write_bytes(b"")
    (tmp_path / "taken.html").write_text("mine")
    for name in ("one", "two"):
        os.symlink(runs / name, tmp_path / name)
    shutil.copytree(runs / "two", tmp_path / "broken")
    (tmp_path / "broken" / METRICS).write_bytes(b"PAR1 no table PAR1")
    monkeypatch.chdir(tmp_path)
    arguments, message = REFUSED[case]
    assert run(["report", *arguments]) == 2
    assert message in one_line(capsys)
    assert not (tmp_path / "report.html").exists()
    assert (tmp_path / "taken.html").read_text() == "mine"


@pytest.mark.parametrize(
    "ys",
    [
        [0.0],
        [5.0, 5.0],
        [1e300, -1e300],
        [1e-300, 2e-300],
        [-3.0, -2.5],
        [1.0, 1.0 + 2.0**-52],
        [1.0, 1.00004],
        [0.0, 1e-320],
    ],
    ids=str,
)
def test_any_numbers_fit_into_the_picture(ys: list[float]) -> None:
    chart: dict[str, Any] = LineChart("title", "round", [Series(0, list(enumerate(ys)))]).picture
    (line,) = chart["lines"]
    places = [float(x) for x in re.findall(r"[-\d.e+]+", line["path"])]
    assert len(places) == 2 * len(ys)
    assert all(chart["left"] <= x <= chart["right"] for x in places[::2])
    assert all(0 <= y <= chart["floor"] for y in places[1::2])
    heights = [y for y, _ in chart["y_ticks"]]
    assert len({label for _, label in chart["y_ticks"]}) == len(heights)
    assert 2 <= len(heights) <= 9
    assert all(0 <= y <= chart["floor"] for y in heights)
