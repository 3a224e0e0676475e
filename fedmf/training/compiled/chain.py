"""The layers that a module applies one after the other.

The module may be a Sequential or have a `forward` of its own: it is called once, and the functions
of torch that it calls are recorded. `step_plan` lays the layers out for compiled steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fedmf.models import FlatModel

_SIZES: Final = (Tensor.size, Tensor.dim, Tensor.numel, Tensor.__len__)
Pair = tuple[int, int]


class NotAChain(ValueError):
    """A module is no chain of known layers; the message says why."""


class Layer(NamedTuple):
    """A layer of a chain.

    Attributes:
        kind: "linear", "convolution", "max pool", "mean pool", "relu", "tanh", "reshape",
            "log softmax", or "nothing".
        weight, bias: parameters, None for none.
        side, step, edge: lines and pixels of a window, between windows, and of padding.
        before, after: shapes of an example before and after the layer.
    """

    kind: str
    weight: Tensor | None = None
    bias: Tensor | None = None
    side: Pair = (1, 1)
    step: Pair = (1, 1)
    edge: Pair = (0, 0)
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    @property
    def trained(self) -> bool:
        """Whether any of its parameters is trained."""
        parameters = (self.weight, self.bias)
        return any(p is not None and p.requires_grad for p in parameters)


def _convolution(
    weight: Tensor,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Layer:
    _require(_pair(dilation) == (1, 1) and groups == 1, "a convolution has groups or is dilated")
    height, width = weight.shape[2:]
    return Layer("convolution", weight, bias, (height, width), _pair(stride), _pair(padding))


def _pool(
    kind: str, kernel_size: Any, stride: Any = None, padding: Any = 0, *rest: Any, **named: Any
) -> Layer:
    plain = _pair(padding) == (0, 0) and _pair(named.pop("dilation", 1)) == (1, 1)
    named.pop("count_include_pad", None)
    special = any((*rest[:1], *rest[2:], *named.values()))  # rest[1] is count_include_pad
    _require(plain and not special, "pooling is padded or of a special kind")
    side = _pair(kernel_size)
    step = _pair(stride or kernel_size)
    _require(side == step == (2, 2), "windows of pooling are not two by two, side by side")
    return Layer(kind, side=side, step=step)


def _dropout(p: float = 0.5, training: bool = True, inplace: bool = False) -> Layer:
    del inplace
    _require(not training or p == 0, "the model draws random numbers")
    return Layer("nothing")


def _log_softmax(dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Layer:
    del _stacklevel
    _require(dim in (1, -1) and dtype is None, "log_softmax is not of an example's outputs")
    return Layer("log softmax")


def _of_kind(kind: str) -> Callable[..., Layer]:
    return lambda *_, **__: Layer(kind)


def _linear(weight: Tensor, bias: Tensor | None = None) -> Layer:
    return Layer("linear", weight, bias)


_max_pool: Final = partial(_pool, "max pool")
_mean_pool: Final = partial(_pool, "mean pool")
_relu: Final = _of_kind("relu")
_tanh: Final = _of_kind("tanh")
_reshape: Final = _of_kind("reshape")
#: Makes the layer of a function of torch from its arguments after the outputs of the layer before.
_LAYERS: Final[dict[Callable[..., Any], Callable[..., Layer]]] = {
    F.linear: _linear,
    F.conv2d: _convolution,
    torch.conv2d: _convolution,
    F.max_pool2d: _max_pool,
    torch.max_pool2d: _max_pool,
    F.avg_pool2d: _mean_pool,
    F.dropout: _dropout,
    F.dropout1d: _dropout,
    F.dropout2d: _dropout,
    F.dropout3d: _dropout,
    F.log_softmax: _log_softmax,
    torch.log_softmax: _log_softmax,
    Tensor.log_softmax: _log_softmax,
    F.relu: _relu,
    torch.relu: _relu,
    torch.relu_: _relu,
    Tensor.relu: _relu,
    Tensor.relu_: _relu,
    F.tanh: _tanh,
    torch.tanh: _tanh,
    Tensor.tanh: _tanh,
    Tensor.tanh_: _tanh,
    torch.flatten: _reshape,
    torch.reshape: _reshape,
    torch.unsqueeze: _reshape,
    torch.squeeze: _reshape,
    Tensor.flatten: _reshape,
    Tensor.view: _reshape,
    Tensor.reshape: _reshape,
    Tensor.unflatten: _reshape,
    Tensor.unsqueeze: _reshape,
    Tensor.squeeze: _reshape,
    Tensor.contiguous: _reshape,
}


def chain_of(model: FlatModel, features: Tensor) -> list[Layer]:
    """The layers of a model from features to outputs.

    The model is called once, and every function of torch that it calls is recorded. Tracing by
    torch.fx would change the modules of all threads meanwhile.

    Args:
        model: any; it is not changed.
        features: those of some examples.

    Raises:
        NotAChain: a layer is not known, or takes more than the outputs of the last one.
    """
    recorder = _Recorder(features)
    module = model.copied().module
    try:
        with torch.enable_grad(), recorder:
            outputs = module(features)
    except Exception as error:  # a module may raise anything
        raise NotAChain(f"forward is not recorded: {error}") from error
    _require(outputs is recorder.last, "forward does not return the outputs of the last layer")
    return recorder.layers


class _Recorder(TorchFunctionMode):
    """Records the layers that are applied to features within."""

    def __init__(self, features: Tensor) -> None:
        super().__init__()
        self.layers = list[Layer]()
        self.last = features
        self._trained = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function, which must be a layer or return nothing but a size."""
        named = dict(kwargs or {})
        result = func(*args, **named)
        if not _is_size(func, result):
            self._record(func, args, named, result)
        return result

    def _record(self, func: Any, args: Any, named: dict[str, Any], result: Any) -> None:
        name = getattr(func, "__name__", str(func))
        if args:
            inputs, *arguments = args
        else:
            inputs = named.pop("input", None)
            arguments = []
        if func not in _LAYERS or inputs is not self.last:
            raise NotAChain(f"{name} is not a layer that takes only the outputs of the last one")
        try:
            layer = _LAYERS[func](*arguments, **named)
        except TypeError as error:
            raise NotAChain(f"{name} has arguments that are not known") from error
        before = tuple(self.last.shape)
        after = tuple(result.shape)
        layer = layer._replace(before=before[1:], after=after[1:])
        self._trained |= layer.trained
        same_numbers = math.prod(layer.before) == math.prod(layer.after)
        whole = before[:1] == after[:1] and (layer.kind != "reshape" or same_numbers)
        _require(whole, f"{name} mixes examples")
        _require(result.requires_grad == self._trained, f"{name} is hidden from gradients")
        self.layers.append(layer)
        self.last = result


def _is_size(func: Any, result: Any) -> bool:
    """Whether a function tells a size, a type or a device alone."""
    tells_none = isinstance(result, torch.Size | torch.dtype | torch.device)
    return result is None or tells_none or func in _SIZES


def _require(fits: bool, otherwise: str) -> None:
    if not fits:
        raise NotAChain(otherwise)


def _pair(value: Any) -> Pair:
    """Lines and pixels from an integer for both, a sequence of one, or a sequence of two."""
    _require(not isinstance(value, str), f"padding is {value!r}")
    if isinstance(value, int):
        return value, value
    if len(value) != 2:
        value = value * 2
    lines, pixels = value
    return int(lines), int(pixels)
