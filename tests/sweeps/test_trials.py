"""Sweeps of which the best run alone is released: what is drawn, chosen, kept and refused."""

from __future__ import annotations

import json
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.sweeps import BASE

from fedmf.accounting import (
    NegativeBinomialTrials,
    PoissonTrials,
    at_least,
    gaussian_sigma,
    selection_epsilon,
)
from fedmf.cli.app import run as command
from fedmf.errors import ConfigError
from fedmf.sweeps import TrialSweep, carry_out_trials, load_sweep
from fedmf.sweeps.one_run import carry_out_run

RATES = (0.1, 0.4, 0.8)
FILE = """
base = "base.toml"
metric = "accuracy"
[set]
privacy.epsilon = 2.0
[tuned]
optimizer.learning-rate = [0.1, 0.4]
[trials]
mean = 4
shape = 0
"""


def small(**changes: Any) -> TrialSweep:
    fields = {"base": BASE, "tuned": {"optimizer.learning-rate": RATES}, "metric": "loss"}
    return TrialSweep(**{**fields, "trials": NegativeBinomialTrials(mean=3.0), **changes})


class HereCrew:
    """Carries runs out in this process; one whose rate is in ``broken`` fails."""

    free = 1
    broken: float | None = None

    def __init__(self, count: int, threads: int) -> None:
        self.done: list[tuple[str, str | None]] = []

    def __enter__(self) -> HereCrew:
        return self

    def __exit__(self, *_: object) -> None: ...

    def begin(self, name: str, work: tuple[Any, ...]) -> None:
        failing = work[0]["optimizer.learning-rate"] == HereCrew.broken
        if not failing:
            carry_out_run(*work)
        self.done.append((name, "it failed" if failing else None))

    def finished(self) -> Iterator[tuple[str, str | None]]:
        while self.done:
            yield self.done.pop()


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Three trials, of the candidates 0, 2 and 2, in this process."""
    order = [0, 2, 2]
    module = "fedmf.sweeps.best_of_trials"
    monkeypatch.setattr(f"{module}.Crew", HereCrew)
    monkeypatch.setattr(HereCrew, "broken", None)
    places = iter(order)
    drawn = SimpleNamespace(  # for the trials alone, whoever else draws something
        randbelow=lambda _: next(places),
        randbits=lambda bits: int(0.6 * 2**bits),
        token_hex=secrets.token_hex,
    )
    monkeypatch.setattr(f"{module}.secrets", drawn)
    return order


def test_the_best_is_released_and_nothing_tells_how_many_there_were(drawn: list[int], tmp_path: Path) -> None:
    sweep = small()
    assert sweep.trials.number(int(0.6 * 2**256)) == len(drawn)
    kept = carry_out_trials(sweep, tmp_path / "kept", keep_runs=True)
    runs = {file.stem: json.loads(file.read_text()) for file in (tmp_path / "kept/finished").iterdir()}
    assert len(runs) == 3
    keys = {entry["statement"]["noise_key"] for entry in runs.values()}
    assert len(keys) == 3  # also those of one configuration
    final = {name: entry["metrics"][str(10)]["loss"] for name, entry in runs.items()}
    best = min(final, key=final.__getitem__)
    assert kept.statement["score"] == final[best]
    assert kept.statement["chosen"] == {
        "optimizer.learning-rate": runs[best]["keys"]["optimizer.learning-rate"]
    }
    assert {entry.name for entry in kept.released.iterdir()} == {
        "config.toml", "model.safetensors", "statement.json", "statement.txt",
    }  # fmt: skip
    again = carry_out_trials(sweep, tmp_path / "kept")  # goes on where it was: takes everything else away
    assert again.statement == kept.statement
    assert [*(tmp_path / "kept/runs").iterdir()] == [*(tmp_path / "kept/finished").iterdir()] == []
    assert json.loads((tmp_path / "kept/trials.secret.json").read_text())["trials"] is None
    text = (kept.released / "statement.txt").read_text()
    assert "The best of a secret number of trials: every user has (" in text
    assert all(str(entry) not in json.dumps(kept.statement) for entry in keys)
    with pytest.raises(ConfigError, match="it holds trials of another"):
        carry_out_trials(small(trials=PoissonTrials(mean=3.0)), tmp_path / "kept")


def test_a_trial_that_fails_is_never_the_best(
    drawn: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HereCrew, "broken", RATES[2])
    found = carry_out_trials(small(), tmp_path / "out")
    assert found.failed == 2
    assert found.statement["chosen"] == {"optimizer.learning-rate": RATES[0]}


def test_no_trial_at_all_releases_nothing(drawn: list[int], tmp_path: Path) -> None:
    sweep = small(trials=PoissonTrials(mean=0.1))
    assert sweep.trials.number(int(0.6 * 2**256)) == 0
    found = carry_out_trials(sweep, tmp_path / "out")
    assert (found.statement["chosen"], found.statement["score"]) == (None, None)
    assert "nothing: there was no trial" in (found.released / "statement.txt").read_text()
    assert not (found.released / "model.safetensors").exists()


def test_epsilon_is_that_of_the_weakest_candidate_and_the_law() -> None:
    sweep = small(tuned={"privacy.epsilon": (1.0, 2.0, 0.5)})
    sigma = gaussian_sigma(2.0, 1e-5)
    assert sweep.one_mu == pytest.approx(1 / sigma, rel=2e-9)
    assert sweep.one_mu >= 1 / sigma
    assert sweep.privacy.epsilon == pytest.approx(
        selection_epsilon(sweep.trials, 1 / sigma, 1e-5).epsilon, rel=1e-7
    )
    assert sweep.privacy.epsilon > 2.0
    assert small(trials=NegativeBinomialTrials(mean=30.0)).privacy.epsilon > small().privacy.epsilon


def test_the_command_says_what_the_best_costs_before_and_after(
    drawn: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in BASE.items())
    (tmp_path / "base.toml").write_text(lines)
    (tmp_path / "trials.toml").write_text(FILE.replace("[0.1, 0.4]", "[0.1, 0.4, 0.8]"))
    sweep = load_sweep(tmp_path / "trials.toml")
    assert isinstance(sweep, TrialSweep)
    assert sweep.trials == NegativeBinomialTrials(mean=4, shape=0)
    assert command(["sweep", str(tmp_path / "trials.toml"), "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "a trial may be: optimizer.learning-rate=0.8" in shown
    assert f"The best of 4 trials on average costs ({at_least(sweep.privacy.epsilon)}, 1e-05)" in shown
    assert command(["sweep", str(tmp_path / "trials.toml"), "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr()
    assert "one trial alone   epsilon 2" in said.out
    assert "runs 3" not in said.out + said.err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tuned": {"privacy.noise-seed": (1, 2)}}, "noise_seed must be unset in trials"),
        ({"tuned": {"privacy.delta": (1e-5, 1e-6)}}, "δ .delta. must be the same in all trials"),
        ({"tuned": {"privacy.adjacency": ("zero-out", "replace-one")}}, "adjacency must be the same"),
        ({"tuned": {"privacy.kind": ("user-level", "none")}}, "privacy must add noise in every trial"),
        ({"tuned": {"optimizer.learning-rat": (1,)}}, "learning-rate"),
        ({"tuned": {"optimizer.learning-rate": ()}}, "must list different values"),
        ({"tuned": {"optimizer.learning-rate": ([0.1],)}}, "must list different values"),
        (
            {"tuned": {"privacy.amplified": (True,)}, "base": {**BASE, "cohorts.kind": "balls-in-bins"}},
            "amplified must be false in trials",
        ),
        ({"last": 0}, "last .evaluations that count."),
    ],
)  # fmt: skip
def test_what_no_theorem_covers_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        small(**changes)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("metric", ["loss_not_private", "accuracy_not_private"])
def test_a_score_from_users_own_examples_is_refused(metric: str, drawn: list[int], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"metric .score of the trials. must be private or computed on"):
        carry_out_trials(small(metric=metric), tmp_path / "out")
    assert [*(tmp_path / "out/runs").iterdir()] == []


def test_a_score_is_refused_where_any_candidate_has_it_from_users_own_examples(
    drawn: list[int], tmp_path: Path
) -> None:
    """A tuned key decides whose the test part is: the users' own in the second candidate alone."""
    rows = [f"u{u},{x},{(u + x) % 2}" for u in range(20) for x in range(8)]
    (tmp_path / "users.txt").write_text("\n".join(f"u{u}" for u in range(20)) + "\n")
    (tmp_path / "rows.csv").write_text("user,x,y\n" + "\n".join(rows) + "\n")
    base = {name: value for name, value in BASE.items() if not name.startswith("data.")} | {
        "data.kind": "table",
        "data.path": str(tmp_path / "rows.csv"),
        "data.feature-columns": "x",
        "data.label-column": "y",
        "data.user-column": "user",
        "data.class-names": "0,1",
        "data.input-shape": "1",
        "data.roster": str(tmp_path / "users.txt"),
        "data.hold-out": "examples",
        "data.users": 20,
    }
    sweep = small(base=base, tuned={"data.partition": ("iid", "natural")})
    with pytest.raises(ConfigError, match=r"metric .score of the trials. must be private or computed on"):
        carry_out_trials(sweep, tmp_path / "out")


