"""The Triton kernels: interpreted against the kernels on CPUs and the reference, compiled without a GPU, and
on a GPU where there is one."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from fedmf.noise.cpu import CpuKernels
from fedmf.noise.gpu import TritonKernels
from fedmf.noise.reference import ReferenceKernels
from fedmf.noise.row_pass import MAX_DIMENSION, REFINED_BELOW, RowPass
from support.openings import fresh, schedule_of
from support.triton_worker import compiler, interpreter, needs_gpu, needs_triton

from fedmf.noise.key import Domain, NoiseKey, nonce

SECRET = bytes(range(32))
KEY = NoiseKey(SECRET)
TILE = 2048
REFINED = (19, 8, 6)
"""A round t and block in which the radius word of this pair is below 2¹⁶."""

SLACK = {torch.float64: 1e-14, torch.float32: 2.0**-20}
"""Against the reference: its log, cos and sin differ in the last bits, and so may a rounding of |x| < 16."""


@pytest.fixture(scope="module")
def interpret():
    with interpreter() as call:
        yield call


def vectors(seed: int, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def sums(dtype: torch.dtype, start: int, count: int, rounds: list[int], weights: list[float]):
    row = RowPass(tuple(rounds), tuple(weights))
    return {"row": row, "out": vectors(1, dtype, count), "start": start}


def several(dtype: torch.dtype, start: int, count: int):
    """A row that is scaled after it was summed."""
    return {"row": RowPass((9, 4), (1.5, -0.25), -0.7), "out": vectors(1, dtype, count), "start": start}


def recurrence(dtype: torch.dtype, stored: torch.dtype, start: int, count: int):
    """Place 1 is read and then written."""
    row = RowPass((9, 4), (1.5, -0.25), 0.7, (1, 2, 0), (0.5, -0.3, 0.2), (1,), (0.0,))
    out, rows = vectors(1, dtype, count), vectors(2, stored, 3, count)
    return {"row": row, "out": out, "start": start, "stored": rows}


def buffers(dtype: torch.dtype, stored: torch.dtype, start: int, count: int):
    """Of three sums the last forgets at once."""
    row = RowPass((5,), (1.0,), 0.7, (0, 1, 2), (0.3, -0.2, 0.1), (0, 1, 2), (0.9, 0.5, 0.0))
    out, rows = vectors(1, dtype, count), vectors(2, stored, 3, count)
    return {"row": row, "out": out, "start": start, "stored": rows}


F64, F32 = torch.float64, torch.float32
CASES = {
    "one lag, two tiles, the second cut off": sums(F32, 16 * 5, TILE + 300, [3], [1.5]),
    "three lags, unaligned, rounds to the last": sums(
        F64, 7, 40, [0, 2**32 + 1, 2**64 - 1], [0.5, -2.0, 1.0]
    ),
    "last blocks of the counter": sums(F32, MAX_DIMENSION - 37, 37, [2**40], [1.0]),
    "refined in one lag of two": sums(F32, 16 * REFINED[1] + 3, 20, [20, REFINED[0]], [1.0, 1.0]),
    "scaled after it was summed": several(F32, 5, 100),
    "feedback float64": recurrence(F64, F64, 3, 70),
    "feedback in float32, one whole tile": recurrence(F32, F64, 16, TILE),
    "state space float64": buffers(F64, F64, 1, 60),
}


def copied(arguments: dict) -> dict:
    return {n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in arguments.items()}


@needs_triton
@pytest.mark.parametrize("case", CASES)
def test_a_pass_gives_the_bits_of_the_cpu_and_the_values_of_the_reference(case, interpret):
    arguments = CASES[case]
    interpreted = interpret("run", SECRET, copied(arguments))
    cpu, reference = copied(arguments), copied(arguments)
    CpuKernels(KEY, Domain.TRAINING, threads=1).add_(**cpu)
    ReferenceKernels(KEY, Domain.TRAINING).add_(**reference)
    for name, value in interpreted.items():
        assert torch.equal(value, cpu[name]), name
        assert (value.double() - reference[name].double()).abs().max() <= SLACK[value.dtype], name
        assert not torch.equal(value, arguments[name])


#: One of each kind of pass; those of the others go the same way.
OF_SEVERAL_KEYS = (
    "three lags, unaligned, rounds to the last",
    "refined in one lag of two",
    "feedback float64",
    "state space float64",
)


@needs_triton
@pytest.mark.parametrize("case", OF_SEVERAL_KEYS)
def test_rows_of_several_keys_give_the_bits_of_the_cpu(case, interpret):
    arguments = CASES[case]
    edges = sorted({0, *arguments["row"].rounds})
    openings = [(first, fresh(f"{case} {first}")) for first in edges]
    interpreted = interpret("run_eras", SECRET, openings, copied(arguments))
    cpu, one = copied(arguments), copied(arguments)
    CpuKernels(schedule_of(KEY, openings), Domain.TRAINING, threads=1).add_(**cpu)
    CpuKernels(KEY, Domain.TRAINING, threads=1).add_(**one)
    for name, value in interpreted.items():
        assert torch.equal(value, cpu[name]), name
        assert not torch.equal(value, one[name]), name


def test_the_cases_meet_a_refined_pair():
    t, block, pair = REFINED
    words = np.frombuffer(KEY.keystream(nonce(Domain.TRAINING, t), block).update(bytes(64)), "<u4")
    assert words[pair] < REFINED_BELOW


@needs_triton
def test_keystream_is_that_of_the_rfc_and_of_openssl(interpret):
    """RFC 8439 §2.3.2 (key 00..1f, counter 1); then counters on both sides of 2³¹ and the last."""
    rfc = bytes.fromhex("000000090000004a00000000")
    wanted = (
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
    )
    counters = [1, 0, 2, 15, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1]
    found = interpret("keystream", SECRET, rfc, counters)
    assert found[0].hex() == wanted
    assert found == [KEY.keystream(rfc, c).update(bytes(64)) for c in counters]
    secret, position = bytes(reversed(range(100, 132))), bytes(range(244, 256))
    found = interpret("keystream", secret, position, counters)
    assert found == [NoiseKey(secret).keystream(position, c).update(bytes(64)) for c in counters]


def nearest_to_the_middle(distance: int, bits: int) -> list[int]:
    """53-bit W with W·2^bits − M² = distance for an odd M: √W is as near to the middle of two numbers.

    Roots of M² = −distance modulo 2^bits, lifted bit by bit.
    """
    odd = [m for m in (1, 3, 5, 7) if (m * m + distance) % 8 == 0]
    for j in range(3, bits):
        candidates = {(m + i * 2 ** (j - 1)) % 2 ** (j + 1) for m in odd for i in range(4)}
        odd = [m for m in candidates if (m * m + distance) % 2 ** (j + 1) == 0]
    found = [(m + i * 2**bits) ** 2 + distance >> bits for m in odd for i in range(2)]
    return [w for w in found if 2**52 <= w < 2**53]


@needs_triton
def test_quotients_and_roots_are_rounded_as_ieee_754_says(interpret):
    """All that the proof in fedmf/noise/gpu_kernels.py leaves to be tried, and numbers at random."""
    k = np.arange(-1024, 1025)
    near = np.where(k < 0, k * 2.0**-53, k * 2.0**-52)  # m − 1 for m next to 1
    distances = range(-401, 400, 8)
    hard = [(w, bits) for d in distances for bits in (54, 55) for w in nearest_to_the_middle(d, bits)]
    assert {2**52 + 1, 2**53 - 1} <= {w for w, _ in hard}
    middles = [math.ldexp(w, 2 * e + bits % 2 - 52) for w, bits in hard for e in range(-20, 5)]
    rng, count = np.random.default_rng(0), 2**16
    f = rng.uniform(math.sqrt(0.5) - 1, math.sqrt(2) - 1, count)
    w = 2.0 ** rng.uniform(-40, 10, count)
    f[: k.size], w[: len(middles)] = near, middles
    f[-2:], w[-2:] = (math.sqrt(0.5) - 1, math.sqrt(2) - 1), (2.0**-40, 2.0**10)
    f = (f + 1.0) - 1.0  # as it is made
    quotients, roots = interpret("quotients_and_roots", torch.from_numpy(f), torch.from_numpy(w))
    assert np.array_equal(quotients.numpy().view(np.int64), (f / (f + 2.0)).view(np.int64))
    assert np.array_equal(roots.numpy(), np.sqrt(w))


@pytest.mark.weekly
@needs_triton
@pytest.mark.parametrize("many", [False, True])
def test_a_pass_compiles_without_spills_to_exact_arithmetic(many):
    code = compiler("machine_code", "fp32", "fp64", 90, many)
    assert code["spills"] == 0
    assert code["registers"] <= 128, "fewer than 512 threads fit"
    assert any(opcode.startswith("STG.E.128") for opcode in code["opcodes"]), "vector stores"
    assert "fma.rn.f64" in code["ptx"]
    for operation in (".approx", ".ftz", "sin.", "lg2.", "div.", "sqrt."):
        assert operation not in code["ptx"]
    names = {opcode.split(".")[0] for opcode in code["opcodes"]}
    assert not names & {"CALL", "BSSY", "BSYNC", "MUFU"}, "threads part, or a number is approximate"


@needs_triton
def test_triton_does_not_specialise_on_secrets():
    """Its cache on disk is named after types and properties of arguments; no key may be among them."""
    secret = (*(f"k{i}" for i in range(8)), "tag", "counter", "rows", "reads", "writes")
    wanted = compiler("specialisation", dict.fromkeys(secret, 7))
    for value in (0, 1, 16, 2**31 - 1, -(2**31), -1):
        for changed in secret:
            assert compiler("specialisation", {**dict.fromkeys(secret, 7), changed: value}) == wanted
    assert compiler("specialisation", {"shift": 3}) != compiler("specialisation", {"shift": 16})


def test_key_words_are_handed_over_as_signed_32_bit_numbers(monkeypatch):
    """An unsigned word would get a wider type from 2³¹ on, which Triton would write into its cache."""
    launched = {}
    gpu_kernels = pytest.importorskip(
        "fedmf.noise.gpu_kernels", reason="Triton is not installed (Linux only)"
    )

    class Launcher:
        def __getitem__(self, grid):
            return lambda *arguments, **options: launched.update(arguments=arguments, options=options)

    monkeypatch.setattr(gpu_kernels, "add_row", Launcher())
    monkeypatch.setattr(TritonKernels, "_check_device", lambda self: None)
    kernels = TritonKernels(NoiseKey(bytes([255] * 16 + [1] * 16)), Domain.TRAINING, torch.device("cpu"))
    kernels.add_(RowPass((0,), (1.0,)), torch.zeros(4), MAX_DIMENSION - 4)
    numbers = [a for a in launched["arguments"] if isinstance(a, int)]
    assert numbers[-8:] == [-1] * 4 + [0x01010101] * 4
    assert all(-(2**31) <= number < 2**31 for number in numbers)
    assert launched["options"]["enable_fp_fusion"] is False


def test_without_a_gpu_the_reason_is_one_line(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("fedmf.noise.gpu.find_spec", lambda name: object())
    with pytest.raises(RuntimeError, match=r"^device \(of the noise\) must be an available CUDA device"):
        TritonKernels(KEY, Domain.TRAINING, torch.device("cuda"))


def test_the_key_is_not_shown_and_foreign_tensors_are_refused(monkeypatch):
    monkeypatch.setattr(TritonKernels, "_check_device", lambda self: None)
    monkeypatch.setattr("fedmf.noise.gpu.find_spec", lambda name: object())
    kernels = TritonKernels(KEY, Domain.TRAINING, torch.device("cuda:0"))
    assert repr(kernels) == f"TritonKernels({KEY!r}, TRAINING, device='cuda:0')"
    with pytest.raises(ValueError, match=r"^out \(vector\) must be on cuda:0, where these .* got cpu"):
        kernels.add_(RowPass((0,), (1.0,)), torch.zeros(4), 0)


@needs_triton
@needs_gpu
@pytest.mark.parametrize("case", CASES)
def test_a_gpu_gives_the_bits_of_the_cpu(case):
    arguments = CASES[case]
    cpu = copied(arguments)
    gpu = {n: v.cuda() if isinstance(v, torch.Tensor) else v for n, v in arguments.items()}
    CpuKernels(KEY, Domain.TRAINING).add_(**cpu)
    TritonKernels(KEY, Domain.TRAINING, torch.device("cuda")).add_(**gpu)
    for name, value in cpu.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(gpu[name].cpu(), value), name


@pytest.mark.weekly
@needs_triton
@needs_gpu
def test_a_gpu_gives_the_bits_of_the_cpu_in_a_long_vector():
    """10⁷ elements meet 76 refined pairs; then a vector of more than 2³¹ elements."""
    kernels = TritonKernels(KEY, Domain.TRAINING, torch.device("cuda"))
    cpu, gpu = torch.zeros(10**7), torch.zeros(10**7, device="cuda")
    CpuKernels(KEY, Domain.TRAINING).add_(RowPass((1, 0), (1.0, -0.9)), cpu, 5)
    kernels.add_(RowPass((1, 0), (1.0, -0.9)), gpu, 5)
    assert torch.equal(gpu.cpu(), cpu)
    long = torch.zeros(2**31 + 5000, dtype=F32, device="cuda")
    kernels.add_(RowPass((1,), (1.0,)), long, 0)
    tail = torch.zeros(10_000, dtype=F32)
    CpuKernels(KEY, Domain.TRAINING).add_(RowPass((1,), (1.0,)), tail, long.numel() - 10_000)
    assert torch.equal(long[-10_000:].cpu(), tail)
