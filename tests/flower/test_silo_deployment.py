"""Three hospitals on a SuperLink: isolated processes, trusted entities, one killed and back.

Flower's Hub, which cannot be reached here, is replaced in the SuperLink by a signature of its own;
the SuperNodes, which the silos trust, are Flower's own.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from support.flower_network import (
    FlowerRun,
    Process,
    SuperLink,
    _running,
    _until,
    flower_environment,
    flwr_run,
    free_ports,
    superlink,
)

import fedmf
from fedmf.ledger.ledger import Ledger
from fedmf.runs.run_statement import account

APP = Path(__file__).parents[2] / "docs" / "examples" / "silos"
ROUNDS = 6
#: Seconds of a round; one of them is spent on the silo that was killed.
TIMEOUT = 120.0
HUB = """#!{python}
import base64, hashlib, json, sys
from pathlib import Path
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.superlink.cli import flower_superlink
from flwr.superlink.servicer.control import control_handlers

plain = control_handlers.Fab
key = load_ssh_private_key(Path({key!r}).read_bytes(), None)


def signed(digest, content, verifications):
    if not Path({signs!r}).exists():
        return plain(digest, content, {{"valid_license": ""}})
    message = (1_700_000_000).to_bytes(8, "big") + hashlib.sha256(content).digest()
    signature = base64.urlsafe_b64encode(key.sign(message)).decode()
    entry = json.dumps({{"signed_at": 1_700_000_000, "signature": signature}})
    return plain(digest, content, {{"valid_license": "Valid", "fpk_review": entry}})


control_handlers.Fab = signed
sys.exit(flower_superlink())
"""


@contextmanager
def hospital(
    env: Mapping[str, str], link: SuperLink, place: Path, number: int
) -> Iterator[list[Process]]:
    """A SuperNode and the process that runs its apps, which alone could read the patients."""
    port = str(free_ports(1)[0])
    config = f"data='{place}/hospital-{number}.csv' silo='{place}/hospital-{number}.toml'"
    secret = str(place / "secret")
    stamp = time.monotonic_ns()
    node = ["flower-supernode", "--superlink", link.address, "--host", "127.0.0.1", "--insecure"]
    node += ["--port", port, "--node-config", config, "--isolation", "process"]
    node += ["--trusted-entities", str(place / "trusted.yaml")]
    node += ["--superexec-auth-secret-file", secret]
    runner = ["flower-superexec", "--runtime-api-address", f"127.0.0.1:{port}", "--insecure"]
    runner += ["--superexec-auth-secret-file", secret]
    logs = [link.logs / f"{name}-{number}-{stamp}.log" for name in ("supernode", "superexec")]
    with _running({logs[0]: node}, env) as nodes:
        assert _until(lambda: "SuperNode ID" in logs[0].read_text(), 600), logs[0].read_text()
        with _running({logs[1]: runner}, env) as runners:
            yield [*nodes, *runners]


def released(place: Path, number: int) -> int:
    path = place / f"hospital-{number}" / "ledger.sqlite"
    if not path.exists():
        return 0
    with Ledger.open(path, read_only=True) as ledger:
        return ledger.released


def prepared(folder: Path, env: dict[str, str]) -> Path:
    """The hospitals' files, whose SuperNodes trust one key, and a SuperLink that may sign by it."""
    place = folder / "hospitals"
    place.mkdir()
    sys.path.insert(0, str(APP))
    try:
        from silos.task import write  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(APP))
    write(place)
    key = Ed25519PrivateKey.generate()
    openssh = serialization.Encoding.OpenSSH
    public = key.public_key().public_bytes(openssh, serialization.PublicFormat.OpenSSH)
    (place / "trusted.yaml").write_text(f"fpk_review: '{public.decode()}'\n")
    (place / "secret").write_bytes(b"0123456789abcdef0123456789abcdef")
    pem = serialization.Encoding.PEM
    nothing = serialization.NoEncryption()
    private = key.private_bytes(pem, serialization.PrivateFormat.OpenSSH, nothing)
    (folder / "key").write_bytes(private)
    commands = folder / "commands"
    commands.mkdir()
    hub = commands / "flower-superlink"
    signs = str(folder / "signs")
    hub.write_text(HUB.format(python=sys.executable, key=str(folder / "key"), signs=signs))
    hub.chmod(0o700)
    env["PATH"] = f"{commands}:{env['PATH']}"
    env["PYTHONPATH"] = str(Path(fedmf.__file__).parents[1])
    return place


@pytest.mark.weekly
@pytest.mark.deployment
def test_three_silos_one_killed_and_back(tmp_path: Path) -> None:
    env = flower_environment(tmp_path)
    app = Path(shutil.copytree(APP, tmp_path / "app"))
    place = prepared(tmp_path, env)
    results = list[FlowerRun]()

    def train(rounds: int) -> None:
        config = {"num-server-rounds": rounds, "timeout": TIMEOUT}
        results.append(flwr_run(app, env, link.name, config))

    training = threading.Thread(target=train, args=[ROUNDS])
    with (
        superlink(env, tmp_path / "net") as link,
        hospital(env, link, place, 0),
        hospital(env, link, place, 1),
    ):
        with hospital(env, link, place, 2) as processes:
            train(1)
            assert [released(place, number) for number in range(3)] == [0, 0, 0]  # not signed
            (tmp_path / "signs").touch()
            training.start()
            assert _until(lambda: released(place, 2) >= 1, 1200)
            for process in processes:
                process.kill()
        before = released(place, 2)
        assert _until(lambda: released(place, 0) >= before + 2, 1200)
        with hospital(env, link, place, 2):  # under another node id
            training.join()
    assert all(result.ok for result in results), results[-1].output[-3000:]
    fingerprints = set[str]()
    for number in range(3):
        said = account(place / f"hospital-{number}").to_dict()
        print(number, said["rounds_released"], said["epsilon"], said["trust"])
        assert before < said["rounds_released"] <= ROUNDS
        assert said["epsilon"] <= 8.0
        assert said["actual_max_participations"] <= said["max_participations"]
        fingerprints.add(said["noise_key"])
    assert len(fingerprints) == 3
