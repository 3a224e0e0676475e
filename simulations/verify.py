"""Recompute the privacy of a run or stream, and what it published, from public files alone.

    python simulations/verify.py [--noise-only] STATEMENT.json RELEASED [PUBLISHED ...]

STATEMENT.json is what `fedmf account --public` wrote, RELEASED the folder of `--keep-releases`, and
PUBLISHED are models of a run (.safetensors), or the output of a stream (.jsonl). --noise-only tells
that contributions are negligible, as in a rehearsal with a tiny learning rate or rows of zeros, so
that noise above tau is rejected too. This file imports nothing of fedmf. Notation and theorems:
docs/theory/noise.md, accounting.md, moments.md. Exit status: 0 accepted, 1 rejected, 2 something
that it cannot recompute.

Not checked here (docs/auditing.md says what is accepted although it is wrong):
  * that a user's rows were clipped to this norm before they were summed
  * that (n, k, b) was kept
  * that the noise has this C and eta and is normal, and that it has tau where data may hide less
  * that the key of the noise was random, secret and used once
  * that these are all rounds, and integers that a run released, not invented ones
  * that a row depended on its user alone, and the other assumptions of the statement
"""

import hashlib
import json
import math
import sys
from collections.abc import Callable
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
from scipy.linalg import solve_triangular, toeplitz
from scipy.optimize import brentq
from scipy.special import gammainccinv, gammaincinv, log_ndtr, ndtri

LARGEST = 4096  # rounds of a dense matrix
FALSE_ALARM = 1e-6  # of all tests of the noise together
SEEDS = 10_000  # public seeds that are tried
FIXED = "none: fixed schedule, no amplification claimed"
AVAILABLE = "none: available cohorts, no amplification claimed"
#: The bound of one user's part in units of 2ᴮ; that of a metric of clients is METRIC.
BOUNDS = {"updates": 1, "first moment": 1, "second moment": 1, "clipping": 1}
METRIC = 2**20
#: Keys of a statement that are compared with the files, or from which ε was recomputed. Others are
#: named, and so is `sensitivity` where it is not.
COMPARED = {
    "adjacency",
    "amplification",
    "clip_norm",
    "delta",
    "epsilon",
    "epsilon_known_cohorts",
    "max_participations",
    "min_separation",
    "mu",
    "noise_key_public",
    "noise_multiplier",
    "noise_std",
    "release_every",
    "released_files",
    "rounds",
    "rounds_released",
    "sensitivity",
    "sensitivity_kind",
    "this_copy",
    "unit_bits",
    "users_per_round",
}
#: Keys of plan.json, and of its parts.
READ = {
    *("kind", "parts", "users_per_round", "clip_norm", "clipping", "second_form", "server"),
    *("arrays", "vector_norm", "count_weight", "workloads", "second_moment", "dimension", "units"),
    *("name", "strategy", "size", "bound", "bits", "std", "eta"),
}


class Rejected(Exception):
    """The statement, or a published number, does not follow from the released integers."""


class Unchecked(Exception):
    """This file cannot recompute it."""


def require(holds: bool, message: str) -> None:
    """Reject what does not hold."""
    if not holds:
        raise Rejected(message)


def read_json(text: str) -> dict:
    """Read an object in which no key stands twice and every number is finite.

    Programs read the first or the last of two values, so that people would read different ones.
    """

    def once(pairs: list) -> dict:
        content = dict(pairs)
        require(len(content) == len(pairs), "a key stands twice in a JSON object")
        return content

    def not_finite(name: str) -> None:
        raise Rejected(f"JSON holds the number {name}")

    content = json.loads(text, object_pairs_hook=once, parse_constant=not_finite)
    if not isinstance(content, dict):
        raise ValueError("JSON that is not an object")
    return content


# Privacy: ε from C, (n, k, b) and the noise of every part


def lower(column: list | np.ndarray, n: int) -> np.ndarray:
    """The lower triangular Toeplitz matrix of a first column, which zeros follow."""
    return np.tril(toeplitz(np.append(column, np.zeros(n - len(column)))))


