"""The trails of the documentation, walked by a reader who has the wheel, rows of their own and nothing else.

python -m tests.support.release.trails [--root DIRECTORY] [TRAIL...]

builds the wheel and, for each trail, makes a fresh folder and a fresh virtual environment in it, outside any
checkout and without this environment's variables; installs as the page says, with the wheel in place of the
checkout; puts the reader's rows in place of the page's; carries out every command; and prints commands and
seconds. With --root all this happens in a tree of an operating system that has Python and nothing of ours,
such as debootstrap makes: as root, in namespaces of its own. Only the standard library is used, since this
file itself goes there.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CPU_INDEX = " --index-url https://download.pytorch.org/whl/cpu"

#: What a reader has in place of the page's: real rows of patients, which come with scikit-learn.
_TABLE = """\
import csv

from sklearn.datasets import load_breast_cancer

values, labels = load_breast_cancer(return_X_y=True)
people = [f"patient {i}" for i in range(450)]
with open("users.txt", "w") as file:
    file.write("\\n".join(people) + "\\n")
with open("rows.csv", "w", newline="") as file:
    rows = csv.writer(file)
    rows.writerow(["patient", "radius", "texture", "area", "label"])
    for person, row, label in zip(people, values, labels):
        rows.writerow([person, row[0], row[1], row[3], ["malignant", "benign"][label]])
"""
_TABLE_CONTRACT = """\
[columns.patient]
kind = "user"

[columns.radius]
kind = "number"
lower = 5
upper = 30
centre = 14
unit = 4

[columns.texture]
kind = "number"
lower = 5
upper = 45
centre = 20
unit = 5

[columns.area]
kind = "number"
lower = 100
upper = 2600
centre = 650
unit = 350

[columns.label]
kind = "category"
words = ["malignant", "benign"]
"""
_APP = """\
import torch
import torch.nn.functional as F
from sklearn.datasets import load_breast_cancer


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = torch.nn.Linear(30, 16), torch.nn.Linear(16, 2)

    def forward(self, x):
        return self.out(F.relu(self.hidden(x)))


def initial_model():
    torch.manual_seed(0)
    return Net()


def load_data(partition, partitions):
    values, labels = load_breast_cancer(return_X_y=True)
    usual = [14, 19, 92, 655, 0.1, 0.1, 0.09, 0.05, 0.18, 0.06, 0.4, 1.2, 2.9, 40, 0.007, 0.025, 0.03]
    usual += [0.01, 0.02, 0.004, 16, 26, 107, 880, 0.13, 0.25, 0.27, 0.11, 0.29, 0.08]
    x = torch.tensor(values / usual - 1, dtype=torch.float32)
    y = torch.tensor(labels)
    mine = slice(169 + partition, None, partitions)
    return x[mine], y[mine], x[:169], y[:169]


def train(net, x, y, epochs, lr):
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    for _ in range(epochs):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
    return float(loss)


def test(net, x, y):
    with torch.no_grad():
        outputs = net(x)
    return float(F.cross_entropy(outputs, y)), float((outputs.argmax(1) == y).float().mean())
"""
_STREAM = """\
import csv

from sklearn.datasets import load_diabetes

values = load_diabetes(scaled=False).data
with open("visits.csv", "w", newline="") as file:
    rows = csv.writer(file)
    rows.writerow(["patient", "age", "bmi", "pressure", "sex"])
    for i, (age, sex, bmi, pressure, *_) in enumerate(values):
        rows.writerow([f"p{i}", age, bmi if i % 11 else "", pressure, "AB"[int(sex) - 1]])
"""
_STREAM_CONTRACT = """\
[columns.patient]
kind = "user"

[columns.age]
kind = "ignore"

[columns.bmi]
kind = "number"
lower = 15
upper = 45
centre = 25
unit = 10
may-be-missing = true

[columns.pressure]
kind = "number"
lower = 50
upper = 140
centre = 90
unit = 30

