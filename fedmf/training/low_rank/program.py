"""Which models, users and sums local training without users' weights is for."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedmf.compiled import compiled
from fedmf.data import TensorStructure
from fedmf.training.barrier import Group, add_users
from fedmf.training.blocks import COUNTED, LANES, NO_CLASS, Examples, Rule, padded, set_product
from fedmf.training.clipping import Into, UpdateSum, clip_row, partial_sums
from fedmf.training.compilable import compilable, rule_of
from fedmf.training.local_sgd import LocalSGD
from fedmf.training.low_rank.steps import begin_user, set_changes, step
from fedmf.training.low_rank.values import Chain, sizes_of, work
from fedmf.training.task import Task


@compiled
def train_and_sum(chain, rule, examples, work, clip_norm, scale, into, outcome):
    """Train the users of a group one after another and add their clipped updates to integer sums.

    Args:
        chain: the received model.
        rule: the local rule.
        examples: of the group.
        work: memory.
        clip_norm: ζ.
        scale: what an update of norm ζ is scaled to.
        into: changed by `clip_row` alone.
        outcome: shape (users,); set to `COUNTED`, or to why a user added nothing.
    """
    partial = partial_sums()
    for u in range(outcome.size):
        outcome[u] = COUNTED
        if examples.absent[u]:
            continue
        lowest, count = begin_user(chain, examples, work, u)
        done, s = np.int64(0), np.int64(0)
        while s < examples.active.size and examples.active[s] > u:
            rows = step(chain, rule, examples, work, u, s, lowest, count, done)
            if rows < 0:
                outcome[u] = NO_CLASS
                break
            done += rows
            s += 1
        if outcome[u] == COUNTED:
            set_changes(chain, work, s, count)
            _set_row(chain, work, count, done)
            outcome[u] = clip_row(work.row, None, clip_norm, scale, into, partial)


@compiled
def _set_row(chain, work, count, done):
    """row = Σ_r A_r ⊗ (H_r, 1) of all layers, every entry one chain of float32 sums."""
    zero, one = np.int64(0), np.int64(1)
    for layer in range(chain.sizes.size - 1):
        rows = count if layer == 0 else done
        a, start = (work.first, zero) if layer == 0 else (work.changes, work.begin[layer + 1])
        h, begin = (work.x, zero) if layer == 0 else (work.inputs, work.begin[layer])
        inputs, outputs = chain.sizes[layer], chain.sizes[layer + 1]
        wide = chain.wide[layer + 1]
        set_product(
            a, start, one, wide, outputs, rows, h, begin, chain.wide[layer],
            work.row, chain.flat_weights[layer], inputs, work.shift,
        )  # fmt: skip
        _set_bias(work.row, chain.flat_biases[layer], outputs, a, start, wide, rows)


@compiled
def _set_bias(row, place, outputs, a, start, wide, rows):
    if place < 0:
        return
    for o in range(outputs):
        change = np.float32(0)
        for r in range(rows):
            change += a[start + r * wide + o]
        row[place + o] = change


#: By type, what `Chain` calls an activation.
_ACTIVATIONS: Final[dict[type[nn.Module], int]] = {nn.ReLU: 1, nn.Tanh: 2, nn.Sigmoid: 3}


class ReceivedChain:
    """Dense chains under cross-entropy at the received parameters, laid out for compiled passes.

    Args:
        chain: the layers.
        rule: of local SGD.
        memory: of each thread; what it worked in last is used again where it fits.
    """

    def __init__(self, chain: Chain, rule: Rule, memory: threading.local) -> None:
        self._chain, self._rule, self._memory = chain, rule, memory

    def add_to(self, total: UpdateSum, group: Group) -> Iterator[tuple[int, tuple[str, str]]]:
        """See `add_users`."""
        return add_users(total, group, self._compute)

    def _compute(
        self,
        examples: Examples,
        outcome: NDArray[np.int64],
        clip_norm: float,
        scale: float,
        into: Into,
    ) -> None:
        sizes, memory = sizes_of(examples), self._memory
        if getattr(memory, "sizes", None) != sizes:
            memory.sizes, memory.work = sizes, work(self._chain, sizes)
        train_and_sum(self._chain, self._rule, examples, memory.work, clip_norm, scale, into, outcome)


class LowRankProgram:
    """Local SGD of dense chains under cross-entropy, from examples to the integers of clipped updates.

    After R rows of examples the update of a dense layer has rank R at most, so products with it cost
    R·(inputs + outputs) and the layer's weights never exist for a user.

    Guarantees:
        A user's integers are a function of its own examples and the received model, to the bit, whoever is
        trained beside it, in whatever groups and threads. They enter the sum as every user's do.

    Args:
        layers: dense layers, and the activation after each.
        local: local SGD.
    """

    def __init__(self, layers: list[tuple[nn.Linear, int]], local: LocalSGD) -> None:
        self._layers, self._local, self._memory = layers, local, threading.local()

    @classmethod
    def of(cls, task: Task, local: LocalSGD) -> LowRankProgram | None:
        """The program for a task's model, None if that is no such chain or is to be computed otherwise."""
        features = task.structure.features
        if not (compilable(task, local) and isinstance(features, TensorStructure)):
            return None
        layers = _dense_layers(task.model.module, features.shape)
        trained = sum(p.numel() for layer, _ in layers for p in layer.parameters())
        return cls(layers, local) if trained == task.model.dimension else None

    def cost(self, examples: int) -> float:
        """Multiply-adds of a user who owns so many examples, beyond those that every program needs; infinite
        without examples, and where the factors of its update are larger than the weights.

        Products of rows with rows, E²·(inputs + outputs) a layer and epoch, count five times: they go over
        short vectors (measured beside `FusedProgram.cost`, docs/theory/low-rank.md).
        """
        epochs, sides = (
            self._local.epochs,
            [layer.in_features + layer.out_features for layer, _ in self._layers],
        )
        implied = examples * (sides[0] + epochs * sum(sides[1:]))
        if not 0 < implied < sum(layer.weight.numel() for layer, _ in self._layers):
            return math.inf
        return 5.0 * epochs * examples**2 * sum(sides)

    def received(self, origin: Tensor) -> ReceivedChain:
        """The model of a round: θ_t, shape (d,), float32."""
        chain = self._laid_out(origin.detach().numpy())
        return ReceivedChain(chain, rule_of(self._local), self._memory)

    def _laid_out(self, flat: NDArray[np.float32]) -> Chain:
        weights, transposed, biases, flat_weights, flat_biases, place = [], [], [], [], [], 0
        for number, (layer, _) in enumerate(self._layers):
            outputs, inputs = layer.out_features, layer.in_features
            weight = flat[place : place + inputs * outputs].reshape(outputs, inputs)
            flat_weights.append(place)
            place += weight.size
            bias = np.zeros(outputs, np.float32)
            flat_biases.append(-1)
            if layer.bias is not None:
                bias, flat_biases[-1] = flat[place : place + outputs], place
                place += outputs
            weights.append(_in_vectors(weight[:0] if number == 0 else weight))  # no gradient in examples
            transposed.append(_in_vectors(weight.T))
            biases.append(_in_vectors(bias[None]))
        sizes = [self._layers[0][0].in_features, *(layer.out_features for layer, _ in self._layers)]
        return Chain(
            weights=np.concatenate(weights),
            transposed=np.concatenate(transposed),
            biases=np.concatenate(biases),
            weights_at=_starts(weights),
            transposed_at=_starts(transposed),
            biases_at=_starts(biases),
            flat_weights=np.array(flat_weights),
            flat_biases=np.array(flat_biases),
            sizes=np.array(sizes),
            wide=np.array([padded(size) for size in sizes]),
            activations=np.array([activation for _, activation in self._layers]),
        )


