"""The page of a privacy statement: complete, escaped, self-contained, silent about single users."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from support.headers import FACTORIZATION, make_header, read, record

from fedmf.accounting import NoPrivacy, at_least, at_most
from fedmf.factorization import Mechanism
from fedmf.statements import run_document
from fedmf.statements.plain import detection_limit, odds_factor, plain_words
from fedmf.version import SOFTWARE

COHORTS = [["ann-7f3", "bob-7f3"], ["eve-7f3"], [], ["ann-7f3"], ["eve-7f3"], []]
HOSTILE = (
    "</td></style><script>alert(1)</script><img src=x onerror=alert(2)> \" onload='x' {{ 7*7 }} {% raw %}"
)
VOID = {"meta"}


class Page(HTMLParser):
    """Tags and their attributes in order, the text, and whether the tags are balanced."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.values: list[str] = []
        self.pieces: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, tuple(name for name, _ in attrs)))
        self.values += [value or "" for _, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, tuple(name for name, _ in attrs)))
        self.values += [value or "" for _, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.pieces.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.pieces).split())


def statement(folder: Path, cohorts: list[list[str]] = COHORTS, **changes: object) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    record(folder / "ledger.sqlite", make_header(**changes), cohorts)
    return read(folder / "ledger.sqlite").to_dict()


def test_the_page_says_everything_that_the_statement_must(tmp_path: Path) -> None:
    s = statement(tmp_path / "run")
    text = Page(run_document(s).page()).text
    for part in (
        f"({at_least(s['epsilon_planned'])}, 1e-05)-differential privacy under zero-out adjacency",
        "against anyone who sees all that was released",
        f"epsilon planned {at_least(s['epsilon_planned'])} for all 6 rounds",
        f"epsilon realised {at_least(s['epsilon_realised'])} (worst user) (not private)",
        "unit user, zero-out adjacency",
        "mechanism cgd (lambda=0.8)",
        "rounds 6 of 6 released",
        "empty rounds 2 (not private)",
        "participations at most 2 planned",
        "separation at least 3 planned",
        "contract kept 2 participations at most, separation 3 (not private)",
        "spread over 5 users (not private)",
        "sampling none: fixed schedule, no amplification claimed",
        "took part 3 of 5 users (not private)",
        "users 5, 2 planned a round",
        "clip norm 0.5",
        "noise multiplier 0.7 per unit sensitivity",
        f"sensitivity {at_least(s['sensitivity'])} (exact: ",
        f"standard deviation {at_most(s['noise_std'])} on the sum",
        "noise key ab12 (operating system randomness)",
        "trust the server itself clips every user's update, whoever sent it",
        SOFTWARE,
        *s["assumptions"],
        *s["not_covered"],
        *s["secret"],
    ):
        assert " ".join(part.split()) in text, part
    for share, epsilon in s["epsilon_realised_quantiles"].items():
        if share != "0":
            assert f"{100 * float(share):g} % {at_least(epsilon)}" in text


def test_the_histogram_has_a_bar_in_proportion_for_each_bin_that_has_users(tmp_path: Path) -> None:
    s = statement(tmp_path / "run")
    bars = re.findall(
        r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)".*?<title>(\d+) users',
        run_document(s).page(),
    )
    filled = [entry for entry in s["epsilon_realised_histogram"] if entry["users"]]
    assert [int(bar[4]) for bar in bars] == [entry["users"] for entry in filled]
    heights = np.array([float(bar[3]) for bar in bars])
    users = np.array([entry["users"] for entry in filled])
    np.testing.assert_allclose(heights / heights.max(), users / users.max(), atol=1e-3)
    end = max(s["epsilon_planned"], filled[-1]["high"])
    for (x, y, width, height, _), entry in zip(bars, filled, strict=True):
        assert float(x) == pytest.approx(480 * entry["low"] / end, abs=0.01)
        assert float(x) + float(width) <= 480
        assert float(y) + float(height) == pytest.approx(112, abs=0.01)


def test_hostile_strings_stay_text(tmp_path: Path) -> None:
    """Same tags and attribute names as a harmless page, so nothing became markup; and all of it is shown."""
    hostile = statement(
        tmp_path / "hostile",
        [[f"{HOSTILE} {u}" for u in users] for users in COHORTS],
        mechanism=Mechanism(HOSTILE, {HOSTILE: 0.8}, FACTORIZATION),
        sensitivity_case=HOSTILE,
        key_fingerprint=HOSTILE,
        user_namespace=HOSTILE,
        public_inputs=(dict.fromkeys(("name", "value", "source"), HOSTILE),),
        software=HOSTILE,
    )
    page = Page(run_document(hostile).page())
    plain = ({"name": "classes", "value": "3", "source": "configuration"},)
    harmless = Page(
        run_document(statement(tmp_path / "harmless", user_namespace="staff", public_inputs=plain)).page()
    )
    assert page.tags == harmless.tags
    shown = " ".join(HOSTILE.split())
    assert page.text.count(shown) == 10  # mechanism, parameter, case, key, namespace, software twice, input
    again = Page(run_document(json.loads(json.dumps(hostile))).page())
    assert again.pieces == page.pieces


