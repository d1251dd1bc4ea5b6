"""The role of the whole decoder: embedding, layers, final norm, logits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from ..caches.step import CacheSizes, LayerCache, State, Step
from ..integers.stored_linear import float_linear
from ..proof import Findings, NotProven, compare
from ..weights.parameters import replace_parameters
from .layer import DecoderLayer
from .norm import KeptNorm, NormRole, RmsNorm
from .probes import CutOut
from .role import Role, part
from .rotary import RotaryRole, RotaryTables


class Decoder(nn.Module):
    """Token ids to logits over a cache, the whole of the exported graph."""

    def __init__(
        self,
        embedding: torch.Tensor,
        head: torch.Tensor | None,
        rotary: RotaryTables | None,
        layers: list[DecoderLayer],
        norm: RmsNorm | KeptNorm,
    ) -> None:
        super().__init__()
        self.embedding = nn.Parameter(embedding, requires_grad=False)  # [V, H]
        # None: tied. One parameter is then used for both, and the file holds one copy.
        self.head = None if head is None else nn.Parameter(head, requires_grad=False)
        self.scores: nn.Module | None = None  # a head in the place of the weight
        self.rotary = rotary
        self.layers = nn.ModuleList(layers)
        self.norm = norm

    @property
    def layer_count(self) -> int:
        """Number of layers."""
        return len(self.layers)

    @property
    def cached_layers(self) -> range:
        """The layers that cache keys and values: all."""
        return range(len(self.layers))

    @property
    def states(self) -> list[State]:
        """What layers keep besides: nothing."""
        return []

    @property
    def cache_sizes(self) -> list[CacheSizes]:
        """What each layer caches of a token."""
        attentions: list[Any] = [layer.attention for layer in self.layers]
        return [CacheSizes(a.kv_heads, a.head_size, a.head_size) for a in attentions]

    @property
    def head_weight(self) -> torch.Tensor | None:
        """The weight of a head that is a layer: none, it is a parameter here."""
        return None

    @property
    def heads(self) -> int:
        """Number of query heads."""
        first: Any = self.layers[0]
        return first.attention.heads

    @property
    def vocabulary(self) -> int:
        """V, the number of tokens."""
        return self.embedding.shape[0]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of activations and caches."""
        return self.embedding.dtype

    def convert(self, dtype: torch.dtype) -> None:
        """Convert the weights; rotary angles always need float32."""
        rotary, self.rotary = self.rotary, None
        replace_parameters(
            self, lambda _name, p: p.detach().to(dtype if p.is_floating_point() else p.dtype)
        )
        for module in self.modules():
            for name, buffer in list(module.named_buffers(recurse=False)):
                if buffer.is_floating_point():
                    setattr(module, name, buffer.to(dtype))
        self.rotary = rotary

    def embed(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Look up input_ids [B, S]; return [B, S, H]."""
        return nn.functional.embedding(input_ids, self.embedding)

    def tables(self, positions: torch.Tensor, lengths: torch.Tensor) -> tuple[Any, Any]:
        """Return cos and sin for positions [B, 1, S, 1]; None without rotary embedding.

        lengths: [B, 1, 1 or S, 1], the number of tokens, past and new, of each row or token.
        """
        if self.rotary is None:
            return None, None
        return self.rotary(positions, lengths, self.embedding.dtype)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Score hidden [rows, H] against the vocabulary: [rows, V], float32 for sampling."""
        if self.scores is not None:
            return self.scores(hidden).float()
        return nn.functional.linear(hidden, self._head()).float()

    def replace_head(self, replace: Callable[[nn.Linear], nn.Module]) -> None:
        """Score by what ``replace`` returns for the head, in place; the embedding stays."""
        layer = float_linear(self._head().detach(), bias=None)
        self.scores, self.head = replace(layer), None

    def _head(self) -> torch.Tensor:
        return self.embedding if self.head is None else self.head

    def decode(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        lengths: torch.Tensor,
        step: Step,
        past: list[LayerCache],
        scored: Callable[[torch.Tensor], torch.Tensor],
    ) -> tuple[torch.Tensor, list[LayerCache]]:
        """Decode input_ids [B, S] at positions [B, 1, S, 1]; lengths as in ``tables``.

        Returns logits [rows, V], of the tokens [rows, H] that ``scored`` takes of the last hidden
        state [B, S, H], and the cache of every layer.
        """
        tables = self.tables(positions, lengths)
        step.cos, step.sin = (None if each is None else step.laid_out(each) for each in tables)
        hidden, present = self(input_ids, step, past)
        return self.logits(scored(hidden)), present

    def forward(
        self,
        input_ids: torch.Tensor,
        step: Step,
        past: list[LayerCache],
    ) -> tuple[torch.Tensor, list[LayerCache]]:
        """Return the last norm's output [B, S, H] and the cache of every layer."""
        x = self.embed(input_ids)
        residual: torch.Tensor | None = None
        present = []
        for layer, layer_past in zip(self.layers, past, strict=True):
            x, residual, layer_present = layer(x, residual, step, layer_past)
            present.append(layer_present)
        assert residual is not None  # a decoder has layers
        return self.norm.add(x, residual)[0], present


class DecoderParts(NamedTuple):
    """The parts of a model; ``head`` is the embedding if both are tied."""

    embedding: torch.Tensor
    head: torch.Tensor
    rotary: nn.Module | None
    layers: nn.ModuleList
    norm: nn.Module


def parts_of(model: nn.Module) -> DecoderParts:
    """Return the parts of a model; raises NotProven that names what is missing."""
    base = part(model, "the model", "model")
    embedding = part(base, "the model", "embed_tokens").weight
    head = part(model, "the model", "lm_head").weight
    parts = DecoderParts(
        embedding=embedding,
        head=head,
        rotary=getattr(base, "rotary_emb", None),
        layers=part(base, "the model", "layers"),
        norm=part(base, "the model", "norm"),
    )
    if len(parts.layers) == 0:
        raise NotProven("expected at least one decoder layer")
    return parts


class DecoderRole(Role[DecoderParts, Decoder]):
    """A model without its layers: the decoder is built empty, and layers are added one by one."""

    def __init__(self, cut_out: CutOut, findings: Findings) -> None:
        self._cut_out = cut_out
        self._findings = findings

    def match(self, original: nn.Module) -> DecoderParts:
        """Find the parts."""
        return parts_of(original)

    def build(self, parts: DecoderParts) -> Iterator[Decoder]:
        """Yield a decoder without layers; a tied head is stored once."""
        rotary = None
        if parts.rotary is not None:
            rotary = RotaryRole(self._cut_out).replace(parts.rotary, self._findings)
        norm = NormRole().replace(parts.norm, self._findings, "norm")
        head = None if parts.head is parts.embedding else parts.head.detach()
        yield Decoder(parts.embedding.detach(), head, rotary, [], norm)

    def prove(self, original: nn.Module, built: Decoder) -> float:
        """Compare the inputs of the first layer, and the logits of a given last hidden state."""
        run = self._cut_out
        logits = built.logits(built.norm(run.hidden).flatten(0, 1))
        return max(
            compare(run.given[0]["hidden_states"], built.embed(run.input_ids), "token embedding"),
            compare(run.logits.flatten(0, 1), logits, "final norm and logits"),
        )
