"""Proven replacement of modules in place, and their conversion, in a model that is kept."""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from ..progress import progress
from .proof import Findings, NotProven, attempt
from .roles.role import Role
from .weights.parameters import replace_parameters

RoleOf = Callable[[nn.Module], "tuple[str, Role[Any, Any]] | None"]
Probe = Callable[[Any], Sequence[torch.Tensor]]


def replace_modules(
    model: nn.Module, role_of: RoleOf, probe: Probe, findings: Findings
) -> list[str]:
    """Replace every module that has a role by what is proven; return the names of the others.

    Args:
        model: changed in place.
        role_of: returns the name of a module's role and the role, or None.
        probe: returns the model's outputs. A module is recorded for each of its calls that they
            depend on, and left alone if there is none.
        findings: gets what is replaced and what is kept.
    """
    names: dict[nn.Module, list[str]] = defaultdict(list)
    for name, module in model.named_modules(remove_duplicate=False):
        names[module].append(name)
    found = [(name, module, role_of(module)) for name, module in model.named_modules()]
    calls = contributing_calls(
        model, [module for _, module, role in found if role is not None], probe
    )
    sites = [(name, module, role) for name, module, role in found if role and calls[module]]
    kept = []
    for name, module, (title, role) in progress(sites, "Proving modules", "module"):
        if module not in set(model.modules()):
            continue  # a part of what was replaced as a whole
        try:
            built, difference = role.proven(module)
        except NotProven as error:
            findings.keep(name, title, str(error))
            kept.append(name)
            continue
        for _ in range(calls[module]):
            role.report(findings, name, built, difference)
        for alias in names[module]:
            model.set_submodule(alias, built)
    return kept


def contributing_calls(
    model: nn.Module, modules: Sequence[nn.Module], probe: Probe
) -> Counter[nn.Module]:
    """Return how often each module is called for a result that the outputs depend on.

    Calls that the model makes without gradients, as HRM makes all but its last cycles, are counted.
    """
    marked: list[tuple[nn.Module, torch.Tensor]] = []
    without_gradients = Counter[nn.Module]()

    def mark(module: nn.Module, _arguments: object, result: Any) -> Any:
        if not torch.is_grad_enabled():
            without_gradients[module] += 1
            return result
        marker = torch.zeros((), requires_grad=True)
        marked.append((module, marker))
        if isinstance(result, tuple):
            return tuple(each + marker if _is_float(each) else each for each in result)
        return result + marker

    def differentiate() -> list[torch.Tensor | None]:
        with torch.enable_grad():
            total = torch.stack([output.float().sum() for output in probe(model)]).sum()
            markers = [marker for _, marker in marked]
            return list(torch.autograd.grad(total, markers, allow_unused=True)) if markers else []

    hooks = [module.register_forward_hook(mark) for module in modules]
    try:
        gradients = attempt(differentiate)
    finally:
        for hook in hooks:
            hook.remove()
    return without_gradients + Counter(
        module
        for (module, _), gradient in zip(marked, gradients, strict=True)
        if gradient is not None
    )


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def is_listed(name: str, listed: Iterable[str]) -> bool:
    """Whether parts of a module's or weight's name that follow each other are listed.

    A router keeps its module as ``original``, which transformers' names do not have.
    """
    path = f".{name}.".replace(".original.", ".")
    return any(f".{entry}." in path for entry in listed)


def convert_weights(model: Any, dtype: torch.dtype) -> None:
    """Convert the weights but those that the model keeps in float32.

    Buffers stay, such as rotary frequencies, but for tables that transformers makes in the dtype of
    the model, such as sinusoidal positions, which are added to embeddings.
    """
    names = set(getattr(model, "_keep_in_fp32_modules_strict", None) or ())
    if dtype == torch.float16:
        # Those of one part: DeepSeek-V4's code does not convert activations for what others name.
        others = getattr(model, "_keep_in_fp32_modules", None) or ()
        names |= {name for name in others if "." not in name}

    def converted(name: str, parameter: torch.Tensor) -> torch.Tensor:
        kept = not parameter.is_floating_point() or is_listed(name, names)
        return parameter.detach() if kept else parameter.detach().to(dtype)

    replace_parameters(model, converted)
    tables = {name: b for name, b in model.named_buffers() if _is_float(b) and b.dim() > 1}
    if not tables or not hasattr(model, "_from_config"):
        return
    config = copy.deepcopy(model.config)
    config._attn_implementation = "eager"  # GPT-J does not know the name of the exporter's
    with torch.device("meta"):
        made = type(model)._from_config(config, dtype=dtype)
    for name, buffer in made.named_buffers():
        if name in tables:
            owner, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(owner), attribute, tables[name].to(buffer.dtype))