@pytest.mark.parametrize("changes", [{"metric": "acuracy"}])
def test_a_score_that_some_trial_has_not_is_refused_before_any_of_them(
    changes: dict[str, Any], drawn: list[int], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"metric .of the sweep. must be one of accuracy, loss; got"):
        carry_out_trials(small(**{"metric": "accuracy_private", **changes}), tmp_path / "out")
    assert [*(tmp_path / "out/runs").iterdir()] == []


def test_what_was_released_is_released_once(drawn: list[int], tmp_path: Path) -> None:
    """A process killed while it takes the trials away; a statement or a directory that is gone afterwards."""
    sweep, path = small(), tmp_path / "out"
    first = carry_out_trials(sweep, path, keep_runs=True).statement
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(shutil, "rmtree", Killed(2))
        with pytest.raises(KeyboardInterrupt):
            carry_out_trials(sweep, path)
    assert len([*(path / "runs").iterdir()]) == 2
    assert carry_out_trials(sweep, path).statement == first
    assert [*(path / "runs").iterdir()] == [*(path / "finished").iterdir()] == []
    (path / "best/statement.json").write_text("{")
    with pytest.raises(ConfigError, match=r"^statement .* must be as fedmf wrote it"):
        carry_out_trials(sweep, path)
    (path / "best/statement.json").unlink()
    with pytest.raises(ConfigError, match=r"^cannot read statement .*: No such file"):
        carry_out_trials(sweep, path)
    shutil.rmtree(path / "best")
    with pytest.raises(ConfigError, match="must be there, for it was released"):  # not "there was no trial"
        carry_out_trials(sweep, path)
    assert not (path / "best").exists()


