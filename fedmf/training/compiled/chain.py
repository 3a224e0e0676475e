"""The layers that a module applies one after the other, be it a Sequential or one with its own `forward`."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fedmf.models import FlatModel

_SIZES: Final = (Tensor.size, Tensor.dim, Tensor.numel, Tensor.__len__)
Pair = tuple[int, int]


class NotAChain(ValueError):
    """Why a module is no chain of known layers."""


class Layer(NamedTuple):
    """A layer, and the shapes of an example before and after it.

    Attributes:
        kind: "linear", "convolution", "max pool", "mean pool", "relu", "tanh", "reshape", "log softmax", or
            "" for one that does nothing.
        weight, bias: parameters, None for none.
        side, step, edge: lines and pixels of a window, between windows, and of padding.
    """

    kind: str
    weight: Tensor | None = None
    bias: Tensor | None = None
    side: Pair = (1, 1)
    step: Pair = (1, 1)
    edge: Pair = (0, 0)
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()


def _linear(weight: Tensor, bias: Tensor | None = None) -> Layer:
    return Layer("linear", weight, bias)


def _convolution(
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Layer:
    if _pair(dilation) != (1, 1) or groups != 1:
        raise NotAChain("a convolution has groups or is dilated")
    height, width = weight.shape[2:]
    return Layer("convolution", weight, bias, (height, width), _pair(stride), _pair(padding))


def _max_pool(
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Layer:
    if (_pair(padding), _pair(dilation)) != ((0, 0), (1, 1)) or ceil_mode or return_indices:
        raise NotAChain("pooling is padded, dilated or of another special kind")
    return Layer("max pool", side=_pair(kernel_size), step=_pair(stride or kernel_size))


def _mean_pool(
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Layer:
    del count_include_pad
    if _pair(padding) != (0, 0) or ceil_mode or divisor_override:
        raise NotAChain("pooling is padded or of another special kind")
    return Layer("mean pool", side=_pair(kernel_size), step=_pair(stride or kernel_size))


def _dropout(p: float = 0.5, training: bool = True, inplace: bool = False) -> Layer:
    del inplace
    if training and p > 0:
        raise NotAChain("the model draws random numbers")
    return Layer("")


def _log_softmax(dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Layer:
    del _stacklevel
    if dim not in (1, -1) or dtype is not None:
        raise NotAChain("log_softmax is not of an example's outputs")
    return Layer("log softmax")


def _relu(inplace: bool = False) -> Layer:
    del inplace
    return Layer("relu")


def _tanh() -> Layer:
    return Layer("tanh")


def _reshape(*sizes: Any, **named: Any) -> Layer:
    del sizes, named
    return Layer("reshape")


#: The layer of a function of torch, given what it is called with beside the outputs of the layer before.
_LAYERS: Final[dict[Callable[..., Any], Callable[..., Layer]]] = {
    **dict.fromkeys((F.linear,), _linear),
    **dict.fromkeys((F.conv2d, torch.conv2d), _convolution),
    **dict.fromkeys((F.max_pool2d, torch.max_pool2d), _max_pool),
    **dict.fromkeys((F.avg_pool2d,), _mean_pool),
    **dict.fromkeys((F.dropout, F.dropout1d, F.dropout2d, F.dropout3d), _dropout),
    **dict.fromkeys((F.log_softmax, torch.log_softmax, Tensor.log_softmax), _log_softmax),
    **dict.fromkeys((F.relu, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_), _relu),
    **dict.fromkeys((F.tanh, torch.tanh, Tensor.tanh, Tensor.tanh_), _tanh),
    **dict.fromkeys((torch.flatten, torch.reshape, torch.unsqueeze, torch.squeeze), _reshape),
    **dict.fromkeys((Tensor.flatten, Tensor.view, Tensor.reshape, Tensor.unflatten), _reshape),
    **dict.fromkeys((Tensor.unsqueeze, Tensor.squeeze, Tensor.contiguous), _reshape),
}


def chain_of(model: FlatModel, features: Tensor) -> list[Layer]:
    """The layers of a model from features to outputs.

    The model is called once, and every function of torch that it calls is written down. Tracing by torch.fx
    would change the modules of all threads meanwhile.

    Args:
        model: any; it is left alone.
        features: of some examples.

    Raises:
        NotAChain: a layer is not known, or does not take the outputs of the one before alone.
    """
    recorder, module = _Recorder(features), model.copied().module
    try:
        with torch.enable_grad(), recorder:
            outputs = module(features)
    except NotAChain:
        raise
    except Exception as error:  # a module may raise anything
        raise NotAChain(f"forward cannot be recorded: {error}") from error
    if outputs is not recorder.last:
        raise NotAChain("forward does not return the outputs of the last layer")
    return recorder.layers


class _Recorder(TorchFunctionMode):
    """Writes down the layers that are applied to features within."""

    def __init__(self, features: Tensor) -> None:
        super().__init__()
        self.layers, self.last, self._trained = list[Layer](), features, False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function, and see that it is a layer, or asks for nothing but a size."""
        before, named = self.last.shape, dict(kwargs or {})
        result = func(*args, **named)
        if result is None or isinstance(result, torch.Size | torch.dtype | torch.device) or func in _SIZES:
            return result
        name = getattr(func, "__name__", str(func))
        make, given = _LAYERS.get(func), args[0] if args else named.pop("input", None)
        if make is None or given is not self.last:
            raise NotAChain(f"{name} is no layer that takes the outputs of the one before alone")
        try:
            bound = inspect.signature(make).bind(*args[1:], **named)
        except TypeError as error:
            raise NotAChain(f"{name} has arguments that are not known") from error
        layer = make(*bound.args, **bound.kwargs)._replace(before=(*before[1:],), after=(*result.shape[1:],))
        self._trained |= any(part is not None and part.requires_grad for part in (layer.weight, layer.bias))
        if result.shape[:1] != before[:1] or result.requires_grad != self._trained:
            raise NotAChain(f"{name} mixes examples, or is hidden from gradients")
        if layer.kind != "reshape" or math.prod(layer.before) == math.prod(layer.after):
            self.layers.append(layer)
            self.last = result
            return result
        raise NotAChain(f"{name} mixes examples")


def _pair(value: Any) -> Pair:
    if isinstance(value, str):
        raise NotAChain(f"padding is {value!r}")
    one, other = (value, value) if isinstance(value, int) else value if len(value) == 2 else value * 2
    return int(one), int(other)
