"""Quantised weights of a proven decoder: rounded by a scheme, or as the checkpoint has them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib import resources
from typing import Any

import torch
from torch import nn

from ..errors import ArgumentError, ExportError
from .caches import Interface
from .integers.integer_weight import DYNAMIC, FLOAT
from .integers.stored_linear import StoredLinear
from .kept_model import KeptModel
from .module_replacement import is_listed
from .proof import Findings
from .roles.experts import RoutedExperts
from .roles.linear import Linear, replace_by_torch
from .weights.lazy_weight import give_back_memory

NONE = "none"
KEEP = "keep"
# Integers of 4 bits are packed in words of eight, along the inputs or the outputs.
_IN_WORD, _WORD_BITS = 8, 4
_HALVES = (torch.float16, torch.bfloat16)  # that weights of float activations need
# Input features that share a scale: few, as in the int4 formats of other runtimes, since weights of
# small models lose much by more; products of integers would have to scale more partial sums.
_GROUP, _INTEGER_GROUP = 32, 128
_ROUNDINGS = ("npu_dynamic_quant", "npu_quantize")
_TEXT = resources.files(__package__).joinpath("calibration.txt")
_MOST_TOKENS, _ROW = 2048, 512


def schemes() -> tuple[str, ...]:
    """Return the names of the choices."""
    from ..converters import SCHEMES

    return (NONE, KEEP, *SCHEMES)


def check_scheme(
    name: str,
    dtype: torch.dtype,
    calibration: Any,
    static_error: float | None = None,
    inner_precise: int = 0,
    quant_head: bool = False,
) -> None:
    """Refuse a scheme with a dtype or an option that it does not take."""
    from ..converters import SCHEMES

    scheme = SCHEMES.get(name)
    floats = name == KEEP or (scheme is not None and scheme.activation == "float")
    if inner_precise not in ((0, 1) if floats else (0,)):
        raise ArgumentError(
            f"expected inner_precise 0, or 1 with quant of {KEEP}, w8a16 or w4a16, got "
            f"{inner_precise} with quant={name!r}"
        )
    if quant_head and name == NONE:
        raise ArgumentError("expected quant with quant_head, got quant='none'")
    if quant_head and name == KEEP and dtype not in (torch.float16, torch.bfloat16):
        raise ArgumentError(f"expected dtype float16 or bfloat16 with quant_head, got {dtype}")
    if calibration is not None and not (scheme is not None and scheme.calibrated):
        taken = ", ".join(each.name for each in SCHEMES.values() if each.calibrated)
        raise ArgumentError(f"expected calibration with quant of {taken} only, got {name!r}")
    static = scheme is not None and scheme.activation == "static"
    if static_error is not None and not (static and static_error >= 0):
        raise ArgumentError(
            f"expected static_error of at least 0 with quant='w8a8', got {static_error} with "
            f"quant={name!r}"
        )
    if scheme is None:
        return
    try:
        scheme.check_dtype(dtype)
    except ValueError as error:
        raise ArgumentError(
            f"expected dtype float16 or bfloat16 with quant={name!r}, got {dtype}"
        ) from error


def calibration_batches(
    interface: Interface,
    tokenizer: Any | None,
    scheme: str,
    calibration: Iterable[str | Sequence[int]] | None,
    context: int,
) -> list[tuple[Any, ...]] | None:
    """Return the interface's arguments for what a scheme is calibrated with, or None.

    A batch for each text or row of token ids, several for what is longer than the context, which
    has no more positions. For w4a16 the first ``_MOST_TOKENS`` tokens of all
    are one batch. By default the package's own text, if the tokenizer's ids fit the model; a scheme
    that needs calibration is refused without any.
    """
    from ..converters import SCHEMES

    chosen, vocabulary = SCHEMES[scheme], interface.decoder.vocabulary
    joined = chosen.compensated
    if calibration is None:
        ids = _shipped_ids(tokenizer, vocabulary) if chosen.calibrated else None
        if ids is None:
            if chosen.activation == "static":
                raise ArgumentError(
                    f"expected calibration with quant={scheme!r} for a model without a tokenizer "
                    f"whose ids fit it, got none"
                )
            return None
        # Several rows: the first tokens of each have the largest activations.
        length = len(ids) if joined else min(_ROW, context)
        calibration = [ids[begin : begin + length] for begin in range(0, len(ids), length)]
    rows = []
    for sample in calibration:
        if not isinstance(sample, str):
            ids = list(sample)
        elif tokenizer is None:
            raise ArgumentError("expected calibration of token ids for a model without a tokenizer")
        else:
            ids = tokenizer(sample)["input_ids"]
        rows += [ids[begin : begin + context] for begin in range(0, len(ids), context)]
    if not rows:
        raise ArgumentError("expected calibration of at least one token, got none")
    if joined:
        rows = [[token for row in rows for token in row][: min(_MOST_TOKENS, context)]]
    for row in rows:
        if not all(0 <= token < vocabulary for token in row):
            raise ArgumentError(f"expected calibration of tokens from 0 to {vocabulary - 1}")
    return [interface.prompt(torch.tensor([row], dtype=torch.int64)) for row in rows]


def _shipped_ids(tokenizer: Any | None, vocabulary: int) -> list[int] | None:
    """Return the ids of the package's own text, or None if the model has none for it."""
    if tokenizer is None:
        return None
    ids: list[int] = tokenizer(_TEXT.read_text(encoding="utf-8"))["input_ids"]
    return ids if ids and all(0 <= token < vocabulary for token in ids) else None


