"""The decoder of any transformers model: its own forward pass, with proven modules replaced.

For models that the roles of roles/decoder.py cannot rebuild. Attention is fused through
transformers' attention interface; norms, MLPs and experts are replaced one by one where they are
proven; everything else is exported as torch runs it, in standard ONNX, and is listed.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..converters.quantized_experts import is_experts
from .arguments import DEFAULT_OPSET
from .attention_interface import ATTENTION, fuse_attention, shared_step
from .caches.dynamic import DynamicStep
from .caches.step import LayerCache, Step
from .compressed_attention import fuse_compressed_attention
from .convolved_padding import ConvolvedPadding
from .indexed_attention import choose_in_graph
from .indexed_blocks import choose_blocks_in_graph
from .indexed_groups import choose_groups_in_graph
from .kept_model import KeptModel
from .key_numbers import known_rows
from .model_cache import (
    Cached,
    cache_argument,
    cached_by,
    decoder_config,
    keys_and_values,
    layer_kinds,
    run_with_cache,
    run_without_cache,
    state_tensors,
)
from .module_replacement import RoleOf, replace_modules
from .ngram_embedding import keep_tokens_as_states
from .own_attention import fuse_own_attention
from .own_linear import replace_own_linears
from .position_tables import PositionTables, follow_positions
from .proof import Findings, NotProven, attempt
from .query_temperature import scale_queries_by_positions
from .recurrences import Recurrences, replace_recurrences
from .replaced_functions import ReplacedFunctions
from .roles.activation import ActivationRole, is_activation
from .roles.centered_norm import CenteredNormRole
from .roles.experts import ExpertsRole
from .roles.latent_attention import LatentAttentionRole, is_latent_attention
from .roles.latent_form import Tables
from .roles.masking import Masking
from .roles.mlp import MlpRole, is_mlp
from .roles.role import Role
from .roles.router import RouterRole, is_router
from .roles.scaled_experts import ScaledExpertsRole, is_scaled_experts
from .roles.stacked_experts import StackedExpertsRole, is_stacked_experts
from .rotary_function import replace_rotary
from .rotary_module import follow_lengths


class OriginalDecoder(KeptModel):
    """Token ids to logits over a cache, by the model itself."""

    def __init__(
        self,
        model: Any,
        cached: Cached,
        functions: ReplacedFunctions,
        recurrences: Recurrences,
        tables: PositionTables,
        biased_by_keys: bool = False,
    ) -> None:
        """Take the parts; ``biased_by_keys``: positions are a bias, by the numbers of keys."""
        super().__init__(model, functions)
        self._biased_by_keys = biased_by_keys
        self._recurrences = recurrences
        self._tables = tables
        self._cached = cached
        self.cache_sizes, self.states = cached.sizes, cached.states
        self.layer_count = len(cached.kinds)
        self.cached_layers = cached.attending
        heads = self.cache_sizes[0].heads if self.cache_sizes else 0
        config = decoder_config(model.config)
        if config.is_heterogeneous:  # layers differ in it: that of the first with a cache
            config = config.per_layer_config[next(iter(cached.attending))]
        self.heads = int(getattr(config, "num_attention_heads", heads))
        self._maskings: dict[int, Masking | None] = {}
        self._convolved_padding = ConvolvedPadding()
        self._context = context_of(model.config)
        self._arguments = set(inspect.signature(model.forward).parameters)
        self._cache_argument = cache_argument(model)

    def decode(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        lengths: torch.Tensor,
        step: Step,
        past: list[LayerCache],
        scored: Callable[[torch.Tensor], torch.Tensor],
    ) -> tuple[torch.Tensor, list[LayerCache]]:
        """Decode input_ids [B, S] at positions [B, 1, S, 1].

        Returns logits [rows, V] in float32, of the tokens [rows, H] that ``scored`` takes of the
        head's input [B, S, H], and the cache of every layer.
        """
        with self.scoring(scored), known_rows(step, positions, lengths):
            if isinstance(step, DynamicStep) and not any(layer.rounded for layer in past):
                return self._grown(input_ids, positions, step, past)
            return self._shared(input_ids, positions, step, past)

    def _grown(
        self, input_ids: torch.Tensor, positions: torch.Tensor, step: DynamicStep, past: Any
    ) -> tuple[torch.Tensor, list[LayerCache]]:
        """Run with transformers' growing cache and masks."""
        from .state_layers import growing_cache

        mask = self._padding(input_ids, step, past)
        kept = past, step.states, self._recurrences, step.attention_mask, self._convolved_padding
        given = growing_cache(self.model, self._cached, *kept)
        with given as cache:
            logits = self._logits(input_ids, positions, cache, mask)
        step.states = state_tensors(cache, self.states)
        return logits, keys_and_values(cache, self._cached.kinds)

    @staticmethod
    def _padding(input_ids: torch.Tensor, step: DynamicStep, past: Any) -> torch.Tensor:
        """Return the mask of padding as the model reads it."""
        mask = step.attention_mask
        # Without keys and values it reads that of new tokens alone.
        return mask if past else mask[:, mask.shape[1] - input_ids.shape[1] :]

    def _shared(
        self, input_ids: torch.Tensor, positions: torch.Tensor, step: Step, past: list[LayerCache]
    ) -> tuple[torch.Tensor, list[LayerCache]]:
        """Run with the cache of a step, which attention and masks know."""
        from .original_cache import SharedStep
        from .state_layers import convolved, convolves, padding_read

        config: Any = self.model.config
        if any(kind.own is not None for kind in self._cached.kinds):
            raise NotProven("its layers keep compressed keys, in a growing cache alone")
        positioned = (
            "position_ids" in self._arguments or self._tables.first_rows or self._biased_by_keys
        )
        if past and not positioned:
            raise NotProven("its forward pass takes no position_ids")
        if past and config._attn_implementation != ATTENTION:
            raise NotProven("its attention is not called through transformers' interface")
        if not past and step.block_slots is not None:
            raise NotProven("its layers cache no keys and values, which alone lie in blocks")
        # Attention has masks of the step; layers with states ask for padding.
        mask = None
        if self.states and isinstance(step, DynamicStep):
            mask = self._padding(input_ids, step, past)
        shared = SharedStep(
            step,
            self._cached.kinds,
            past,
            self.states,
            self._maskings,
            self._context,
            convolves(self.model),
        )
        reading = self._recurrences.reading(shared.cache, step.sequences)
        convolving = convolved(self.model, shared.state_layers, step.sequences)
        padding: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if isinstance(step, DynamicStep):
            given = step.attention_mask, self._convolved_padding
            padding = padding_read(shared.state_layers, *given)
        with shared_step(shared), reading, convolving, padding:
            try:
                logits = self._logits(input_ids, positions, shared.cache, mask)
            except NotProven:
                raise
            except Exception as error:  # of shapes and types that the model's code cannot take
                if torch.compiler.is_exporting():  # a proven model, which torch cannot trace
                    raise
                kind = type(error).__name__
                raise NotProven(
                    f"its own code computes with cached keys or values ({kind})"
                ) from error
        step.states = shared.states()
        return logits, [layer.cache for layer in shared.layers]

    def _logits(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        cache: Any,
        attention_mask: torch.Tensor | None,
    ) -> torch.Tensor:
        options: dict[str, Any] = {self._cache_argument: cache}
        if "position_ids" in self._arguments:
            options["position_ids"] = positions.flatten(1)
        with self._tables.read_at(positions.flatten(1)):
            logits = self.model(
                input_ids=input_ids,
                attention_mask=attention_mask,
                use_cache=True,
                **options,
            ).logits
        return logits.float()


