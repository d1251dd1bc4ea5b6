"""The memory of xLSTM's layers: a matrix of values by keys, to which gates of tokens apply.

Its code cuts a row into chunks, of one size while as many tokens are left and singly after that,
and keeps the memory in a cache of its own class, which takes in padding as if it were tokens. Here
the memory is three states of a layer of transformers' cache, of a recurrence over tokens.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .model_cache import is_matrix_memory
from .over_tokens import over_tokens
from .proof import Findings, NotProven, attempt, compare
from .replaced_functions import ReplacedFunctions

if TYPE_CHECKING:
    from .recurrences import Recurrences

_PARTS = ("embeddings", "blocks", "out_norm")  # of the model around the layers
_OUTPUT = "xLSTMOutput"  # what it returns
_Memory = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def replace_matrix_memories(
    model: Any, recurrences: Recurrences, functions: ReplacedFunctions, findings: Findings
) -> None:
    """Add the forward passes of the memories, each proven, and of the model to ``functions``."""
    found = [(name, module) for name, module in model.named_modules() if is_matrix_memory(module)]
    for name, module in found:
        memory = MatrixMemory(module.config.eps, recurrences)
        attempt(_prove, module, memory)
        functions.add(module, "forward", memory.forward)
        findings.keep(name, "recurrence", "not fused: Scan over the tokens")
    if not found:
        return
    recurrences.replaced = True
    around = next((m for m in model.modules() if all(hasattr(m, part) for part in _PARTS)), None)
    if around is None:
        raise NotProven(f"expected a model of {', '.join(_PARTS)} around its layers")
    functions.add(around, "forward", _Model(around).forward)
    model.config.max_inference_chunksize = sys.maxsize  # in which it also cuts logits


class MatrixMemory:
    """What stands for the forward pass of a memory."""

    def __init__(self, epsilon: float, recurrences: Recurrences) -> None:
        self._epsilon, self._recurrences = epsilon, recurrences

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        igate: torch.Tensor,
        fgate: torch.Tensor,
        c_initial: torch.Tensor | None = None,
        n_initial: torch.Tensor | None = None,
        m_initial: torch.Tensor | None = None,
        **_: Any,
    ) -> tuple[torch.Tensor, _Memory]:
        """Read by query [B, N, S, D] what key [B, N, S, D] and value [B, N, S, E] have written.

        igate and fgate are [B, N, S]. The memory is the weighted sum of keys times values
        [B, N, D, E], that of keys [B, N, D], and the exponent [B, N, 1] by which both are divided:
        zeros before the first token. Returns [B, N, S, E] and the memory.
        """
        gates = igate.float()[..., None], nn.functional.logsigmoid(fgate.float())[..., None]
        given = query.float() * query.shape[-1] ** -0.5, key.float(), value.float(), *gates
        by_row = self._recurrences.counted(*(x.transpose(1, 2) for x in given))
        if c_initial is None or n_initial is None or m_initial is None:
            sizes = by_row[1].shape[0], *key.shape[1::2], value.shape[3]
            c_initial = torch.zeros(sizes)
            n_initial, m_initial = torch.zeros(sizes[:3]), torch.zeros((*sizes[:2], 1))
        epsilon = self._epsilon

        def step(
            sums: torch.Tensor,
            weights: torch.Tensor,
            exponent: torch.Tensor,
            query: torch.Tensor,
            key: torch.Tensor,
            value: torch.Tensor,
            opened: torch.Tensor,
            kept: torch.Tensor,
            counts: torch.Tensor,
        ) -> tuple[torch.Tensor, ...]:
            largest = torch.maximum(kept + exponent, opened)
            before, now = (kept + exponent - largest).exp(), (opened - largest).exp()
            written = before[..., None] * sums + (now * key)[..., None] * value[:, :, None]
            weighed = before * weights + now * key
            read = (query[:, :, None] @ written).squeeze(2)
            scale = (query * weighed).sum(-1, keepdim=True).abs()
            output = read / (torch.maximum(scale, (-largest).exp()) + epsilon)
            token = counts[:, None]
            return (
                torch.where(token[..., None], written, sums),
                torch.where(token, weighed, weights),
                torch.where(token, largest, exponent),
                output,
            )

        states = [x.float() for x in (c_initial, n_initial, m_initial)]
        *states, output = over_tokens(step, states, [x.transpose(0, 1) for x in by_row])
        output = self._recurrences.unpadded(output.transpose(0, 1)).transpose(1, 2)
        return output.to(query.dtype), (states[0], states[1], states[2])


class _Model:
    """What stands for the forward pass of the model, which then has transformers' cache."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._output = getattr(sys.modules[type(model).__module__], _OUTPUT)

    def forward(self, input_ids: torch.Tensor, cache_params: Any = None, **_: Any) -> Any:
        """Compute the hidden states of tokens [B, S]."""
        hidden = self._model.embeddings(input_ids)
        for index, block in enumerate(self._model.blocks):
            layer: Any = None if cache_params is None else cache_params.layers[index]
            hidden, memory = block(hidden, _read(layer))
            if layer is not None:
                for place, state in enumerate(memory):
                    layer.update_recurrent_state(state, place)
        return self._output(self._model.out_norm(hidden), cache_params)


def _read(layer: Any) -> _Memory | None:
    """Return the memory that a layer of the cache has, None before the first token."""
    if layer is None or layer.recurrent_states[0] is None:
        return None
    first, second, third = (layer.recurrent_states[place] for place in range(3))
    return first, second, third


def _prove(module: Any, memory: MatrixMemory) -> float:
    """Compare what is read and kept of more than a chunk of tokens, after a random memory."""
    config = module.config
    heads, tokens = config.num_heads, config.chunk_size + 3
    key, value = config.qk_head_dim, config.v_head_dim
    shapes = [(tokens, key), (tokens, key), (tokens, value), (tokens,), (tokens,)]
    given = [torch.randn(1, heads, *shape) for shape in shapes]
    states = [torch.randn(1, heads, *shape) for shape in ((key, value), (key,), (1,))]
    names = ("query", "key", "value", "igate", "fgate", "c_initial", "n_initial", "m_initial")
    options = dict(zip(names, [*given, *states], strict=True))
    expected, expected_states = module(**options)
    actual, actual_states = memory.forward(**options)
    pairs = [(expected, actual), *zip(expected_states, actual_states, strict=True)]
    return max(compare(*pair, "what a memory of a matrix reads and keeps") for pair in pairs)