def quantize(
    interface: Interface,
    scheme: str,
    calibration: Iterable[tuple[Any, ...]] | None,
    findings: Findings,
    *,
    inner_precise: int = 0,
    quant_head: bool = False,
    **options: Any,
) -> list[str]:
    """Quantise the projections and experts of a decoder, in place.

    Layers that a scheme cannot take stay floats and are listed, and so does the head unless
    ``quant_head``. ``calibration``: arguments of the interface. ``inner_precise`` and ``options``:
    of ``quantize_weights``. Returns the names of layers of a scheme with static activations that
    have a scale per token instead.
    """
    from ..converters import SCHEMES
    from ..converters.quantize_weights import quantized_layers
    from ..converters.quantized_linear import IntegerLinear

    restore_floats(interface)
    replace_by_torch(interface)
    shared: list[tuple[str, ...]] = []
    own = isinstance(interface.decoder, KeptModel)  # whose layers are not all of the decoder
    if own or SCHEMES[scheme].activation != FLOAT:
        linear = {n: m for n, m in interface.named_modules() if isinstance(m, nn.Linear)}
        shared = _called(interface, linear)
    called = {name for names in shared for name in names} if own else None
    skip = _skipped(interface, scheme, findings, called)
    try:
        group = _GROUP if SCHEMES[scheme].compensated else _INTEGER_GROUP
        layers = quantized_layers(
            interface, scheme, group_size=group, inner_precise=inner_precise,
            calibration=calibration, skip=skip, **options,
        )  # fmt: skip
        for name, layer in layers:
            interface.set_submodule(name, layer)
            give_back_memory()
    except ValueError as error:
        raise ExportError(str(error)) from error
    if quant_head:
        _quantize_head(interface, scheme, inner_precise, findings)
    _record_operators(interface, findings, shared)
    if SCHEMES[scheme].activation != "static":
        return []
    return [
        name
        for name, module in interface.named_modules()
        if isinstance(module, IntegerLinear) and not module.static
    ]


def _quantize_head(
    interface: Interface, scheme: str, inner_precise: int, findings: Findings
) -> None:
    """Round the head to int8; its input as the scheme rounds those of projections, per token.

    One that the model keeps in float32 stays, and is listed.
    """
    from ..converters import SCHEMES
    from ..converters.quantized_linear import IntegerLinear, WeightOnlyLinear

    chosen = SCHEMES.get(scheme)
    weight = interface.decoder.head_weight
    if weight is not None and weight.dtype != interface.decoder.dtype:
        findings.keep("", "head", "not quantised: the model keeps it more exact than others")
        return

    def rounded(head: nn.Linear) -> nn.Module:
        if chosen is None or chosen.activation == FLOAT:
            return WeightOnlyLinear.rounded(head, SCHEMES["w8a16"], 0, inner_precise)
        return IntegerLinear.rounded(head, None)

    interface.decoder.replace_head(rounded)
    give_back_memory()


