"""The rows of the comparison of server optimizers."""

from __future__ import annotations

from collections.abc import Callable

from harness import Make, Method
from scaled import ScaleThenPrivatize

from fedmf.optim.adam import ServerAdam
from fedmf.optim.blocks import Blocks
from fedmf.optim.energies import ReleasedEnergies, SquaredRelease
from fedmf.optim.fedopt import ServerAdagrad, ServerYogi
from fedmf.optim.server_optimizer import SecondForm
from fedmf.optim.sgd import ServerSGD

__all__ = ["BASELINE", "METHODS"]

BASELINE = "momentum"
#: ρ of server Adam, chosen like the learning rate on the tuning seeds.
DAMPINGS = (0.1, 1.0)


def sgd(momentum: float) -> Make:
    return lambda move, shapes, damping: ServerSGD(move, momentum)


def fedopt(rule: Callable[..., ServerAdagrad]) -> Make:
    return lambda move, shapes, damping: rule(
        move, SquaredRelease(Blocks.of(shapes, "coordinate"), debias=False)
    )


def squared(which: str, debias: bool) -> Make:
    return lambda move, shapes, damping: ServerAdam(
        move, SquaredRelease(Blocks.of(shapes, which), debias), relative_epsilon=damping
    )


def released(which: str, form: SecondForm = "per-user") -> Make:
    return lambda move, shapes, damping: ServerAdam(
        move, ReleasedEnergies(Blocks.of(shapes, which), form), relative_epsilon=damping
    )


def scaled(which: str, beta2: float) -> Make:
    return lambda move, shapes, damping: ScaleThenPrivatize(
        move, SquaredRelease(Blocks.of(shapes, which), debias=False), beta2=beta2, relative_epsilon=damping
    )


METHODS: dict[str, Method] = {
    "momentum, no noise": Method(sgd(0.9), private=False),
    "block Adam, no noise": Method(squared("tensor", False), dampings=DAMPINGS, private=False),
    "SGD": Method(sgd(0.0)),
    "momentum": Method(sgd(0.9)),
    "momentum, C for momentum": Method(sgd(0.9), workload="momentum:0.9"),
    "momentum, linear decay": Method(sgd(0.9), schedule="linear"),
    "momentum, linear decay, C for both": Method(sgd(0.9), schedule="linear", workload="momentum:0.9*linear"),
    "FedAdagrad (post-processing)": Method(fedopt(ServerAdagrad)),
    "FedYogi (post-processing)": Method(fedopt(ServerYogi)),
    "DP-Adam": Method(squared("coordinate", False), dampings=DAMPINGS),
    "DP-Adam, debiased": Method(squared("coordinate", True), dampings=DAMPINGS),
    "DP-Adam, debiased, by tensor": Method(squared("tensor", True), dampings=DAMPINGS),
    "DP-Adam, debiased, by tensor, linear decay": Method(
        squared("tensor", True), dampings=DAMPINGS, schedule="linear"
    ),
    "scale-then-privatise, by tensor": Method(scaled("tensor", 0.99), dampings=DAMPINGS),
    "scale-then-privatise, by tensor, β₂ = 0.9": Method(scaled("tensor", 0.9), dampings=DAMPINGS),
    "joint clipping": Method(released("coordinate", "joint-clip"), dampings=DAMPINGS, joint=1.0),
    "JME-Adam": Method(released("coordinate"), dampings=DAMPINGS),
    "block JME-Adam, by channel": Method(released("channel"), dampings=DAMPINGS),
    "block JME-Adam, by tensor": Method(released("tensor"), dampings=DAMPINGS),
    "block JME-Adam, by tensor, λ for even shares": Method(
        released("tensor"), dampings=(0.1, 1.0, 10.0), share=1.0
    ),
    "block JME-Adam, by tensor, linear decay": Method(
        released("tensor"), dampings=DAMPINGS, schedule="linear"
    ),
    "block JME-Adam, squared mean": Method(released("tensor", "squared-mean"), dampings=DAMPINGS),
}