def test_nothing_is_loaded_and_nothing_runs(tmp_path: Path) -> None:
    page = Page(run_document(statement(tmp_path / "run")).page())
    names = {tag for tag, _ in page.tags}
    assert names.isdisjoint({"script", "link", "img", "iframe", "object", "embed", "form", "base", "a"})
    attributes = {name for _, attrs in page.tags for name in attrs}
    assert attributes.isdisjoint({"src", "href", "style", "srcset", "action"})
    assert not any(name.startswith("on") for name in attributes)
    assert not re.search(r"https?:|//|url\(|@import|javascript:", " ".join([*page.values, *page.pieces]))
    assert "default-src 'none'; style-src 'unsafe-inline'" in page.values


def test_no_single_user_is_in_the_page(tmp_path: Path) -> None:
    """Other names, and another of the equally bad users named as the worst, give the same page."""
    s = statement(tmp_path / "run")
    page = run_document(s).page()
    assert "7f3" not in page
    renamed = [[f"{user}-other" for user in users] for users in COHORTS]
    assert run_document(statement(tmp_path / "renamed", renamed)).page() == page
    assert run_document({**s, "realised_worst_pattern": [2, 5]}).page() == page


@pytest.mark.parametrize(
    ("changes", "cohorts", "parts"),
    [
        (
            {"noise_multiplier": 0.0, "privacy": NoPrivacy()},
            COHORTS,
            ["No privacy: this run added no noise.", "It protects nobody."],
        ),
        ({"key_public": True}, COHORTS, ["Simulation only, no privacy", "follows from a public seed"]),
        ({"adjacency": "replace-one"}, COHORTS, ["had sent any other updates within the clip norm"]),
        ({}, [], ["0 of 6 released", "allowed by the plan"]),
    ],
    ids=["no noise", "public seed", "replace-one", "before the first round"],
)
def test_what_a_run_does_not_give_is_said_first(
    changes: dict[str, object], cohorts: list[list[str]], parts: list[str], tmp_path: Path
) -> None:
    s = statement(tmp_path / "run", cohorts, **changes)
    text = Page(run_document(s).page()).text
    for part in parts:
        assert part in text
    assert text.count("How realised epsilon is spread") == (bool(cohorts) and s["noise_multiplier"] > 0)
    assert "nan" not in text.lower().split()


def test_the_detection_limit_is_the_power_of_the_best_test() -> None:
    """Neyman–Pearson between N(0, 1) and N(μ, 1), by simulation; false alarm of this test below 1e-6."""
    rng = np.random.default_rng(3)
    draws = 200_000
    for mu in (0.0, 0.5, 1.666, 3.0):
        threshold = stats.norm.isf(0.05)
        found = float((rng.normal(mu, 1, draws) > threshold).mean())
        expected = detection_limit(mu)
        assert abs(found - expected) < 5.5 * math.sqrt(expected * (1 - expected) / draws) + 1e-9


def test_plain_words_give_the_factor_and_the_power(tmp_path: Path) -> None:
    s = statement(tmp_path / "run")
    words = " ".join(plain_words(s))
    assert f"e^epsilon = {odds_factor(s['epsilon_planned'])}, plus delta = 1e-05." in words
    power = 100 * stats.norm.sf(stats.norm.isf(0.05) - 1 / 0.7)
    (shown,) = re.findall(r"in at most ([0-9.]+) % of cases", words)
    assert 0 <= float(shown) - power < 0.1
    huge = {**s, "epsilon_planned": 5000.0}
    assert "e^5000, plus" in " ".join(plain_words(huge))


def test_an_amplified_statement_gives_both_factors(tmp_path: Path) -> None:
    s = statement(tmp_path / "run")
    amplified = {
        **s,
        "amplification": {
            "accountant": "b-min-sep",
            "method": "certified",
            "failure": 1e-7,
            "probability": 0.1,
        },
        "epsilon_planned": 2.0,
    }
    text = Page(run_document(amplified).page()).text
    factor = "e^epsilon = e^2 = 7.39, plus delta = 1e-05"
    assert f"{factor}, unless the observer knows who took part in which round" in text
    known = s["epsilon_planned_known_cohorts"]
    assert f"then the factor is at most {odds_factor(known)}." in text
    assert "planned, cohorts secret" in text
    assert "cohorts known" in text