def _dense_layers(module: nn.Module, shape: tuple[int, ...]) -> list[tuple[nn.Linear, int]]:
    """Dense layers with the activation after each, on examples of a shape; none if it is something else."""
    layers: list[tuple[nn.Linear, int]] = []
    for part in _chain(module):
        if type(part) is nn.Flatten and (part.start_dim, part.end_dim) == (1, -1):
            shape = (math.prod(shape),)
        elif type(part) is nn.Linear and shape == (part.in_features,):
            layers.append((part, 0))
            shape = (part.out_features,)
        elif type(part) in _ACTIVATIONS and layers and not layers[-1][1]:
            layers[-1] = layers[-1][0], _ACTIVATIONS[type(part)]
        else:
            return []
    return layers if layers and not layers[-1][1] else []  # cross-entropy is of the last layer's outputs


def _chain(module: nn.Module) -> Iterator[nn.Module]:
    if type(module) is nn.Sequential:
        for child in module:
            yield from _chain(child)
    else:
        yield module


def _in_vectors(matrix: NDArray[np.float32]) -> NDArray[np.float32]:
    """Columns padded with zeros to whole vectors, which lie below one another: see `Chain`."""
    rows, columns = matrix.shape
    vectors, whole = torch.zeros(padded(columns) // LANES, rows, LANES), columns // LANES
    source = torch.from_numpy(matrix)  # which transposes sooner than NumPy
    vectors[:whole].copy_(source[:, : whole * LANES].reshape(rows, whole, LANES).transpose(0, 1))
    if columns % LANES:
        vectors[whole, :, : columns % LANES].copy_(source[:, whole * LANES :])
    return vectors.numpy().ravel()


def _starts(parts: list[NDArray[np.float32]]) -> NDArray[np.int64]:
    return np.cumsum([0, *(part.size for part in parts[:-1])])
