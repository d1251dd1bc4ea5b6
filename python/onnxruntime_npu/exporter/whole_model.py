"""Last proof before tracing: prefill and decode through the cache equal the original's logits.

The parts are proven one by one; this catches errors between them, such as a wrong layer
order, a scaled residual or mixed-up cache rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .attention_interface import Calls, recorded_calls
from .caches import CacheChoice, Interface
from .caches.scaled_rows import SCALE_BYTES
from .proof import Findings, NotProven, attempt, compare
from .roles.latent_prolog import LatentProlog

_LENGTHS = (7, 9)  # rows of different lengths, so that one is padded
# Tokens of each row that are decoded after the prompt, two at a step: for one token alone models
# with states take another path than that of the file.
_DECODED, _AT_ONCE = 4, 2
_CAPACITY = 16
_WITH_SINKS = "npu_fusion_attention"  # the one that a mask tells what is visible


class WholeModelProbe:
    """Random token rows and the original's logits for them."""

    def __init__(self, model: Any) -> None:
        generator = torch.Generator().manual_seed(7)
        vocabulary = model.get_input_embeddings().weight.shape[0]
        self._rows = [torch.randint(0, vocabulary, (n,), generator=generator) for n in _LENGTHS]
        with torch.no_grad():
            self._expected = [
                model(input_ids=row[None], use_cache=False).logits[0] for row in self._rows
            ]

    def check_causal(self, model: Any) -> None:
        """Raise NotProven if the original's logits of tokens change with later ones."""
        tokens, logits = self._rows[0][:-_DECODED], self._expected[0][:-_DECODED]
        fewer = attempt(lambda: model(input_ids=tokens[None], use_cache=False).logits[0])
        try:
            compare(logits, fewer, "logits")
        except NotProven as error:
            raise NotProven("the logits of its tokens change with later tokens") from error

    def proven(self, decoder: Any, wanted: CacheChoice, findings: Findings) -> Interface:
        """Return a decoder with a cache, after proving it with one of floats.

        What int8 changes is measured and reported. Raises NotProven.
        """
        if wanted.int8 and not decoder.cache_sizes:
            raise NotProven("its layers cache no keys and values, which alone are rounded")
        if wanted.int8 and wanted.cache == "paged":
            sizes = {size for each in decoder.cache_sizes for size in each.rounded.values()}
            if any(size % SCALE_BYTES for size in sizes):
                raise NotProven(
                    "rows of int8 blocks end with their scales, so that head sizes have to be "
                    f"multiples of {SCALE_BYTES}, not {', '.join(map(str, sorted(sizes)))}"
                )
        all_logits = wanted._replace(logits="all")
        with recorded_calls() as calls:
            self.check(all_logits._replace(int8=False).interface(decoder))
        interface = wanted.interface(decoder).eval()
        if wanted.int8:
            with recorded_calls() as calls:
                difference = self._difference(all_logits.interface(decoder))
            rounded = sum(len(sizes.rounded) for sizes in decoder.cache_sizes)
            findings.replaced("npu_dynamic_quant", difference, nodes=rounded)
        _count_sinks(calls, findings)
        written = sum(len(interface.cached_kinds(sizes)) for sizes in decoder.cache_sizes)
        if wanted.cache == "paged" and not wanted.int8:
            # The prolog of latent attention writes to these blocks by itself.
            written -= 2 * sum(isinstance(each, LatentProlog) for each in decoder.modules())
        if wanted.cache != "dynamic" and written:
            findings.replaced("npu_scatter_nd_update", 0.0, nodes=written)
        return interface

    def check(self, interface: Interface) -> None:
        """Compare with an interface that gives all logits; raises NotProven."""
        padded, whole = self._compared(interface)
        compare(*whole, "logits of the whole model")
        compare(*padded, "logits of the whole model in a row with padding")

    def _difference(self, interface: Interface) -> float:
        """Return the max difference of an interface, relative to the max logit."""
        pairs = self._compared(interface)
        difference = max((expected - actual).abs().max().item() for expected, actual in pairs)
        return difference / max(expected.abs().max().item() for expected, _ in pairs)

    def _compared(self, interface: Interface) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return the logits of each row, the original's and the interface's."""
        run = {
            "dynamic": self._dynamic,
            "static": self._static,
            "paged": self._paged,
        }[interface.cache]
        return list(zip(self._expected, attempt(run, interface), strict=True))

    def _dynamic(self, interface: Interface) -> list[torch.Tensor]:
        longest = max(_LENGTHS)
        padding = [longest - n for n in _LENGTHS]
        ids = torch.stack(
            [nn.functional.pad(r, (p, 0)) for r, p in zip(self._rows, padding, strict=True)]
        )
        mask = torch.stack([torch.arange(longest) >= p for p in padding]).long()
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        past = interface.empty_caches(len(_LENGTHS), 0)
        logits = []
        start = 0
        for end in range(longest - _DECODED, longest + 1, _AT_ONCE):
            step = slice(start, end)
            result, *past = interface(ids[:, step], mask[:, :end], positions[:, step], past)
            logits.append(result)
            start = end
        joined = torch.cat(logits, dim=1)
        return [joined[row, p:] for row, p in enumerate(padding)]

    def _static(self, interface: Interface) -> list[torch.Tensor]:
        prompts = torch.tensor([n - _DECODED for n in _LENGTHS])
        longest = int(prompts.max())
        ids = torch.stack(
            [
                nn.functional.pad(r[:n], (0, longest - n))
                for r, n in zip(self._rows, prompts, strict=True)
            ]
        )
        past = _undefined(interface, interface.empty_caches(len(_LENGTHS), _CAPACITY))
        result, *past = interface(ids, prompts, prompts, past)
        logits = [[result[row, :n]] for row, n in enumerate(prompts)]
        for i in range(0, _DECODED, _AT_ONCE):
            lengths = prompts + i
            new = [r[n : n + _AT_ONCE] for r, n in zip(self._rows, lengths, strict=True)]
            counts = torch.full_like(lengths, _AT_ONCE)
            result, *past = interface(torch.stack(new), counts, lengths + counts, past)
            for row, collected in enumerate(logits):
                collected.append(result[row])
        return [torch.cat(collected) for collected in logits]

    def _paged(self, interface: Any) -> list[torch.Tensor]:
        """Chunks of both rows, of one while the other waits, and single tokens, side by side."""
        blocks = [1, 0]  # not in order
        table = torch.tensor([[block, 0] for block in blocks], dtype=torch.int32)
        past = _undefined(interface, interface.empty_caches(len(_LENGTHS), _CAPACITY))
        logits: list[list[torch.Tensor]] = [[] for _ in self._rows]
        done = [0] * len(self._rows)
        for chunks in ((5, 3), (0, 4), (1, 1), (1, 1)):
            rows = [
                row[n : n + size] for row, n, size in zip(self._rows, done, chunks, strict=True)
            ]
            result, *past = interface(*interface.arguments(rows, done, table, past))
            for collected, part in zip(logits, result.split(list(chunks)), strict=True):
                collected.append(part)
            done = [n + size for n, size in zip(done, chunks, strict=True)]
        assert tuple(done) == _LENGTHS
        return [torch.cat(collected) for collected in logits]


def _count_sinks(calls: Calls, findings: Findings) -> None:
    """Count attention with sinks as what it has become over the cache that is proven."""
    nodes = findings.expected_nodes.get(_WITH_SINKS, 0)
    if nodes and calls.fused and _WITH_SINKS not in calls.fused:
        findings.without(_WITH_SINKS, nodes)
        findings.replaced("npu_fused_infer_attention_score", 0.0, nodes=nodes)


def _undefined(interface: Interface, caches: list[torch.Tensor]) -> list[torch.Tensor]:
    """Fill preallocated caches with what memory may hold: NaN, and integers with scales of NaN.

    States, which come after them, are zeros before the first token.
    """
    for x in caches[: len(caches) - len(interface.decoder.states)]:
        x.fill_(torch.nan if x.is_floating_point() else 77)
    return caches
