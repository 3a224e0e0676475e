"""Mistakes of somebody who compares mechanisms."""

from __future__ import annotations

from pathlib import Path

from slips.attempt import ROUNDS, Mistake, command, digits, fedmf

WHO = "researcher"
SETTING = ("--rounds", "128", "--max-participations", "4", "--min-separation", "32")
BUDGET = ("--epsilon", "8", "--delta", "1e-5")


def _resumed(folder: Path) -> list[str]:
    """A run that was prepared and goes on with another ε."""
    shell = "import subprocess, sys; a = [sys.executable, '-m', 'fedmf', 'simulate']\n"
    keys = [f"--set=cohorts.rounds={ROUNDS}", "--set=data.users=120", "--set=cohorts.size=12"]
    first = [*keys, "configs/digits.toml", "--out", "run", "--prepare"]
    second = [*keys, "--set=privacy.epsilon=4", "configs/digits.toml", "--resume", "run"]
    return [
        "-c",
        f"{shell}subprocess.run(a + {first!r}, check=True)\nsys.exit(subprocess.call(a + {second!r}))",
    ]


def _begun(folder: Path) -> list[str]:
    (folder / "run").mkdir()
    (folder / "run" / "notes.txt").write_text("mine", encoding="utf-8")
    return digits()(folder)


def _optimiser(folder: Path) -> list[str]:
    text = '[data]\nkind = "digits"\n[optimiser]\nkind = "sgd"\nlearning-rate = 0.2\n'
    (folder / "mine.toml").write_text(text, encoding="utf-8")
    return fedmf("simulate", "mine.toml", "--out", "run", "--set", f"cohorts.rounds={ROUNDS}")


def _array(folder: Path) -> list[str]:
    text = '[data]\nkind = "digits"\nusers = 120\n[model]\nkind = "mlp"\nhidden-units = [16]\n'
    text += f"[cohorts]\nrounds = {ROUNDS}\nsize = 12\n"
    (folder / "mine.toml").write_text(text, encoding="utf-8")
    return fedmf("simulate", "mine.toml", "--out", "run")


RESEARCHER = (
    Mistake(
        WHO,
        "`--mechanism bandmf`, as papers call it",
        ("bandmf", "banded"),
        command("design", *SETTING, "--mechanism", "bandmf"),
        meant=r"(?i)\bbanded(?!.*got)",
    ),
    Mistake(
        WHO,
        "`--mechanism dp-ftrl`",
        ("dp-ftrl", "tree"),
        command("design", *SETTING, "--mechanism", "dp-ftrl"),
        meant=r"(?i)\btree(?!.*got)",
    ),
    Mistake(
        WHO,
        "`--mechanism dp-sgd` as the baseline",
        ("dp-sgd", "identity"),
        command("design", *SETTING, "--mechanism", "dp-sgd"),
        meant=r"(?i)\bidentity(?!.*got)",
    ),
    Mistake(
        WHO,
        "`banded_toeplitz` with an underscore",
        ("banded_toeplitz", "banded-toeplitz"),
        command("design", *SETTING, "--mechanism", "banded_toeplitz"),
        meant=r"(?i)\bbanded-toeplitz(?!.*got)",
    ),
    Mistake(
        WHO,
        "k and b exchanged in `design`",
        ("min.separation|\\bb\\b", "rounds|\\bn\\b"),
        command("design", "--rounds", "128", "--max-participations", "32", "--min-separation", "32", *BUDGET),
    ),
    Mistake(
        WHO,
        "δ = 0.1 for 120 users",
        ("delta", "user|1/N|published"),
        digits("privacy.delta=0.1"),
    ),
    Mistake(
        WHO,
        "`privacy.clip_norm` with an underscore",
        ("clip_norm", "clip-norm"),
        digits("privacy.clip_norm=0.3"),
    ),
    Mistake(
        WHO,
        "a TOML array where a list is meant",
        ("hidden-units", "list|comma|text"),
        _array,
        meant="Every user has",
    ),
    Mistake(
        WHO,
        "local learning rate of 1000",
        ("local.learning-rate", "too high|diverge"),
        digits("local.learning-rate=1000"),
    ),
    Mistake(
        WHO,
        "ε = 0.01: nothing can be learnt",
        ("noise", "cannot learn|norm|nothing"),
        digits("privacy.epsilon=0.01"),
    ),
    Mistake(WHO, "a cohort larger than all users", ("size", "120|users"), digits("cohorts.size=500")),
    Mistake(WHO, "more bands than rounds", ("bands", "500"), digits("mechanism.bands=500")),
    Mistake(WHO, "a run goes on with another ε", ("epsilon", "4"), _resumed),
    Mistake(WHO, "`--out` is a folder in use", ("run", "exist|empty"), _begun),
    Mistake(WHO, "a table `[optimiser]`", ("optimiser", "optimizer"), _optimiser),
)
