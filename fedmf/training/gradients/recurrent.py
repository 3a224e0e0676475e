"""LSTM and GRU of which every user has its own weights.

One product of matrices takes the inputs of all positions, one more a position the outputs of the position
before; on the way back what does not depend on later positions is computed for all of them at once. Within a
layer positions come before examples, so that the numbers of a position lie together.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from fedmf.training.gradients.alignment import aligned_empty
from fedmf.training.gradients.gradient import Accumulation
from fedmf.training.gradients.layers import Layer
from fedmf.training.gradients.weights import Places, Weight


class _Recurrent(Layer):
    """What both kinds share; outputs h_1, …, h_T from h_0 = 0.

    Args:
        module: what it stands for.
        places: where its parameters stand.
    """

    def __init__(self, module: nn.LSTM | nn.GRU, places: Places) -> None:
        named = [module.get_parameter(name) for name in module._flat_weights_names]
        weights = [places.of(parameter) for parameter in named]
        self._input, self._hidden = weights[:2]
        self._input_bias, self._hidden_bias = weights[2:] if module.bias else (None, None)

    def weights(self) -> Iterator[Weight]:
        """See `Layer.weights`."""
        for weight in (self._input, self._hidden, self._input_bias, self._hidden_bias):
            if weight is not None:
                yield weight

    @abstractmethod
    def _run(self, parameters: Tensor, gates: Tensor) -> tuple[Tensor, Any]:
        """h and what goes back, from W·x of all positions, shape (users, positions, batch, …)."""

    @abstractmethod
    def _run_backward(self, saved: Any, dy: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of W·x + b and of W_h·h + b_h, shape (users, positions, batch, …)."""

    def forward(self, parameters: Tensor, x: Tensor) -> tuple[Tensor, Any]:
        """See `Layer.forward`."""
        users, batch, positions, width = x.shape
        inputs = aligned_empty(x, users, positions, batch, width).copy_(x.transpose(1, 2))
        weight = self._input.of(parameters).mT
        gates = aligned_empty(x, users, positions, batch, weight.shape[-1])
        flat, products = inputs.view(users, -1, width), gates.view(users, positions * batch, -1)
        bias = self._of_all_positions(parameters)
        if bias is None:
            torch.bmm(flat, weight, out=products)
        else:
            torch.baddbmm(bias[:, None], flat, weight, out=products)
        h, saved = self._run(parameters, gates)
        return h.transpose(1, 2), (inputs, h, saved)

    def _of_all_positions(self, parameters: Tensor) -> Tensor | None:
        """What is added to W·x whatever came before."""
        return None if self._input_bias is None else self._input_bias.of(parameters)

    def backward(self, saved: Any, dy: Tensor, into: Accumulation, need_dx: bool) -> Tensor | None:
        """See `Layer.backward`."""
        inputs, h, saved = saved
        users, positions, batch, width = inputs.shape
        outer = aligned_empty(h, *h.shape).copy_(dy.transpose(1, 2))
        of_inputs, of_hidden = self._run_backward(saved, outer, self._hidden.of(into.parameters))
        flat = of_inputs.view(users, positions * batch, -1)
        dx = None
        if need_dx:
            dx = aligned_empty(inputs, *inputs.shape)
            torch.bmm(flat, self._input.of(into.parameters), out=dx.view(users, -1, width))
            dx = dx.transpose(1, 2)
        if self._input.trainable:
            self._input.add_product(into, flat.mT, inputs.view(users, -1, width))
        if self._hidden.trainable and positions == 1:
            self._hidden.begin(into)
        elif self._hidden.trainable:
            later = of_hidden[:, 1:].reshape(users, (positions - 1) * batch, -1)
            self._hidden.add_product(into, later.mT, h[:, :-1].reshape(users, (positions - 1) * batch, -1))
        self._add_biases(into, of_inputs, of_hidden)
        return dx

    def _add_biases(self, into: Accumulation, of_inputs: Tensor, of_hidden: Tensor) -> None:
        sums: dict[int, Tensor] = {}
        for bias, gradient in ((self._input_bias, of_inputs), (self._hidden_bias, of_hidden)):
            if bias is not None and bias.trainable:
                if id(gradient) not in sums:
                    sums[id(gradient)] = gradient.flatten(1, 2).sum(dim=1)
                bias.add(into, sums[id(gradient)])