def context_of(config: Any) -> int:
    """Return how many positions a configuration names; 0 for none."""
    return int(getattr(config, "max_position_embeddings", None) or 0)


def keep_original(
    model: Any, reason: object, opset: int = DEFAULT_OPSET, *, floats: bool = True
) -> tuple[OriginalDecoder, Findings]:
    """Return the model with proven modules replaced in place, and the findings.

    Args:
        model: a transformers causal language model in float32, which is changed.
        reason: why the decoder was not rebuilt.
        opset: that of the file, whose operators are used.
        floats: whether weights stay floats: projections that are quantised later stay layers.

    Raises NotProven if the model has no cache of keys and values.
    """
    from .state_layers import report_convolutions

    findings = Findings()
    findings.keep("", "decoder", str(reason))
    follow_lengths(model, findings)
    replace_own_linears(model)
    _say_causal(model)
    tables = _tables_of_latent_attention(model)

    def role_of(module: nn.Module) -> tuple[str, Role[Any, Any]] | None:
        if module in tables:
            return "latent attention", LatentAttentionRole(tables[module], floats=floats)
        return decoder_role_of(module)

    replace_decoder_modules(model, role_of, findings)
    functions = ReplacedFunctions()

    def run(model: Any) -> Any:
        with functions.replaced():
            return run_with_cache(model)

    recurrences = replace_recurrences(model, run, functions, findings)
    choose_in_graph(model, functions)
    choose_blocks_in_graph(model, functions)
    choose_groups_in_graph(model, functions)
    keep_tokens_as_states(model, functions)
    biased = False
    if not fuse_compressed_attention(model, functions, findings):
        attends = any(kind.attends for kind in layer_kinds(model))
        if attends and not fuse_attention(model, run, findings, functions, opset):
            biased = fuse_own_attention(model, run, functions, findings)
    scale_queries_by_positions(model, run)
    replace_rotary(model, run, functions, findings)
    with functions.replaced():
        cached = attempt(lambda: cached_by(model, summed=recurrences.replaced))
    report_convolutions(model, run, findings)
    tables_of_positions = follow_positions(model, functions)
    parts = cached, functions, recurrences, tables_of_positions, biased
    return OriginalDecoder(model, *parts).eval(), findings


