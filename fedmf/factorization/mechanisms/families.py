"""The registry of mechanisms: one entry each, which is all that names, searches and limits are read from."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Final

from fedmf.factorization.algebra import single_threaded
from fedmf.factorization.matrices import (
    LARGEST_DENSE,
    closed_form,
    damped_root,
    inverse_power,
    kary_tree,
    rated_power,
    shifted_root,
    strategy_power,
    tree,
)
from fedmf.factorization.mechanisms.banded_inverse_optimizer import banded_inverse
from fedmf.factorization.mechanisms.banded_optimizer import banded
from fedmf.factorization.mechanisms.banded_toeplitz_optimizer import tapered
from fedmf.factorization.mechanisms.blt_optimizer import blt, blt_with_fewest_buffers
from fedmf.factorization.mechanisms.cache import remembered
from fedmf.factorization.mechanisms.dense_optimizer import LARGEST_OPTIMIZED, best_diagonal, dense
from fedmf.factorization.mechanisms.family import STAMPS, Built, Family, Form, Option
from fedmf.factorization.mechanisms.lti import geometric_lti, settling_curvature
from fedmf.factorization.mechanisms.normalized_toeplitz import (
    normalized_banded_toeplitz,
    rated_banded_toeplitz,
)
from fedmf.factorization.mechanisms.parameter import (
    ARITY,
    BANDS,
    BUFFERS,
    EIGENVALUES,
    ETA,
    FREE_BANDS,
    FREE_GAMMA,
    FREE_LAMBDA,
    FREE_NU,
    FREE_ROOT_SHIFT,
    FREE_SHIFT,
    FULL,
    LAGS,
    MU,
    SMOOTHNESS,
    TAPER,
    VARIANCE,
    Accuracy,
    DesignRequest,
    Error,
    Free,
    Parameter,
    Values,
    at_once,
    best_on_interval,
    one_of,
    widths,
)
from fedmf.factorization.mechanisms.strongly_convex import strongly_convex_lti

# Results of the optimisers are kept on disk as well; the version is to be raised
# whenever an optimiser finds other coefficients.
_optimized = lru_cache(maxsize=32)(remembered(rated_banded_toeplitz, version=2))
_jointly = lru_cache(maxsize=32)(remembered(single_threaded(normalized_banded_toeplitz), version=2))
_banded = lru_cache(maxsize=8)(remembered(single_threaded(banded), version=5))
_dense = lru_cache(maxsize=8)(remembered(single_threaded(dense), version=2))
_inverse = lru_cache(maxsize=32)(remembered(single_threaded(banded_inverse), version=3))
_buffered = lru_cache(maxsize=32)(remembered(single_threaded(blt), version=4))
_few_buffered = remembered(single_threaded(blt_with_fewest_buffers), version=4)
_strongly_convex = lru_cache(maxsize=8)(remembered(strongly_convex_lti, version=1))

# Beyond p = b the optimiser takes seconds per step; wider bands than this must be asked for.
_WIDEST_OPTIMIZED = 256
# General banded matrices have n·p coefficients: at n = 4000, p = 64 takes a minute and p = 400 several.
_WIDEST_BANDED, _MOST_ENTRIES = 64, 2**18
# Wider inverses draw more past noise again in each round and gain about 1 % at most where tried.
_WIDEST_INVERSE = 64


def _optimal_width(request: DesignRequest, values: Values, error: Error, accuracy: Accuracy) -> float:
    """The optimal error falls with p; stop where it falls by less than 0.1 %.

    With kb ≥ n nothing was gained beyond p = b in any setting tried: only users with few participations
    leave room for wider bands.
    """
    contract, best = request.participation, request.separation
    if contract.max_participations * contract.min_separation >= contract.rounds:
        return best
    lowest = error(best)
    for p in widths(request):
        if best < p <= max(contract.min_separation, _WIDEST_OPTIMIZED):
            previous, lowest = lowest, min(lowest, error(p))
            if lowest > 0.999 * previous:
                break
            best = p
    return best


def _affordable_width(request: DesignRequest, values: Values) -> float:
    return min(request.separation, _WIDEST_BANDED, max(1, _MOST_ENTRIES // request.rounds))


def _rate_power(request: DesignRequest, values: Values, error: Error, accuracy: Accuracy) -> float:
    if request.workload.column_weights is None:
        return 0.0
    return best_on_interval(lambda n, p: (0.0, 1.0), lambda u, p: u)(request, values, error, accuracy)


def _few_buffers(request: DesignRequest, values: Values) -> float:
    return _few_buffered(*request.rated_target).decays.size


def _tapered(form: Form, request: DesignRequest, lower: int, others: Values) -> Built:
    """The optimal banded Toeplitz C for separation b with its coefficients from b₀ on tapered to 0 at p."""
    values, _ = form.family.plain.build(request, others)
    p = int(values["bands"])
    replace(TAPER, highest=p - 1).checked(lower, form.name, request.rounds)
    optimal = _optimized(p, *request.target)
    return values, form.columns(tapered(optimal, lower, p))


_FREE_ALPHA = Free(Parameter("alpha", "power of the learning rates in the columns"), _rate_power)
# A curvature that was given belongs to the spectrum.
_FREE_SPECTRUM = (
    Free(SMOOTHNESS, at_once(lambda ask, v: max(1.0, v.get("mu", 1.0)))),
    Free(ETA, at_once(lambda ask, v: 0.5 / v["smoothness"])),
    Free(MU, at_once(lambda ask, v: settling_curvature(ask.rounds, v["eta"], v["smoothness"]))),
)

_ALL = (
    Family(
        "identity",
        "independent noise of one size, as in DP-FedAvg",
        lambda ask, v: closed_form.identity(ask.rounds),
        largest_normalized_compared=0,
        also=("dp-sgd", "dp-fedavg", "independent"),
    ),
    Family(
        "square-root",
        "the square root of the workload",
        lambda ask, v: inverse_power(ask.workload, 0.5, ask.rounds),
    ),
    Family(
        "bsr",
        "the first p coefficients of the square root",
        lambda ask, v: strategy_power(ask.workload, 0.5, v["bands"]),
        (FREE_BANDS,),
    ),
    Family(
        "bisr",
        "the first p coefficients of the inverse square root, as an inverse",
        lambda ask, v: inverse_power(ask.workload, 0.5, v["bands"]),
        (FREE_BANDS,),
    ),
    Family(
        "bifr",
        "bisr with another exponent than 1/2",
        lambda ask, v: inverse_power(ask.workload, v["gamma"], v["bands"]),
        (FREE_BANDS, FREE_GAMMA),
    ),
    Family(
        "bfr",
        "bsr with another exponent than 1/2",
        lambda ask, v: strategy_power(ask.workload, v["gamma"], v["bands"]),
        (FREE_BANDS, FREE_GAMMA),
    ),
    Family(
        "rated-bfr",
        "bfr with columns scaled by a power of the learning rates",
        lambda ask, v: rated_power(ask.workload, v["gamma"], v["bands"], v["alpha"]),
        (Free(BANDS, at_once(lambda ask, v: ask.separation)), FREE_GAMMA, _FREE_ALPHA),
        largest=131_072,
        largest_compared=16_384,
    ),
    Family(
        "cgd",
        "takes back a share of the last round's noise",
        lambda ask, v: closed_form.cgd(v["lambda"], ask.rounds),
        (FREE_LAMBDA,),
        also=("lambda-cgd",),
    ),
    Family(
        "nu-ftrl", "the square root, damped", lambda ask, v: damped_root(ask.workload, v["nu"]), (FREE_NU,)
    ),
    Family(
        "one-parameter",
        "coefficients 1/i + c",
        lambda ask, v: closed_form.one_parameter(v["c"], v["bands"], ask.rounds),
        (FREE_BANDS, FREE_SHIFT),
    ),
    Family(
        "shifted-root",
        "coefficients of the square root plus c",
        lambda ask, v: shifted_root(ask.workload, v["c"], v["bands"]),
        (FREE_BANDS, FREE_ROOT_SHIFT),
    ),
    Family(
        "optimal-diagonal",
        "independent noise of the best size for each round",
        lambda ask, v: best_diagonal(ask.workload, ask.objective),
        largest_normalized_compared=0,
    ),
    Family(
        "banded-toeplitz",
        "the best Toeplitz C with p bands",
        lambda ask, v: _optimized(v["bands"], *ask.target),
        (Free(BANDS, _optimal_width),),
        options=(STAMPS, Option(TAPER, _tapered)),
        largest_compared=1_000_000,
        normalize=lambda make: lambda ask, v: _jointly(v["bands"], *ask.target),
        optimized=True,
        also=("bandmf", "band-mf"),
    ),
    Family(
        "banded",
        "the best C with p bands",
        lambda ask, v: _banded(v["bands"], *ask.target, equal_norms=False),
        (Free(BANDS, at_once(_affordable_width)),),
        largest=65_536,
        largest_compared=1024,
        normalize=lambda make: lambda ask, v: _banded(v["bands"], *ask.target, equal_norms=True),
        optimized=True,
        entrywise=True,
    ),
    Family(
        "dense",
        "the best C of any form",
        lambda ask, v: _dense(*ask.target),
        largest=LARGEST_OPTIMIZED,
        largest_compared=512,
        optimized=True,
        entrywise=True,
    ),
    Family(
        "tree",
        "a binary tree of block sums",
        lambda ask, v: tree(ask.rounds, bool(v["full"])),
        (Free(FULL, one_of(1, 0)),),
        largest=LARGEST_DENSE,
        largest_compared=1024,
        optimized=True,
        also=("dp-ftrl", "binary-tree"),
    ),
    Family(
        "kary-tree",
        "a tree of block sums, differences included",
        lambda ask, v: kary_tree(v["arity"], ask.rounds),
        (Free(ARITY, one_of(2, 3, 4, 6, 8, 12, 16)),),
        largest=LARGEST_DENSE,
        largest_compared=1024,
        optimized=True,
    ),
    Family(
        "banded-inverse",
        "the best Toeplitz C whose inverse has p bands",
        lambda ask, v: _inverse(v["bands"], *ask.rated_target),
        (Free(BANDS, at_once(lambda ask, v: min(_WIDEST_INVERSE, ask.rounds))),),
        largest=1_000_000,
        largest_compared=1_000_000,
        optimized=True,
        also=("bandinvmf", "band-inv-mf"),
    ),
    Family(
        "blt",
        "the best buffered linear Toeplitz C",
        lambda ask, v: _buffered(v["buffers"], *ask.rated_target),
        (Free(BUFFERS, at_once(_few_buffers)),),
        largest=131_072,
        largest_compared=16_384,
        optimized=True,
    ),
    Family(
        "quadratic-lti",
        "the best Toeplitz C for the last iterate on a quadratic",
        lambda ask, v: geometric_lti(ask.rounds, v["mu"], v["smoothness"], v["eta"], v["eigenvalues"]),
        (*_FREE_SPECTRUM, Free(EIGENVALUES, at_once(lambda ask, v: 16))),
        largest=1_000_000,
        largest_compared=0,
    ),
    Family(
        "strongly-convex-lti",
        "the Toeplitz C of least proven bound for the last iterate on strongly convex functions",
        lambda ask, v: _strongly_convex(
            ask.rounds, v["mu"], v["smoothness"], v["eta"], v["lags"], v["variance"]
        ),
        (*_FREE_SPECTRUM, Free(LAGS, at_once(lambda ask, v: 8)), Free(VARIANCE, at_once(lambda ask, v: 0))),
        largest=1_000_000,
        largest_compared=0,
        optimized=True,
    ),
)

#: Every family by name, in the order in which names are listed.
FAMILIES: Final = {family.name: family for family in _ALL}