def strategy(described: dict) -> tuple[np.ndarray, bool]:
    """C, and whether rounding errors are multiplied with all of it (noise.md, "Rows")."""
    n = described.get("rounds", 0)
    if n > LARGEST:
        raise Unchecked(f"{n} rounds: at most {LARGEST}")
    match described["type"]:
        case "toeplitz":
            return lower(described["coefficients"], n), False
        case "inverse-toeplitz":
            return np.linalg.inv(lower(described["coefficients"], n)), True
        case "buffered-toeplitz":
            powers = np.array(described["decays"]) ** np.arange(n - 1)[:, None]
            return lower(np.append(1.0, powers @ described["weights"]), n), False
        case "diagonal":
            return np.diag(described["entries"]), True
        case "banded":
            bands = np.array(described["band"]).T
            return sum(np.diag(band[: len(band) - d], -d) for d, band in enumerate(bands)), False
        case "dense":
            n = len(described["rows"])
            return np.array([row + [0.0] * (n - len(row)) for row in described["rows"]]), True
        case "column-scaled":
            C, spread = strategy(described["base"])
            return C / np.array(described["factors"]), spread
        case "stamped":
            C, spread = strategy(described["base"])
            return np.kron(np.eye(-(-n // len(C))), C)[:n, :n], spread
    raise Unchecked(f"strategy matrices of type {described['type']}")


def best_sum(weights: np.ndarray, k: int, b: int) -> np.ndarray:
    """For each column the largest sum of at most k entries, no two less than b rows apart."""
    best = np.zeros((len(weights) + 1, weights.shape[1]))
    apart = np.maximum(np.arange(1, len(weights) + 1) - b, 0)
    for _ in range(k):
        best[1:] = np.maximum.accumulate(weights + best[apart], axis=0)
    return best[-1]


def worst_square(matrices: list, reach, k: int, b: int) -> tuple[float, bool]:
    """max over patterns π of Σ_{i∈π} reach(Σ_{j∈π} |G_ij| for each G = CᵀC), and if it is exact.

    For one matrix and reach(p) = p this is sens(C)² if no entry of G is negative. Where |G_ij|
    falls with the distance of i and j, and with the later of them, the worst pattern is 0, b, 2b …:
    the m-th round of another is not before mb, and no two are closer. Otherwise patterns are
    enumerated, or if there are too many each sum over j is maximized on its own.
    """
    sizes = [np.abs(C.T @ C) for C in matrices]
    slack = [1e-12 * G.max() for G in sizes]
    signed = any((C.T @ C).min() < -small for C, small in zip(matrices, slack, strict=True))
    n = len(matrices[0])
    k = min(k, -(-n // b))
    if k == 1 or not any(np.triu(G, b).any() for G in sizes):
        return float(best_sum(reach(*map(np.diagonal, sizes))[:, None], k, b)[0]), True
    falling = True
    for G, small in zip(sizes, slack, strict=True):
        falling &= np.triu(np.diff(G, axis=0), 1).min() >= -small
        falling &= (G[1:, 1:] - G[:-1, :-1]).max() <= small
    if falling:
        earliest = b * np.arange(k)
        rows = [G[np.ix_(earliest, earliest)].sum(axis=1) for G in sizes]
        return float(reach(*rows).sum()), not signed
    if math.comb(n, min(k, n // 2)) <= 10**5:
        subsets = [p for size in range(1, k + 1) for p in combinations(range(n), size)]
        allowed = [p for p in subsets if (np.diff(p) >= b).all()]
        sums = [[G[np.ix_(p, p)].sum(axis=1) for G in sizes] for p in allowed]
        return float(max(reach(*rows).sum() for rows in sums)), not signed
    near = np.abs(np.subtract.outer(np.arange(n), np.arange(n))) < b
    rows = [np.diagonal(G) + best_sum(np.where(near, 0.0, G), k - 1, b) for G in sizes]
    return float(best_sum(reach(*rows)[:, None], k, b)[0]), False


def joint(p: np.ndarray, q: np.ndarray, nu: float, adjacency: str) -> np.ndarray:
    """φ(p, q) of moments.md: what a user reaches in both moments, the second one weighted by ν."""
    if adjacency == "zero-out":
        return p + nu * q
    y = np.maximum(nu * q / p, 0.5)
    return p * (2 + 2 * y + 1 / (2 * y))


def epsilon_of(mu: float, delta: float) -> float:
    """The ε of μ-Gaussian privacy: δ = Φ(μ/2 − ε/μ) − e^ε·Φ(−μ/2 − ε/μ)."""

    def excess(epsilon: float) -> float:
        first = log_ndtr(mu / 2 - epsilon / mu)
        second = epsilon + log_ndtr(-mu / 2 - epsilon / mu)
        return first + math.log1p(-math.exp(min(second - first, -1e-300))) - math.log(delta)

    return brentq(excess, 0.0, mu**2 / 2 + 40 * mu, xtol=1e-12) if excess(0.0) > 0 else 0.0


def movement(part: dict, C: np.ndarray, spread: bool, cut: float) -> float:
    """W/τ of a part: what rounding to integers adds to μ."""
    norm = np.diagonal(C).max()
    if spread:
        norm = math.sqrt(np.abs(C).sum(axis=0).max() * np.abs(C).sum(axis=1).max())
    return (norm * math.sqrt(part["size"] * len(C)) * (1 + 2 * part["eta"]) + cut) / part["std"]


def check_contract(said: dict, stream: bool) -> None:
    """Check that (n, k, b) is possible, and that so few users can have filled the rounds.

    Every round of a fixed schedule has m users, so T rounds have T·m participations of at most k
    each, and b successive rounds have different users. Other cohorts may be smaller.
    """
    counts = ["rounds", "max_participations", "min_separation", "users_per_round"]
    if stream:
        counts.append("release_every")
    require(stream or "release_every" not in said, "release_every in the statement of a run")
    for name in counts:
        require(type(said[name]) is int and said[name] >= 1, f"{name} is not a positive integer")
    released = said["rounds_released"]
    n = said["rounds"]
    k = said["max_participations"]
    b = said["min_separation"]
    require(type(released) is int and released >= 0, "rounds_released is not a natural number")
    require(released <= n, f"{released} rounds: more rounds than n")
    require((k - 1) * b < n, f"{k} participations, {b} apart, do not fit in {n} rounds")
    if said["sampling"] == FIXED:
        m = said["users_per_round"]
        few = f"{said['users']} users are too few for {released} rounds of {m} users"
        require(released * m <= said["users"] * k, few)
        require(min(b, released) * m <= said["users"], few)


def check_parts(said: dict, plan: dict, matrices: list) -> None:
    """Check what the kind of the plan implies for its parts, and their noise in the statement."""
    if plan.get("second_form") == "squared-mean":
        raise Unchecked("second moments of a mean")
    parts = plan["parts"]
    stream = plan["kind"] == "stream"
    n = said["rounds"]
    norm = plan["clip_norm"]
    names = ["updates", *(["second moment"] if plan.get("second_form") else [])]
    names += [each["name"] for each in said.get("statistics", [])]
    if stream:
        n = -(-n // said["release_every"])
        norm = plan["vector_norm"]
        names = ["first moment", "second moment"][: len(parts)]
    else:
        require(
            plan["users_per_round"] == said["users_per_round"], "users_per_round is another one"
        )
    require([part["name"] for part in parts] == names, f"the parts are not {', '.join(names)}")
    require(norm == said["clip_norm"], "the clip norm is another one")
    for part, bits, (C, _) in zip(parts, said["unit_bits"], matrices, strict=True):
        name = part["name"]
        triangular = not np.triu(C, 1).any() and (np.diagonal(C) > 0).all()
        require(len(C) == n and triangular, f"C of {name} is not triangular of {n} rounds")
        require(part["bits"] == bits and part["std"] > 0, f"unit or noise of {name}")
        require(0 <= part["eta"] <= 0.25, f"eta of {name} is above 1/4")
        require(part["bound"] == BOUNDS.get(name, METRIC), f"bound of {name} is another one")
    stated = [(parts[0], norm, said["noise_std"])]
    if names[-1] == "second moment":
        stated.append((parts[1], norm**2, said["second_moment"]["noise_std"]))
    for part, unit, std in stated:
        same = math.isclose(part["std"] * unit * 2.0 ** -part["bits"], std, rel_tol=1e-9)
        require(same, f"noise_std of {part['name']} is another one")


def check_privacy(said: dict, plan: dict, matrices: list) -> None:
    """Recompute sensitivity, W and ε, and compare them with the statement."""
    require(said["epsilon"] is not None, "the statement says that there is no privacy")
    parts = plan["parts"]
    stream = plan["kind"] == "stream"
    n = said["rounds"]
    k = said["max_participations"]
    b = said["min_separation"]
    rows = 1  # of a user in one release
    if stream:
        every = said["release_every"]
        rows = min(k, -(-every // b))
        n = -(-n // every)
        k = -(-k // rows)
        b = max(1, b // every)
    # The bound of what one user adds, over the standard deviation of the noise.
    ratios = [part["bound"] * 2.0 ** part["bits"] / part["std"] for part in parts]
    factor = {"zero-out": 1, "replace-one": 2}[said["adjacency"]]
    moved = [movement(part, *matrix, 0.0) for part, matrix in zip(parts, matrices, strict=True)]
    square, exact = worst_square([matrices[0][0]], lambda p: p, k, b)
    if len(parts) > 1 and parts[1]["name"] == "second moment":
        # Rounding moves the features of one user away from those of another.
        near = 1 + 2.0**-18 if stream else factor - 1.0
        alone, _ = worst_square([matrices[1][0]], lambda p: p, k, b)
        moved[1] = movement(parts[1], *matrices[1], near * math.sqrt(parts[1]["size"] * alone))
        weights = ((ratios[1] / ratios[0]) ** 2, said["adjacency"])
        both = [C for C, _ in matrices]
        square, exact = worst_square(both, lambda p, q: joint(p, q, *weights), k, b)
        one_matrix = parts[0]["strategy"] == parts[1]["strategy"] and parts[1]["size"] > 1
        exact = exact and (factor == 1 or one_matrix)  # else the best x and y differ by round
        mu = math.sqrt(square) * ratios[0]
        sensitivity = None
        if said.get("method") == "joint":
            sensitivity = rows * math.sqrt(square)
    else:
        require(all(p["strategy"] == parts[0]["strategy"] for p in parts), "parts differ in C")
        mu = factor * math.sqrt(square) * math.hypot(*ratios)
        sensitivity = rows * math.sqrt(square)
        if stream:
            sensitivity *= factor
    check_sensitivity(said, sensitivity if exact else None)
    mu = rows * (mu + math.hypot(*moved))
    failure = (2 + n) * n * sum(part["size"] for part in parts) * 3e-87
    epsilon = epsilon_of(mu, said["delta"] - failure)
    stated = said["epsilon_known_cohorts"]
    print(f"epsilon {epsilon:.6f} at delta {said['delta']:g}, stated {stated:.6f}; mu {mu:.6f}")
    print("sensitivity", "exact" if exact else "an upper bound", f"W/tau {math.hypot(*moved):.1e}")
    same = math.isclose(said["epsilon"], stated, rel_tol=1e-9)
    require(same or said["amplification"], "epsilon is not epsilon_known_cohorts")
    same = math.isclose(said["mu"] * said["noise_multiplier"], 1, rel_tol=1e-9)
    require(same, "noise_multiplier is not 1/mu")
    for name, value in {"epsilon_known_cohorts": epsilon, "mu": mu}.items():
        if not value <= said[name] * (1 + 1e-6):
            wrong = Rejected if exact else Unchecked
            raise wrong(f"the stated {name} is {said[name]}; {value} follows from the noise")


def check_sensitivity(said: dict, sensitivity: float | None) -> None:
    """Compare the stated sensitivity with the exact one, if that was computed."""
    if sensitivity is None:
        print("not checked: sensitivity of the statement")
        return
    stated = said["sensitivity"]
    same = math.isclose(stated, sensitivity, rel_tol=1e-9)
    above = said["sensitivity_kind"] != "exact" and stated > sensitivity
    require(same or above, f"the sensitivity of this C is {sensitivity}")


def check_key(said: dict) -> None:
    """Reject a key that was called secret, but is that of a small public seed."""
    if said["noise_key_public"]:
        return
    for seed in range(SEEDS):
        secret = b"fedmf noise key from seed, version 1\0" + str(seed).encode()
        key = hashlib.sha256(secret).digest()
        of_key = hashlib.sha256(b"fedmf noise key fingerprint, version 1\0" + key).hexdigest()
        require(of_key[:16] != said["noise_key"], f"the key is that of the public seed {seed}")


def name_unread(said: dict, plan: dict) -> None:
    """Name the fields of the statement and the plan that nothing was compared with."""
    for name in ("assumptions", "not_covered", "secret"):
        require(bool(said[name]), f"the statement has no {name}")
    unread = {name for name, value in said.items() if value not in (None, [], {})} - COMPARED
    print(f"not checked, fields of the statement: {', '.join(sorted(unread))}")
    unread = set().union(plan, *plan["parts"]) - READ
    if unread:
        print(f"not checked, fields of plan.json: {', '.join(sorted(unread))}")
    if said["this_copy"] is not None:
        print(f"NOT THE WHOLE RUN: {said['this_copy']}")


# What was released: the files of the statement, and their noise


def check_files(said: dict, folder: Path, kind: str) -> None:
    """Compare the files with the SHA-256 in the statement."""
    files = said["released_files"] or {}
    needed = {"plan.json", "integers.bin"}
    if kind == "run":
        needed.add("initial.safetensors")
    require(needed <= files.keys(), "the statement has no digests of the released files")
    for name, digest in files.items():
        content = (folder / name).read_bytes()
        same = hashlib.sha256(content).hexdigest() == digest
        require(same, f"{name} is not the file that the statement is about")
    for file in sorted(folder.iterdir()):
        if file.name not in needed:
            print(f"not checked: file {file}")


def check_noise(
    parts: list, matrices: list, integers: list, noise_only: bool, users: int | None = None
) -> None:
    """Test z = Co/τ = CG/τ + N of each part, where N is the noise and G the sums of `users`.

    Let c_t be any function of earlier releases. Given these, the entries of z_t − c_t are normal
    with variance 1 and some mean, whatever G is, and so their squares are stochastically larger
    than χ² of one degree. Too little energy, with a c_t and entries that earlier rows choose, is
    thus evidence against τ, C or fresh noise. What rounding adds, W/τ, is negligible here. Each of
    seven tests per part may raise a false alarm with equal probability.
    """
    level = FALSE_ALARM / len(parts) / 7
    for part, (C, _), sums in zip(parts, matrices, integers, strict=True):
        if not sums.size:
            continue
        n = len(sums)
        z = C[:n, :n] @ (sums / part["std"])
        check_energy(part["name"], z, level, noise_only)
        check_repeated(part["name"], z, level)
        check_quiet(part["name"], z, level)
        if users is not None:
            check_largest(part, z, C[:n, :n], users, level)


def check_energy(name: str, z: np.ndarray, level: float, noise_only: bool) -> None:
    """Test the energy of all rows together and of each; without data (G = 0) from above too."""
    n, size = z.shape
    rows = np.square(z).mean(axis=1)
    energy = rows.mean()
    least, most = limits(n * size, level)
    least_row, most_row = limits(size, level / n)
    allowed = f"at least {math.sqrt(least):.4f}"
    if noise_only:
        allowed += f", at most {math.sqrt(most):.4f}"
    print(f"noise of {name}: rms of Co {math.sqrt(energy):.4f} tau, must be {allowed}")
    require(energy >= least, f"the noise of {name} is smaller than stated")
    small = f"the noise of {name} in round {rows.argmin() + 1} is smaller than stated"
    require(rows.min() >= least_row, small)
    if noise_only:
        require(energy <= most, f"the noise of {name} is too large")
        large = f"the noise of {name} in round {rows.argmax() + 1} is too large"
        require(rows.max() <= most_row, large)
    elif energy > most:
        print(f"data hide the noise of {name}: less noise would not be noticed")


def check_repeated(name: str, z: np.ndarray, level: float) -> None:
    """Test ‖z_t − z_s‖² for all s < t: c_t = z_s. It is small where a row of noise was used twice.

    The pair that is closest by scalar products is computed again, without their cancellation.
    """
    n, size = z.shape
    if n == 1:
        return
    squares = np.square(z).sum(axis=1)
    distances = squares[:, None] + squares - 2 * (z @ z.T)
    distances[np.triu_indices(n)] = np.inf
    t, s = np.unravel_index(distances.argmin(), distances.shape)
    least, _ = limits(size, level / (n * (n - 1) / 2))
    twice = f"the noise of {name} in round {t + 1} is that of round {s + 1} again"
    require(np.square(z[t] - z[s]).mean() >= least, twice)


def check_quiet(name: str, z: np.ndarray, level: float) -> None:
    """Test in each round the half of the coordinates that had the least energy before it.

    Noise in a part of the coordinates only leaves the others quiet.
    """
    n, size = z.shape
    if n == 1:
        return
    half = (size + 1) // 2
    before = np.zeros(size)
    energy = 0.0
    for earlier, row in pairwise(z):
        before += earlier**2
        energy += np.square(row[np.argpartition(before, half - 1)[:half]]).sum()
    count = half * (n - 1)
    least, _ = limits(count, level)
    require(energy / count >= least, f"the noise of {name} is missing in some coordinates")


def check_largest(part: dict, z: np.ndarray, C: np.ndarray, users: int, level: float) -> None:
    """Test ‖z_t‖ ≤ ‖N_t‖ + Σ_s |C_ts|·‖G_s‖/τ, where ‖G_s‖ is at most that of `users` vectors.

    Noise of another C, or a smaller τ than the real one, makes z larger. A vector is rounded to
    integers, which adds at most 1 to an entry.
    """
    n, size = z.shape
    one = part["bound"] * 2.0 ** part["bits"] + math.sqrt(size)
    _, most = limits(size, level / n)
    largest = math.sqrt(most * size) + np.abs(C).sum(axis=1) * users * one / part["std"]
    beyond = np.linalg.norm(z, axis=1) > largest
    large = f"Co of {part['name']} in round {beyond.argmax() + 1} is larger than noise and"
    require(not beyond.any(), f"{large} the clipped vectors of {users} users")


def most_users(said: dict, stream: bool) -> int | None:
    """The largest number of vectors in a sum; None if there is no limit."""
    if stream:
        return said["release_every"] if said["periods"] is None else None
    return said["users_per_round"] if said["sampling"] in (FIXED, AVAILABLE) else None


def limits(entries: int, level: float) -> tuple[float, float]:
    """The quantiles at `level` and 1 − `level` of the mean square of standard normal entries."""
    half = entries / 2
    return gammaincinv(half, level) / half, gammainccinv(half, level) / half


# What was published: functions of the integers


def read_integers(folder: Path, parts: list, releases: int) -> list[np.ndarray]:
    """o of every part, shape (releases, size)."""
    flat = np.fromfile(folder / "integers.bin", "<i8")
    sizes = [part["size"] for part in parts]
    require(flat.size == releases * sum(sizes), f"integers.bin does not hold {releases} releases")
    require((np.abs(flat // 2) < 2**61).all(), "an integer is beyond 2^62")
    return np.split(flat.reshape(releases, sum(sizes)), np.cumsum(sizes)[:-1], axis=1)


def learning_rate(server: dict, t: int, n: int) -> float:
    """η_t."""
    warmup = server["warmup"]
    if t < warmup:
        return server["learning_rate"] * (t + 1) / (warmup + 1)
    x = (t - warmup) / (n - warmup)
    decays = {"constant": 1.0, "linear": 1 - x, "cosine": (1 + math.cos(math.pi * x)) / 2}
    return server["learning_rate"] * decays[server["schedule"]]


Add = Callable[[float, np.ndarray, np.ndarray], np.ndarray]


def fused(a: float, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """a·x + y of float32 numbers, rounded once, as processors with fused operations compute it.

    The product is exact in float64. The sum is rounded to odd there, after which rounding to
    float32 gives the same as if there had been no rounding before (Boldo and Melquiond, 2008).
    """
    product = np.float64(np.float32(a)) * x.astype(np.float64)
    total = product + y
    of_y = total - product
    lost = (product - (total - of_y)) + (y - of_y)
    even = total.view(np.int64) % 2 == 0
    total = np.where((lost != 0) & even, np.nextafter(total, np.copysign(np.inf, lost)), total)
    return total.astype(np.float32)


def separate(a: float, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """a·x + y of float32 numbers, where product and sum are rounded."""
    return np.float32(a) * x + y


def models_of(plan: dict, n: int, integers: list, theta: np.ndarray, add: Add) -> list[np.ndarray]:
    """θ_0, θ_1, …: SGD with momentum on the means o·(ζ·2⁻ᴮ/m), in the order of fedmf."""
    server = plan["server"]
    if server["kind"] != "sgd":
        raise Unchecked(f"models of the optimizer {server['kind']}")
    clipping = plan["clipping"]
    block = clipping.get("rounds_per_update", n + 1)
    m = plan["users_per_round"]
    sums = {part["name"]: o for part, o in zip(plan["parts"], integers, strict=True)}
    bits = {part["name"]: part["bits"] for part in plan["parts"]}
    zeta = plan["clip_norm"]
    shares = 0.0
    velocity = np.zeros_like(theta)
    models = [theta]
    for t, o in enumerate(sums["updates"]):
        divisor = m * zeta if clipping.get("normalize_updates") else m
        mean = (o * (zeta * 2.0 ** -bits["updates"] / divisor)).astype(np.float32)
        velocity = add(server["momentum"], velocity, mean)
        eta = learning_rate(server, t, n)
        theta = np.float32(1 - eta * server["weight_decay"]) * theta
        theta = add(eta, velocity, theta)
        models.append(theta)
        if "quantile" not in clipping:
            continue
        shares += 0.5 + float(sums["clipping"][t, 0]) * (2.0 ** -bits["clipping"] / m) / 2
        if (t + 1) % block == 0:  # ζ follows the share of users below it
            step = math.log(zeta / plan["clip_norm"])
            step -= clipping["learning_rate"] * (shares / block - clipping["quantile"])
            zeta = plan["clip_norm"] * math.exp(min(max(step, -math.log(2**20)), math.log(2**20)))
            shares = 0.0
    return models


def check_run(said: dict, plan: dict, n: int, integers: list, folder: Path, files: list) -> None:
    """Compare published models with those of the integers, bit for bit.

    Digits that rounding explains, but not that of fused or separate operations, are unchecked.
    """
    theta, _ = read_model(said, plan, folder / "initial.safetensors")
    models = []
    for add in (fused, separate):
        models.append(models_of(plan, n, integers, np.concatenate(theta), add))
    largest = max(float(np.abs(each).max()) for each in models[0])
    for path in files:
        arrays, t = read_model(said, plan, path)
        require(0 <= t < len(models[0]), f"{path} is of round {t}, which was not released")
        published = np.concatenate(arrays).astype(np.float64)
        differing = []
        for each in models:
            split = np.split(each[t], np.cumsum([array.size for array in arrays])[:-1])
            own = [a.astype(array.dtype) for a, array in zip(split, arrays, strict=True)]
            differing.append(int((np.concatenate(own) != published).sum()))
        different = min(differing)
        print(f"{path}: round {t}, {different} of {published.size} parameters differ")
        off = np.abs(published - models[0][t]).max()
        require(off <= (t + 1) * 2.0**-22 * largest, f"{path} is not the model of these integers")
        if different:
            raise Unchecked(f"the last digits of {path}: other rounding, or a message")


def read_model(said: dict, plan: dict, path: Path) -> tuple[list[np.ndarray], int]:
    """Read the arrays of a model and its round; name what else the file holds."""
    from safetensors import safe_open

    inputs = {each["name"]: each.get("value") for each in said["public_inputs"]}
    constants = (inputs.get("arrays that stay") or "").split(", ")
    with safe_open(path, "np") as file:
        arrays = [file.get_tensor(name).ravel() for name, _ in plan["arrays"]]
        about = file.metadata() or {}
        for name in set(file.keys()) - {name for name, _ in plan["arrays"]}:
            floats = file.get_slice(name).get_dtype() in ("F16", "F32", "F64")
            if floats and any(np.array_equal(file.get_tensor(name).ravel(), a) for a in arrays):
                continue  # a tied parameter
            stays = name in constants or "frozen parameters and buffers" in inputs
            require(stays, f"{path}: neither plan nor statement has a tensor {name}")
            print(f"not checked: tensor {name} of {path}")
    for name in sorted(about.keys() - {"rounds"}):
        print(f"not checked: {name} of {path} is {about[name]!r}")
    return arrays, int(about.get("rounds", 0))


def workload(text: str, n: int) -> np.ndarray:
    """A of a stream by its name."""
    name, *values = text.split(":")
    lag = np.arange(n)
    match name:
        case "average":
            return lower(np.ones(n), n) / np.arange(1, n + 1)[:, None]
        case "prefix":
            return lower(np.ones(n), n)
        case "exponential":
            return lower(float(values[0]) ** lag, n)
        case "window":
            return lower((lag < int(values[0])) / int(values[0]), n)
    raise Unchecked(f"workload {text}")


def shrunk(
    raw: np.ndarray, mean: np.ndarray, v: float, v2: float, ratio: float, zeta: float
) -> np.ndarray:
    """The published covariance, or variances, from the unbiased ones (moments.md)."""
    d = len(mean)
    full = raw.ndim == 2
    values, vectors = np.linalg.eigh(raw) if full else (raw, np.eye(d))
    slopes = raw - (np.outer(mean, mean) if full else mean**2)
    of_count = v * ratio
    square = max((mean**2).sum() - d * v, 0.0) / (1 + of_count)
    grown = ratio * square  # W has the trace d + grown, and W² d + 2·grown + grown²
    of_squares = d + 2 * grown + grown**2
    linear = d * v2 + 4 * v * square + 2 * v**2 * of_squares
    of_trace = linear + of_count * (values.sum() - square) ** 2
    if full:
        linear = d * (d + 1) * v2 / 2 + 2 * (d + 1) * v * square
        linear += v**2 * ((d + grown) ** 2 + of_squares)
    error = linear + of_count * (slopes**2).sum()
    axis = (of_trace + 2 * error) / (d * (d + 2)) if full else error / d
    freedom = d * (d + 1) // 2 - 1 if full else d - 1
    noise = max(freedom - 2, 0) / max(freedom, 1) * max(error - of_trace / d, 0.0)
    rho = min(1.0, noise / max(((values - values.mean()) ** 2).sum(), 1e-300))
    values = (1 - rho) * values + rho * values.mean()
    s = math.sqrt((1 - rho) ** 2 * (axis - of_trace / d**2) + of_trace / d**2)
    z = np.maximum(values / s, -10.0)
    values = s * (z + np.exp(-0.5 * z**2 - 0.5 * math.log(2 * math.pi) - log_ndtr(z)))
    values *= min(1.0, zeta**2 / values.sum())
    return (vectors * values) @ vectors.T if full else values


FOLLOWING = {"mean", "mean_standard_error", "covariance", "covariance_raw"}


def described(plan: dict, Y: np.ndarray, S: np.ndarray, w: float, v: float, v2: float) -> dict:
    """Mean and covariance from sums, their weight and noise; none where rows are too few."""
    c = plan["count_weight"]
    zeta = plan["clip_norm"]
    full = S.ndim == 2
    if c > 0:  # the last coordinate counts valid rows
        if ndtri(0.975) * math.sqrt(v) >= Y[-1]:
            return {}
        w = Y[-1] / c
        Y = Y[:-1]
        S = S[:-1, :-1] if full else S[:-1]
    mean = Y / w
    outer = np.outer(mean, mean) if full else mean**2
    ratio = 1 / c**2 if c > 0 else 0.0
    v = v / w**2
    v2 = v2 / w**2
    raw = S / w - outer + v * ((np.eye(len(mean)) if full else 1.0) + ratio * outer)
    covariance = shrunk(raw, mean, v, v2, ratio, zeta)
    units = np.array(plan["units"] or [[0.0, 1.0]] * len(mean))
    scale = units[:, 1]
    squares = np.outer(scale, scale) if full else scale**2
    return {
        "mean": units[:, 0] + scale * mean,
        "mean_standard_error": scale * np.sqrt(v * (1 + ratio * mean**2)),
        "covariance": squares * covariance,
        "covariance_raw": squares * raw,
    }


def check_stream(said: dict, plan: dict, matrices: list, integers: list, published: list) -> None:
    """Compare published means and covariances with those of the integers."""
    d = plan["dimension"]
    every = said["release_every"]
    kind = plan["second_moment"]
    if len(integers) == 1 or kind not in ("full", "diagonal") or len(set(plan["workloads"])) > 1:
        raise Unchecked("covariances of two workloads, of squared private rows, or of blocks")
    A = workload(plan["workloads"][0], len(matrices[0][0]))
    upper = np.triu_indices(d)
    sums = []
    variances = []
    for i, (part, (C, _)) in enumerate(zip(plan["parts"], matrices, strict=True)):
        unit = plan["vector_norm"] ** (i + 1) * 2.0 ** -part["bits"]
        sums.append(A[: len(integers[i]), : len(integers[i])] @ (integers[i] * unit))
        noise = solve_triangular(C.T, A.T, lower=False)
        variances.append((part["std"] * unit) ** 2 * (noise**2).sum(axis=0))
    for path in published:
        lines = read_lines(path)
        for line in lines:
            at = -(-line["t"] // every) - 1
            require(at < len(sums[0]), f"{path}: no integers of the release after {line['t']} rows")
            S = sums[1][at]
            if kind == "full":
                half = np.zeros((d, d))
                half[upper] = S * np.where(upper[0] == upper[1], 0.5, math.sqrt(0.5))
                S = half + half.T
            weight = every * A[at].sum() - A[at, at] * ((at + 1) * every - line["t"])
            own = described(plan, sums[0][at], S, weight, variances[0][at], variances[1][at])
            check_line(line, own, f"{path} after {line['t']} rows")
        times = len({line["t"] for line in lines})
        print(f"{path}: {times} of {len(sums[0])} releases, which follow from the integers")
        unread = set().union(*lines) - {"t", *FOLLOWING}
        if unread:
            print(f"not checked: fields {', '.join(sorted(unread))}")


def read_lines(path: Path) -> list[dict]:
    """The releases of a stream, one a line."""
    texts = path.read_bytes().splitlines()
    require(bool(texts), f"{path} is empty")
    lines = []
    for number, text in enumerate(texts, 1):
        try:
            line = read_json(text.decode())
        except ValueError:
            raise Rejected(f"{path}, line {number} is not JSON") from None
        fine = type(line.get("t")) is int and line["t"] > 0
        require(fine, f"{path}, line {number} is not a release after t rows")
        lines.append(line)
    return lines


def check_line(line: dict, own: dict, where: str) -> None:
    """Compare a release with its own mean and covariance; with none if rows are too few."""
    for name in ("mean", "covariance"):
        require(name in line, f"{where}: there is no {name}")
    for name in FOLLOWING & line.keys():
        try:
            value = np.array(line[name], float)
        except (TypeError, ValueError):
            raise Rejected(f"{where}: {name} is not an array of numbers") from None
        if not own:
            require(bool(np.isnan(value).all()), f"{where}: {name} in spite of too few rows")
            continue
        require(value.shape == own[name].shape, f"{where}: {name} has another shape")
        same = np.abs(value - own[name]) <= 1e-7 * np.abs(own[name]).max()
        require(bool(same.all()), f"{where}: {name}")


def verify(statement: Path, folder: Path, published: list[Path], noise_only: bool = False) -> bool:
    """Check a statement and what was published.

    Returns:
        Whether the seed of the noise is public.

    Raises:
        Rejected, Unchecked: it is wrong, or cannot be recomputed.
    """
    said = read_json(statement.read_text())
    plan = read_json((folder / "plan.json").read_text())
    require(plan["kind"] in ("run", "stream"), "plan.json is of another kind")
    stream = plan["kind"] == "stream"
    check_files(said, folder, plan["kind"])
    check_contract(said, stream)
    check_key(said)
    matrices = [strategy(part["strategy"]) for part in plan["parts"]]
    check_parts(said, plan, matrices)
    check_privacy(said, plan, matrices)
    releases = -(-said["rounds_released"] // (said["release_every"] if stream else 1))
    integers = read_integers(folder, plan["parts"], releases)
    check_noise(plan["parts"], matrices, integers, noise_only, most_users(said, stream))
    name_unread(said, plan)
    if published and stream:
        check_stream(said, plan, matrices, integers, published)
    elif published:
        check_run(said, plan, len(matrices[0][0]), integers, folder, published)
    if said["amplification"]:
        raise Unchecked(f"epsilon {said['epsilon']} against those who do not know the cohorts")
    return said["noise_key_public"]


def main() -> int:
    """Verify the files of the command line."""
    names = [name for name in sys.argv[1:] if name != "--noise-only"]
    if len(names) < 2:
        sys.exit(__doc__)
    statement, folder, *published = map(Path, names)
    try:
        simulation = verify(statement, folder, published, noise_only="--noise-only" in sys.argv)
    except (Rejected, Unchecked) as error:
        print(f"{type(error).__name__.upper()}: {error}")
        return 1 if isinstance(error, Rejected) else 2
    except Exception as error:  # files that fedmf did not write may raise anything
        print(f"REJECTED: a file is missing or damaged: {type(error).__name__}: {error}")
        return 1
    print("ACCEPTED.", __doc__[__doc__.index("Not checked") :])
    if simulation:
        print("SIMULATION: the seed of the noise is public, so there is no privacy")
    return 0


if __name__ == "__main__":
    sys.exit(main())