[columns.sex]
kind = "category"
words = ["A", "B"]
"""
#: The reader's files by the page's names, and what the reader says otherwise in commands and other files.
READERS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "compare-mechanisms": (
        {"make_rows.py": _TABLE, "contract.toml": _TABLE_CONTRACT},
        {
            "data.users=320": "data.users=360",
            "cohorts.size=32": "cohorts.size=36",
            "data.users = 320": "data.users = 360",
            "cohorts.size = 32": "cohorts.size = 36",
        },
    ),
    "make-an-app-private": ({"my-app/digits_app/task.py": _APP}, {}),
    "release-a-stream": (
        {"make_visits.py": _STREAM, "contract.toml": _STREAM_CONTRACT},
        {
            "--max-participations 3 --min-separation 100": "--max-participations 1 --min-separation 442",
            "--rounds 1200": "--rounds 442",
            '("wait", "temperature", "ward=A")': '("bmi", "pressure", "sex=A")',
        },
    ),
}


def commands(block: str) -> list[str]:
    """Of a block of a console."""
    return re.findall(r"^\$ (.*)$", block, re.MULTILINE)


def write(block: str) -> None:
    """A file whose name its first line says."""
    head, _, content = block.partition("\n")
    Path(head.removeprefix("# ")).write_text(content)


def edit(block: str) -> None:
    """Lines that are added to files, and taken away, each edit around lines that stay."""
    for part in block.split("--- ")[1:]:
        name, _, lines = part.partition("\n")
        before, after = (
            "".join(f"{line[1:]}\n" for line in lines.splitlines() if line[:1] in kept)
            for kept in ((" ", "-", ""), (" ", "+", ""))
        )
        text = Path(name).read_text()
        assert text.count(before) == 1, before
        Path(name).write_text(text.replace(before, after))


def steps(trail: str, page: str, wheel: str) -> Iterator[tuple[str, str]]:
    """What the reader does: ("run" | "write" | "edit", command or block), the installation first."""
    files, words = READERS[trail]
    files = dict(files)
    yield "run", "python3 -m venv env"
    for line in re.findall(r"^    (pip install .*)$", page, re.MULTILINE):
        yield "run", line.split("  ")[0].replace("'.[", f"'{wheel}[")
    for language, block in BLOCK.findall(page):
        if language == "diff":
            yield "edit", block
        elif language == "console":
            for command in commands(block):
                yield "run", _said(command, words)
                for name in [name for name in files if command.endswith(" " + name.partition("/")[0])]:
                    yield "write", f"# {name}\n{files.pop(name)}"
        else:
            head, _, content = block.partition("\n")
            yield "write", f"{head}\n{files.pop(head.removeprefix('# '), None) or _said(content, words)}"
    assert not files, f"the page has no {', '.join(files)}"


def _said(text: str, words: dict[str, str]) -> str:
    for theirs, mine in words.items():
        text = text.replace(theirs, mine)
    return text


def walk(folder: Path, todo: list[tuple[str, str]]) -> int:
    """Carry steps out in a folder, with nothing of this environment; print each command and its seconds."""
    os.chdir(folder)
    env = {"HOME": str(folder), "PATH": f"{folder}/env/bin:/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
    env |= {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    begun, installed = time.monotonic(), 0.0
    for kind, text in todo:
        if kind != "run":
            (write if kind == "write" else edit)(text)
            continue
        tries = [text, text.replace(_CPU_INDEX, "")] if _CPU_INDEX in text else [text]
        for command in tries:
            before, worked = time.monotonic(), _processor()
            done = subprocess.run(
                command,
                shell=True,
                env=env,
                capture_output=True,
                text=True,
                stdin=subprocess.DEVNULL,
                timeout=1800,
            )
            seconds = f"{time.monotonic() - before:6.1f} s, {_processor() - worked:6.1f} of work"
            print(f"  {seconds}  $ {command}", flush=True)
            # `flwr run` ends with 0 when its run failed, and says so.
            quiet = "flwr run " in command and "failed" in done.stdout + done.stderr
            if done.returncode == 0 and not quiet:
                break
            told = done.stdout + done.stderr if quiet else done.stderr
            print("            failed: " + " ".join(told.split())[-600:], flush=True)
        else:
            return 1
        shown = done.stdout.splitlines()[-4:] if not command.startswith(("pip", "python3 -m")) else []
        print("".join(f"            {line[:150]}\n" for line in shown), end="", flush=True)
        if command.startswith("pip"):
            installed = time.monotonic() - begun
    whole, worked = (time.monotonic() - begun) / 60, _processor() / 60
    print(f"  {whole:.1f} minutes, {installed / 60:.1f} of them to install; {worked:.1f} of work", flush=True)
    return 0


def _processor() -> float:
    """Processor seconds of all commands so far: what a busy machine does not stretch."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _inside(root: Path, command: list[str]) -> list[str]:
    """The command in a tree of its own, with processes and devices that end with it."""
    mounts = "mount -t proc proc {0}/proc && mount -t tmpfs tmpfs {0}/dev/shm && exec chroot {0} {1}"
    for device in ("null", "zero", "random", "urandom"):
        mounts = f"touch {{0}}/dev/{device} && mount --bind /dev/{device} {{0}}/dev/{device} && {mounts}"
    script = "mkdir -p {0}/dev/shm && " + mounts
    words = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec"]
    return [*words, script.format(shlex.quote(str(root)), shlex.join(command))]


def main() -> int:
    """Walk the trails asked for, or all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trail", nargs="*", help=f"of {', '.join(READERS)}")
    parser.add_argument("--root", type=Path, help="a tree of an operating system with Python")
    parser.add_argument("--steps", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.steps:
        return walk(given.steps.parent, json.loads(given.steps.read_text()))
    from tests.support.release.distribution import ROOT, build

    failed = 0
    base = (given.root / "tmp") if given.root else Path(tempfile.gettempdir())
    for trail in given.trail or READERS:
        place = Path(tempfile.mkdtemp(prefix="trail-", dir=base))
        wheel, source = build(place)
        source.unlink()
        seen = Path("/", place.relative_to(given.root)) if given.root else place
        todo = list(steps(trail, (ROOT / f"docs/trails/{trail}.md").read_text(), str(seen / wheel.name)))
        (place / "steps.json").write_text(json.dumps(todo))
        shutil.copy(__file__, place / "walk.py")
        command = ["python3", str(seen / "walk.py"), "--steps", str(seen / "steps.json")]
        where = f"in {given.root}" if given.root else "in an empty folder"
        print(f"{trail}, from {wheel.name}, {where}:", flush=True)
        failed += subprocess.run(
            _inside(given.root, command) if given.root else command, check=False
        ).returncode
        shutil.rmtree(place, ignore_errors=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