def restore_floats(interface: Interface) -> int:
    """Replace the integers of a checkpoint by the floats that they stand for; return how many."""
    layers = {n: m for n, m in interface.named_modules() if isinstance(m, StoredLinear)}
    for name, layer in layers.items():
        weight = layer.weight.to(interface.decoder.dtype)
        interface.set_submodule(name, Linear(weight.t().contiguous(), layer.bias))
    return len(layers)


def keep_integers(
    interface: Interface,
    left: Mapping[str, tuple[str, str]],
    findings: Findings,
    *,
    head: Any = None,
    ranks: int = 1,
    inner_precise: int = 0,
    quant_head: bool = False,
) -> dict[str, int]:
    """Multiply the integers of a checkpoint by fused operators, in place.

    ``left``: role of each module of the checkpoint that has no integers, and why. ``head``: that of
    the checkpoint; of integers it needs no ``quant_head``, and is listed if it becomes floats.
    Returns how many projections have integers, by their layout; those of all experts are one.
    Raises ArgumentError for a checkpoint without any, and for a dtype that the operators do not
    take.
    """
    layers = {n: m for n, m in interface.named_modules() if isinstance(m, StoredLinear)}
    experts = {
        name: (module, module.stored)
        for name, module in interface.named_modules()
        if isinstance(module, RoutedExperts) and module.stored is not None
    }
    if not layers and not experts:
        why = next((f": {reason}" for _, reason in left.values()), "")
        raise ArgumentError(
            f"expected quant='keep' with a checkpoint whose linear layers are stored as integers "
            f"(GPTQ, AWQ, auto-round, BitNet, compressed-tensors, GGUF), got floats{why}"
        )
    for name, (role, reason) in left.items():
        findings.keep(name, role, f"not integers: {reason}")
    dtype = interface.decoder.dtype
    for name, module in layers.items():
        if module.unrounded is not None and dtype in _HALVES:
            why = f"no operator multiplies {module.unrounded}"
            findings.keep(name, "linear", f"activations stay floats: {why}")
            module.leave_activations()
    shared = _rounded_alike(interface, layers)
    layouts: Counter[str] = Counter()
    for name, module in layers.items():
        by_words = module.stored.bits == _WORD_BITS and module.stored.activation == DYNAMIC
        if (by_words or module.stored.activation == FLOAT) and dtype not in _HALVES:
            raise ArgumentError(
                f"expected dtype float16 or bfloat16 with quant='keep' and weights of "
                f"{module.stored.layout}, got {dtype}"
            )
        try:
            interface.set_submodule(name, module.as_operator(dtype, inner_precise))
        except ValueError as error:
            findings.keep(name, "linear", f"taken as floats: {error}")
        else:
            layouts[module.stored.layout] += 1
    for name, (routed, stored) in experts.items():
        if stored.unrounded is not None and dtype in _HALVES:
            why = f"no operator multiplies experts of {stored.unrounded}"
            findings.keep(name, "experts", f"activations stay floats: {why}")
            stored = stored.with_float_activations()
        try:
            interface.set_submodule(name, stored.as_operators(routed, dtype))
        except ValueError as error:
            findings.keep(name, "experts", f"taken as floats: {error}")
        else:
            layouts.update((stored.up.layout, stored.down.layout))
    restore_floats(interface)
    kept_head = False
    if isinstance(head, StoredLinear):
        # A model that is exported by its own forward pass has it among its layers.
        kept_head = any(module.stored is head.stored for module in layers.values())
        if not kept_head and _keep_head(interface, head, ranks, findings, inner_precise):
            kept_head = True
            layouts[head.stored.layout] += 1
    if quant_head and not kept_head:
        _quantize_head(interface, KEEP, inner_precise, findings)
    _record_operators(interface, findings, shared)
    return dict(layouts)


def _keep_head(
    interface: Interface, head: StoredLinear, ranks: int, findings: Findings, inner_precise: int
) -> bool:
    """Multiply the integers of a rebuilt model's head, in place; return whether it has them now.

    It is listed if it stays as it is, floats.
    """
    dtype = interface.decoder.dtype

    def kept(floats: nn.Linear) -> nn.Module:
        if ranks > 1:
            raise ValueError("every rank has the whole head in floats")
        if head.stored.activation == FLOAT and dtype == torch.float32:
            raise ValueError(f"weights of {head.stored.layout} need float16 or bfloat16")
        if head.bias is not None or not torch.equal(floats.weight, head.weight.to(dtype)):
            raise ValueError("the model changes its weights")
        return head.as_operator(dtype, inner_precise)

    try:
        interface.decoder.replace_head(kept)
    except ValueError as error:
        findings.keep("", "head", f"taken as floats: {error}")
        return False
    return True