class Killed:
    """`shutil.rmtree` in a process that is killed in one of its calls."""

    def __init__(self, call: int) -> None:
        self.left, self.remove = call, shutil.rmtree

    def __call__(self, path: Path) -> None:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt
        self.remove(path)


@pytest.mark.parametrize(
    ("law", "message"),
    [
        ('kind = "binomial"', "kind .of the trials. must be one of negative-binomial, poisson"),
        ("mean = 0.5", r"E\[K\] .mean number of trials. must be above 1"),
        ('mean = "many"', "mean .of the trials. must be a number"),
        ("size = 3", "differing: size"),
    ],
)
def test_a_law_that_is_none_is_refused(law: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "trials.toml").write_text(
        f"[base]\n[tuned]\noptimizer.learning-rate = [0.1]\n[trials]\n{law}\n"
    )
    with pytest.raises(ConfigError, match=message):
        load_sweep(tmp_path / "trials.toml")


def test_the_page_describes_trials(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    (tmp_path / "digits.toml").write_text((root / "configs/digits.toml").read_text())
    (tmp_path / "sub").mkdir()
    (block,) = re.findall(r"```toml\n(.*?)```", (root / "docs/composition.md").read_text(), re.DOTALL)
    (tmp_path / "sub/trials.toml").write_text(block)
    sweep = load_sweep(tmp_path / "sub/trials.toml")
    assert isinstance(sweep, TrialSweep)
    assert (len(sweep.candidates), sweep.trials.mean) == (9, 10)
    assert f"the best costs ε = {sweep.privacy.epsilon:.2f}" in (root / "docs/composition.md").read_text()
