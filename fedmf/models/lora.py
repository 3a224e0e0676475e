"""LoRA through peft: modules of which only low-rank adapters are trained.

`LogitsOf` makes a model of transformers return its logits, as losses take them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from fedmf.errors import ConfigError


class LogitsOf(nn.Module):
    """A model that returns the tensor ``logits`` of the output of a model of transformers.

    Args:
        inner: takes tokens as ``input_ids``, or several tensors by the names of its arguments. Its
            cache of keys and values is switched off. Released models have its names.
    """

    #: Before the names of the inner module's parameters.
    WRAPPED: Final = "inner."

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        config: Any = getattr(inner, "config", None)
        if hasattr(config, "use_cache"):
            config.use_cache = False

    def forward(self, input_ids: Tensor, **named: Tensor) -> Tensor:
        """Return the logits of the inner model."""
        return self.inner(input_ids=input_ids, **named).logits

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load a state with the names of this module, or with those of the inner one."""
        if self.state_dict().keys() & state_dict.keys():
            return super().load_state_dict(state_dict, strict, assign)
        return self.inner.load_state_dict(state_dict, strict, assign)


def with_lora(
    module: nn.Module,
    rank: int = 8,
    alpha: float = 16.0,
    targets: Sequence[str] = (),
    heads: Sequence[str] = (),
    seed: int = 0,
    train_a: bool = True,
) -> nn.Module:
    """Give a module low-rank adapters, and freeze the rest.

    A layer becomes y = W·x + (α/r)·B·A·x, of which A and B are trained, in float32.

    Args:
        module: any module; it is changed and returned, in evaluation mode, so that nothing in it
            draws at random.
        rank: r ≥ 1.
        alpha: α > 0.
        targets: names of dense layers, or the ends of such names; if omitted, all of them but heads
            and layers that share their weight with another module.
        heads: names of modules that are trained as they are.
        seed: public seed of A; B starts at zero, so that the outputs equal the module's.
        train_a: if False, A stays as it was drawn. Fewer parameters are trained, which get less
            noise in all, and the mean of users' B·A is the product of their mean B with A.

    Raises:
        ConfigError: peft is not installed, a value is out of range, the module has dropout, or no
            layer or module has such a name.

    References:
        Hu et al. (2022), "LoRA: Low-Rank Adaptation of Large Language Models", section 4.1.
        Sun et al. (2024), "Improving LoRA in Privacy-preserving Federated Learning", section 4
        (A is frozen).
    """
    if not (isinstance(rank, int) and rank >= 1):
        raise ConfigError(f"rank (r, of LoRA) must be an integer of at least 1; got {rank!r}.")
    if not (math.isfinite(alpha) and alpha > 0):
        raise ConfigError(f"alpha (α, of LoRA) must be positive and finite; got {alpha!r}.")
    if not 0 <= seed < 2**63:
        raise ConfigError(f"seed (of LoRA) must lie in 0..2⁶³ − 1; got {seed!r}.")
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError:
        raise ConfigError("LoRA needs peft: pip install 'fedmf[lm]'.") from None
    parts = dict(module.named_modules())
    for name in heads:
        if name not in parts:
            raise ConfigError(f"heads (of LoRA) must name modules; got {name!r}.")
    for name, part in parts.items():
        if isinstance(part, nn.modules.dropout._DropoutNd) and part.training and part.p:
            raise ConfigError(
                f"module (for LoRA) must have no dropout; got {type(part).__name__} {name!r}. Build"
                " it with dropout 0, or call eval()."
            )
    chosen = list(targets) or list(_dense_layers(module, heads))
    if not chosen:
        raise ConfigError("targets (of LoRA) must name dense layers; the module has none.")
    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,  # pyright: ignore[reportArgumentType]
        lora_dropout=0.0,
        bias="none",
        target_modules=chosen,
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on the transposed weights of GPT-2
        torch.default_generator.manual_seed(seed)
        try:
            inject_adapter_in_model(config, module)
        except ValueError as error:
            raise ConfigError(
                f"targets (of LoRA) must name dense layers; got {chosen}: {error}"
            ) from None
    _choose_trained(module, train_a)
    for name in heads:
        parts[name].requires_grad_(True)
    return module.eval()


def save_adapters(module: nn.Module, folder: str | Path) -> None:
    """Write the adapters of a module in peft's format: ``adapter_model.safetensors`` and a config.

    ``peft.PeftModel.from_pretrained(base, folder)`` puts them into the module without adapters.

    Args:
        module: as `with_lora` returned it; parts that share its tensors may have been trained.
        folder: an existing or a new one; files in it are replaced.
    """
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = dict[str, Tensor]()
    for name, tensor in get_peft_model_state_dict(module).items():
        tensors[f"base_model.model.{name}"] = tensor.contiguous()
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
    config: Any = module.peft_config
    config["default"].save_pretrained(str(folder))


def _choose_trained(module: nn.Module, train_a: bool) -> None:
    """Make adapters float32, also in a module of bfloat16, and freeze A unless it is trained."""
    for name, parameter in module.named_parameters():
        if ".lora_" in name:
            parameter.data = parameter.data.float()
        if ".lora_A." in name:
            parameter.requires_grad_(train_a)


def _dense_layers(module: nn.Module, heads: Sequence[str]) -> Iterator[str]:
    """Yield the names of dense layers outside the heads that do not share their weight."""
    owners: dict[int, int] = {}
    for _, parameter in module.named_parameters(remove_duplicate=False):
        owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    for name, part in module.named_modules():
        dense = isinstance(part, nn.Linear) or type(part).__name__ == "Conv1D"  # of GPT-2
        if dense and owners[id(part.weight)] == 1 and not _within(name, heads):
            yield name


def _within(name: str, heads: Sequence[str]) -> bool:
    return any(name == head or name.startswith(f"{head}.") for head in heads)