def _record_operators(
    interface: Interface, findings: Findings, shared: Iterable[tuple[str, ...]] = ()
) -> None:
    """Record the operators of quantised layers; those that share an input round it once."""
    first = {name: names[0] for names in shared for name in names}
    rounded = set()
    for name, module in interface.named_modules():
        operators: dict[str, int] = getattr(module, "operators", {})
        for op, count in operators.items():
            rounding = (first.get(name, name), op)
            if op in _ROUNDINGS and rounding in rounded:
                continue
            rounded.add(rounding)
            findings.quantized(op, count)


def _called(interface: Interface, layers: Mapping[str, nn.Module]) -> list[tuple[str, ...]]:
    """Return the names of the layers that a run calls, together if they share an input."""
    from ..converters.calibration import layers_by_input

    probe = interface.prompt(torch.zeros(1, 2, dtype=torch.int64))
    return layers_by_input(interface, layers, [probe])


def _rounded_alike(
    interface: Interface, layers: Mapping[str, StoredLinear]
) -> list[tuple[str, ...]]:
    """Return the names of layers of integer activations, together if they share rounded ones."""
    rounding = {name: layer for name, layer in layers.items() if layer.stored.activation != FLOAT}
    if not rounding:
        return []
    alike: dict[Any, list[str]] = defaultdict(list)
    for place, names in enumerate(_called(interface, rounding)):
        for name in names:
            step = rounding[name].stored.input_scale
            alike[place, None if step is None else float(step)].append(name)
    return [tuple(names) for names in alike.values()]


def _skipped(
    interface: Interface, scheme: str, findings: Findings, called: Collection[str] | None
) -> list[str]:
    """Return the names of layers that stay floats: the head, routers, and what does not fit.

    So do those that are not in ``called``, if given: Mamba's code multiplies by the weights of some
    layers itself, and Whisper's decoder alone does not attend to an encoder.
    """
    from ..converters.quantize_weights import is_linear

    decoder = interface.decoder
    skipped = []
    for name, module in interface.named_modules():
        if not isinstance(module, nn.Linear):
            continue
        if not is_linear(module):
            findings.keep(name, "linear", "not quantised: its forward pass is its own")
            continue
        sizes = (module.in_features, module.out_features)
        if module.weight is decoder.head_weight or _routes(interface, name):
            skipped.append(name)
        elif called is not None and name not in called:
            if decoder.states:
                findings.keep(name, "linear", "not quantised: the model reads its weight itself")
            skipped.append(name)
        elif keeps_exact(getattr(decoder, "model", None), name):
            findings.keep(
                name, "linear", "not quantised: the model keeps it more exact than others"
            )
            skipped.append(name)
        elif not fits(module, scheme) or module.weight.dtype != decoder.dtype:
            why = f"{sizes[0]} x {sizes[1]} of {module.weight.dtype} does not fit {scheme}"
            findings.keep(name, "linear", f"not quantised: {why}")
            skipped.append(name)
    return skipped


def keeps_exact(model: Any, name: str) -> bool:
    """Whether a model of transformers keeps a layer of this name in float32 in some precision."""
    names = set(getattr(model, "_keep_in_fp32_modules_strict", None) or ())
    names |= set(getattr(model, "_keep_in_fp32_modules", None) or ())
    return is_listed(name, names)


def fits(module: nn.Linear, scheme: str) -> bool:
    """Return whether a scheme takes a layer of these sizes."""
    from ..converters import SCHEMES

    chosen = SCHEMES[scheme]
    sizes = (module.in_features, module.out_features)
    # Integer activations need whole words along the inputs; else either axis will do.
    packed = sizes[:1] if chosen.activation != "float" else sizes
    return chosen.weight_bits != 4 or any(size % _IN_WORD == 0 for size in packed)


def _routes(interface: Interface, name: str) -> bool:
    """Whether a layer is a router's: it lies under a gate or router beside experts."""
    path = name.split(".")
    for i, part in enumerate(path):
        if part in ("gate", "router"):
            owner = interface.get_submodule(".".join(path[:i]))
            if hasattr(owner, "experts"):
                return True
    return False