def _say_causal(model: Any) -> None:
    """Let attention of a decoder alone say that it is causal, as that of BigBird-Pegasus does not.

    What a token sees follows from masks; where all of them are causal, blocks have no others.
    """
    for module in model.modules():
        if getattr(module, "is_decoder", False) and getattr(module, "is_causal", None) is False:
            module.is_causal = True


def _tables_of_latent_attention(model: Any) -> dict[nn.Module, Tables]:
    """Return the rotary tables that each module of latent attention is called with."""
    found = [module for module in model.modules() if is_latent_attention(module)]
    given: dict[nn.Module, Tables] = {}
    if not found:  # most models: none is run for this
        return given

    def record(module: nn.Module, _: Any, options: dict[str, Any]) -> None:
        if "position_embeddings" in options:
            given[module] = options["position_embeddings"]

    hooks = [module.register_forward_pre_hook(record, with_kwargs=True) for module in found]
    try:
        attempt(run_without_cache, model)
    finally:
        for hook in hooks:
            hook.remove()
    return given


def replace_decoder_modules(model: Any, role_of: RoleOf, findings: Findings) -> None:
    """Replace the modules of a model that its logits depend on and that are proven."""
    for name in replace_modules(model, role_of, run_without_cache, findings):
        if is_experts(model.get_submodule(name)):
            # Loops over experts cannot be traced: every token gathers the weights of its own.
            model.set_experts_implementation("batched_mm")
            findings.keep(
                "", "experts", "not replaced: every token copies the weights of its experts"
            )


def decoder_role_of(module: nn.Module) -> tuple[str, Role[Any, Any]] | None:
    """Return the role that a module may have by its parts."""
    if is_scaled_experts(module):
        return "experts", ScaledExpertsRole()
    if is_experts(module):
        return "experts", ExpertsRole()
    if is_stacked_experts(module):
        return "experts", StackedExpertsRole()
    if is_router(module):
        return "router", RouterRole()
    if is_mlp(module):
        return "mlp", MlpRole()
    if is_activation(module):
        return "activation", ActivationRole()
    weight = getattr(module, "weight", None)
    is_vector = isinstance(weight, nn.Parameter) and weight.dim() == 1  # not an unused buffer
    if (
        is_vector
        and not isinstance(module, nn.LayerNorm)
        and "norm" in type(module).__name__.lower()
        and len(inspect.signature(module.forward).parameters) == 1  # not of a gate, too
    ):
        return "norm", CenteredNormRole(adds_residual=False)
    return None