class Lstm(_Recurrent):
    """c_t = f·c_{t-1} + i·g, h_t = o·tanh(c_t); i, f, o are sigmoids, g tanh, of W·x_t + W_h·h_{t-1} + b."""

    def _of_all_positions(self, parameters: Tensor) -> Tensor | None:
        if self._input_bias is None or self._hidden_bias is None:
            return None
        return self._input_bias.of(parameters) + self._hidden_bias.of(parameters)

    def _run(self, parameters: Tensor, gates: Tensor) -> tuple[Tensor, Any]:
        """See `_Recurrent._run`; the gates take the place of their arguments."""
        users, positions, batch, width = gates.shape
        n = width // 4
        h, c, squashed = (aligned_empty(gates, users, positions, batch, n) for _ in range(3))
        hidden = self._hidden.of(parameters).mT
        both, single = gates[..., : 2 * n].unbind(1), gates[..., 2 * n :].unflatten(-1, (2, n)).unbind(-2)
        inner, last = (part.unbind(1) for part in single)
        i, f = (part.unbind(1) for part in gates[..., : 2 * n].chunk(2, dim=-1))
        whole, hs, cs, squashes = gates.unbind(1), h.unbind(1), c.unbind(1), squashed.unbind(1)
        for t in range(positions):
            if t:
                whole[t].baddbmm_(hs[t - 1], hidden)
            both[t].sigmoid_()
            inner[t].tanh_()
            last[t].sigmoid_()
            torch.mul(i[t], inner[t], out=cs[t])
            if t:
                cs[t].addcmul_(f[t], cs[t - 1])
            torch.tanh(cs[t], out=squashes[t])
            torch.mul(last[t], squashes[t], out=hs[t])
        return h, (gates, c, squashed)

    def _run_backward(self, saved: Any, dy: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        gates, c, squashed = saved
        i, f, g, o = gates.chunk(4, dim=-1)
        by_c = _by_tanh(o, squashed)
        slopes = aligned_empty(gates, *gates.shape)  # of c by the arguments of i, f, g, and of h by that of o
        first, second, third, fourth = slopes.chunk(4, dim=-1)
        _by_sigmoid(g, i, out=first)
        second[:, 0].zero_()
        _by_sigmoid(c[:, :-1], f[:, 1:], out=second[:, 1:])
        _by_tanh(i, g, out=third)
        _by_sigmoid(squashed, o, out=fourth)
        of_c = slopes[..., : 3 * c.shape[-1]].unflatten(-1, (3, -1)).unbind(1)
        whole, of_o, dhs = slopes.unbind(1), fourth.unbind(1), dy.unbind(1)
        forgotten, by_cs = f.unbind(1), by_c.unbind(1)
        dc = torch.zeros_like(c[:, 0])
        for t in range(len(dhs) - 1, -1, -1):
            if t + 1 < len(dhs):
                dhs[t].baddbmm_(whole[t + 1], hidden)
                dc.mul_(forgotten[t + 1])
            dc.addcmul_(dhs[t], by_cs[t])
            of_c[t].mul_(dc[:, :, None])
            of_o[t].mul_(dhs[t])
        return slopes, slopes


class Gru(_Recurrent):
    """h_t = (1 − z)·n + z·h_{t-1}; n is tanh of W·x_t + b + r·(W_h·h_{t-1} + b_h), r and z are sigmoids."""

    def _run(self, parameters: Tensor, gates: Tensor) -> tuple[Tensor, Any]:
        """See `_Recurrent._run`; the gates take the place of their arguments."""
        users, positions, batch, width = gates.shape
        n = width // 3
        h = aligned_empty(gates, users, positions, batch, n)
        before = aligned_empty(gates, users, positions, batch, width)
        hidden = self._hidden.of(parameters).mT
        bias = (
            gates.new_zeros(users, width) if self._hidden_bias is None else self._hidden_bias.of(parameters)
        )
        before.copy_(bias[:, None, None].expand_as(before))
        both, new = gates[..., : 2 * n].unbind(1), gates[..., 2 * n :].unbind(1)
        r, z = (part.unbind(1) for part in gates[..., : 2 * n].chunk(2, dim=-1))
        whole, hs = before.unbind(1), h.unbind(1)
        both_before, new_before = before[..., : 2 * n].unbind(1), before[..., 2 * n :].unbind(1)
        for t in range(positions):
            if t:
                whole[t].baddbmm_(hs[t - 1], hidden)
            both[t].add_(both_before[t]).sigmoid_()
            new[t].addcmul_(r[t], new_before[t]).tanh_()
            if t:
                torch.lerp(new[t], hs[t - 1], z[t], out=hs[t])
            else:
                torch.sub(new[t], new[t] * z[t], out=hs[t])
        return h, (gates, h, before[..., 2 * n :])

    def _run_backward(self, saved: Any, dy: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        gates, h, before = saved
        r, z, new = gates.chunk(3, dim=-1)
        inner = _by_tanh(1 - z, new)  # ∂h/∂(argument of n)
        of_hidden = aligned_empty(gates, *gates.shape)
        first, second, third = of_hidden.chunk(3, dim=-1)
        _by_sigmoid(inner * before, r, out=first)
        _by_sigmoid(-new[:, 0], z[:, 0], out=second[:, 0])
        _by_sigmoid(h[:, :-1] - new[:, 1:], z[:, 1:], out=second[:, 1:])
        torch.mul(inner, r, out=third)
        whole, dhs, kept = of_hidden.unbind(1), dy.unbind(1), z.unbind(1)
        each = of_hidden.unflatten(-1, (3, -1)).unbind(1)
        for t in range(len(dhs) - 1, -1, -1):
            if t + 1 < len(dhs):
                dhs[t].baddbmm_(whole[t + 1], hidden).addcmul_(dhs[t + 1], kept[t + 1])
            each[t].mul_(dhs[t][:, :, None])
        of_inputs = aligned_empty(gates, *gates.shape).copy_(of_hidden)
        torch.mul(inner, dy, out=of_inputs.chunk(3, dim=-1)[2])
        return of_inputs, of_hidden


def _by_tanh(slope: Tensor, y: Tensor, out: Tensor | None = None) -> Tensor:
    """slope·(1 − y²), the gradient of the argument whose tanh y is."""
    if out is None:
        return torch.ops.aten.tanh_backward(slope, y)
    return torch.ops.aten.tanh_backward.grad_input(slope, y, grad_input=out)


def _by_sigmoid(slope: Tensor, y: Tensor, out: Tensor) -> Tensor:
    """slope·y·(1 − y), the gradient of the argument whose sigmoid y is."""
    return torch.ops.aten.sigmoid_backward.grad_input(slope, y, grad_input=out)
