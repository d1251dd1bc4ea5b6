"""Recurrences over tokens that a model's module computes by a function of its own.

Transformers names these functions alike in every model. They loop over tokens, or over chunks of
them, which no graph for any number of tokens can have: each is replaced while the model runs, by a
fused operator or by ONNX's Scan, if that is proven on the arguments of the model's own calls.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn

from .caches.sequences import Sequences
from .gated_recurrence import replace_gated_recurrence
from .lightning_attention import replace_lightning_attention
from .matrix_memory import replace_matrix_memories
from .over_tokens import over_tokens
from .proof import Findings, NotProven, attempt, compare
from .replaced_functions import ReplacedFunctions, observed_calls
from .time_mixing import replace_time_mixing

_Tensors = tuple[torch.Tensor, ...]


class Recurrences:
    """The replacements, which know the cache of the run."""

    def __init__(self) -> None:
        self._cache: Any = None  # a ReadCache; None in a run without one
        self.sequences: Sequences | None = None  # of the tokens of the run, if not all are
        self._mask: torch.Tensor | None = None
        self.replaced = False  # whether any is

    @contextmanager
    def reading(
        self,
        cache: Any,
        sequences: Sequences | None = None,
        mask: torch.Tensor | None = None,
    ) -> Iterator[None]:
        """Read states of a ReadCache inside.

        ``sequences``: of the tokens, if not all are; ``mask`` [B, T]: 0 for padding of a growing
        cache, new tokens last.
        """
        self._cache, self.sequences, self._mask = cache, sequences, mask
        try:
            yield
        finally:
            self._cache = self.sequences = self._mask = None

    def selective_scan(
        self,
        hidden_states: torch.Tensor,
        dt: torch.Tensor,
        A: torch.Tensor,
        B: torch.Tensor,
        C: torch.Tensor,
        D: torch.Tensor | None = None,
        z: torch.Tensor | None = None,
        delta_bias: torch.Tensor | None = None,
        delta_softplus: bool = False,
        return_last_state: bool = False,
        **_: Any,
    ) -> torch.Tensor | _Tensors:
        """Run Mamba's recurrence of hidden_states and dt [B, C, S] by A [C, N], B and C [B, N, S].

        Unlike the original, begin with the state of the layer's cache.
        """
        hidden, time, B, C = (x.float().transpose(1, 2) for x in (hidden_states, dt, B, C))
        skipped = hidden
        if delta_bias is not None:
            time = time + delta_bias
        if delta_softplus:
            time = nn.functional.softplus(time)
        hidden, time, B, C = self._rows(hidden, time, B, C)

        def step(
            state: torch.Tensor,
            x: torch.Tensor,
            t: torch.Tensor,
            b: torch.Tensor,
            c: torch.Tensor,
            decay: torch.Tensor,
        ) -> tuple[torch.Tensor, torch.Tensor]:
            state = (t[..., None] * decay).exp() * state + (t * x)[..., None] * b[:, None]
            return state, (state * c[:, None]).sum(-1)

        initial = None if self._cache is None else self._cache.recurrent
        if initial is not None and initial.dim() > hidden.dim():
            initial = self._cache.next_head()
        if initial is None:
            initial = hidden.new_zeros((hidden.shape[0], hidden.shape[2], A.shape[-1]))
        by_token = [x.transpose(0, 1) for x in (hidden, time, B, C)]
        state, output = over_tokens(step, [initial.float()], by_token, A.float())
        output = self.unpadded(output.transpose(0, 1))
        if D is not None:
            output = output + skipped * D
        output = output.transpose(1, 2)
        if z is not None:
            output = output * nn.functional.silu(z)
        return (output, state) if return_last_state else output

    def chunk_scan(
        self,
        hidden_states: torch.Tensor,
        dt: torch.Tensor,
        A: torch.Tensor,
        B: torch.Tensor,
        C: torch.Tensor,
        D: torch.Tensor | None = None,
        dt_bias: torch.Tensor | None = None,
        initial_states: torch.Tensor | None = None,
        dt_softplus: bool = False,
        dt_limit: tuple[float, float] = (0.0, float("inf")),
        return_final_states: bool = False,
        **_: Any,
    ) -> torch.Tensor | _Tensors:
        """Run Mamba-2's recurrence of hidden_states [B, S, H, P] and dt [B, S, H].

        A [H] is the decay of a head, B and C are [B, S, G, N]; ``chunk_size`` is not needed.
        """
        hidden = hidden_states.float()
        time = dt if dt_bias is None else dt + dt_bias.to(dt.dtype)
        if dt_softplus:
            time = nn.functional.softplus(time)
        time = time.clamp(*dt_limit).float()
        skipped = hidden
        hidden, time, B, C = self._rows(hidden, time, B.float(), C.float())
        heads = hidden.shape[2] // B.shape[2]  # of a group

        def step(
            state: torch.Tensor, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor
        ) -> tuple[torch.Tensor, torch.Tensor]:
            b, c = (each.repeat_interleave(heads, 1)[:, :, None] for each in (b, c))
            state = a[..., None, None] * state + x[..., None] * b
            return state, (state * c).sum(-1)

        if initial_states is None:
            initial_states = hidden.new_zeros((hidden.shape[0], *hidden.shape[2:], B.shape[-1]))
        given = (hidden * time[..., None], (A.float() * time).exp(), B, C)
        by_token = [x.transpose(0, 1) for x in given]
        state, output = over_tokens(step, [initial_states.float()], by_token)
        output = self.unpadded(output.transpose(0, 1))
        if D is not None:
            output = output + skipped * D[:, None]
        return (output, state) if return_final_states else output

    def delta_rule(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
        initial_state: torch.Tensor | None = None,
        output_final_state: bool = False,
        use_qk_l2norm_in_kernel: bool = False,
        **_: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Run the gated delta rule of query and key [B, S, Nk, Dk], value [B, S, Nv, Dv].

        beta is [B, S, Nv], and so is g, or [B, S, Nv, Dk]; the state is [B, Nv, Dv, Dk], the
        original's transposed.
        """
        batch, tokens = query.shape[:2]
        query, key = query.float(), key.float()
        if use_qk_l2norm_in_kernel:
            query, key = _normalised(query), _normalised(key)
        if self.sequences is None:
            lengths = torch.full((batch,), tokens, dtype=torch.int32)
            numbers = torch.arange(batch, dtype=torch.int32)[:, None].expand(batch, tokens)
        else:
            lengths, numbers = self.sequences.spans.int(), self.sequences.numbers.int()
            g, beta = self.sequences.cleared(g), self.sequences.cleared(beta)
        if initial_state is None:
            sizes = (batch, value.shape[2], value.shape[3], key.shape[3])
            initial_state = torch.zeros(sizes, device=value.device)
        rows = [x.float().flatten(0, 1) for x in (query, key, value)]
        options: dict[str, Any] = {
            "beta": beta.float().flatten(0, 1),
            "actual_seq_lengths": lengths,
            "scale": query.shape[-1] ** -0.5,
        }
        decay = g.float().flatten(0, 1)
        if g.dim() == 3:
            output, state = torch.ops.npu.npu_chunk_gated_delta_rule(
                *rows, initial_state=initial_state, g=decay, **options
            )
        else:  # of each column of the state
            output, state = torch.ops.npu.npu_recurrent_gated_delta_rule_functional(
                *rows, initial_state, ssm_state_indices=numbers.flatten(), gk=decay, **options
            )
        output = output.unflatten(0, (batch, tokens)).to(value.dtype)
        return output, state if output_final_state else None

    def gated_sums(
        self, x: torch.Tensor, gate: torch.Tensor, initial: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sums of x [B, S, C], to whose past gate [B, S, C] applies, and the last."""
        if self.sequences is not None:
            x, gate = self.sequences.rows(x, gate)
            token = self.sequences.is_token()[..., None]
            x, gate = torch.where(token, x, 0.0), torch.where(token, gate, 1.0)
        if initial is None:
            initial = torch.zeros_like(x[:, 0])

        def step(
            state: torch.Tensor, new: torch.Tensor, decay: torch.Tensor
        ) -> tuple[torch.Tensor, torch.Tensor]:
            state = decay * state + new
            return state, state.clone()  # scan() takes no result twice

        state, output = over_tokens(step, [initial], [x.transpose(0, 1), gate.transpose(0, 1)])
        return self.unpadded(output.transpose(0, 1)), state

    def weighted_means(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        decay: torch.Tensor,
        bonus: torch.Tensor,
        initial: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return RWKV's means of value [B, S, C], weighted by the exponentials of key [B, S, C].

        Weights decay [C] from token to token, and that of a token itself has a bonus [C]. The state
        [B, 3, C] is the weighted sum, the sum of weights, and the exponent by which both are
        divided: zeros before the first token, and a sum of weights of at least 1 after it.
        """
        key, value, counts = self.counted(key.float(), value.float())
        if initial is None:
            initial = torch.zeros_like(key[:, :1]).repeat(1, 3, 1)

        def step(
            state: torch.Tensor,
            key: torch.Tensor,
            value: torch.Tensor,
            counts: torch.Tensor,
            decay: torch.Tensor,
            bonus: torch.Tensor,
        ) -> tuple[torch.Tensor, torch.Tensor]:
            total, weight, exponent = state.unbind(1)
            exponent = torch.where(weight > 0, exponent, -1e38)  # of no token: below any key
            largest = torch.maximum(exponent, key + bonus)
            before, now = (exponent - largest).exp(), (key + bonus - largest).exp()
            output = (before * total + now * value) / (before * weight + now)
            decayed = exponent + decay
            largest = torch.maximum(decayed, key)
            before, now = (decayed - largest).exp(), (key - largest).exp()
            after = [before * total + now * value, before * weight + now, largest]
            return torch.where(counts[:, None], torch.stack(after, 1), state), output

        by_token = [x.transpose(0, 1) for x in (key, value, counts)]
        state, output = over_tokens(step, [initial], by_token, decay.float(), bonus.float())
        return self.unpadded(output.transpose(0, 1)), state

    def counted(self, *tensors: torch.Tensor) -> _Tensors:
        """Return tensors [B, S, ..] of all sequences, and which places are tokens, [B, S, 1]."""
        if self.sequences is not None:
            return *self.sequences.rows(*tensors), self.sequences.is_token()[..., None]
        batch, new = tensors[0].shape[:2]
        if self._mask is not None:
            return *tensors, self._is_token(self._mask, new)
        return *tensors, torch.ones((batch, new, 1), dtype=torch.bool)

    def without_padding(self, x: torch.Tensor) -> torch.Tensor:
        """Return x [B, S, C] with zeros for the padding of a growing cache.

        Where sequences are known, they say what is padding.
        """
        if self._mask is None:
            return x
        return torch.where(self._is_token(self._mask, x.shape[1]), x, 0.0)

    @staticmethod
    def _is_token(mask: torch.Tensor, new: int) -> torch.Tensor:
        """Return whether each of the last ``new`` columns of mask [B, T] is a token, [B, S, 1]."""
        return mask[:, mask.shape[1] - new :, None] != 0

    def _rows(
        self, hidden: torch.Tensor, time: torch.Tensor, *others: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Return tensors [B, S, ..] of all sequences; padding takes no time and changes nothing."""
        if self.sequences is None:
            return (hidden, time, *others)
        hidden, time, *rest = self.sequences.rows(hidden, time, *others)
        return (hidden, torch.where(self.sequences.is_token()[..., None], time, 0.0), *rest)

    def unpadded(self, rows: torch.Tensor) -> torch.Tensor:
        """Return rows [B, S, ..] as the layer has its tokens."""
        return rows if self.sequences is None else self.sequences.unpadded(rows)


class _Form(NamedTuple):
    """A function of a model's module, and what replaces it and those that compute the same."""

    name: str
    replacement: str  # a method of Recurrences
    initial: str | None  # the argument that takes the state
    returns_state: str  # the argument that asks for it
    twins: tuple[str, ...] = ()
    operator: str | None = None  # whose state is the original's transposed; None for Scan


def _delta_rule(name: str, of_single_tokens: str, operator: str) -> _Form:
    state = ("initial_state", "output_final_state")
    return _Form(name, "delta_rule", *state, twins=(of_single_tokens,), operator=operator)


_FORMS = (
    _Form("mamba_selective_scan", "selective_scan", None, "return_last_state"),
    _Form("mamba2_chunk_scan", "chunk_scan", "initial_states", "return_final_states"),
    _delta_rule(
        "torch_chunk_gated_delta_rule",
        "torch_recurrent_gated_delta_rule",
        "npu_chunk_gated_delta_rule",
    ),
    _delta_rule(
        "chunk_kimi_delta_attention",
        "recurrent_kimi_delta_attention",
        "npu_recurrent_gated_delta_rule",
    ),
)


def replace_recurrences(
    model: Any, run: Callable[[Any], Any], functions: ReplacedFunctions, findings: Findings
) -> Recurrences:
    """Add the proven replacements to ``functions``; ``run`` runs the model once."""
    recurrences = Recurrences()
    replace_lightning_attention(model, recurrences, functions, findings)
    replace_gated_recurrence(model, recurrences, functions, findings)
    replace_time_mixing(model, recurrences, functions, findings)
    replace_matrix_memories(model, recurrences, functions, findings)
    module = sys.modules[type(model).__module__]
    for form in _FORMS:
        if not hasattr(module, form.name):
            continue
        replacement = getattr(recurrences, form.replacement)
        try:
            calls = attempt(observed_calls, lambda: run(model), module, form.name)
            if not calls:
                continue
            original = getattr(module, form.name)
            difference = max(attempt(_prove, original, replacement, form, *call) for call in calls)
        except NotProven as error:
            findings.keep("", "recurrence", str(error))
            continue
        recurrences.replaced = True
        for name in (form.name, *form.twins):
            functions.add(module, name, replacement)
        if form.operator:
            findings.replaced(form.operator, difference, nodes=len(calls))
        else:
            findings.keep("", "recurrence", "not fused: Scan over the tokens")
    return recurrences


def _prove(
    original: Callable[..., Any],
    replacement: Callable[..., Any],
    form: _Form,
    args: tuple[Any, ...],
    options: dict[str, Any],
) -> float:
    """Compare outputs and states on the arguments of a call, after a random state if it takes one.

    The module that the state goes to is not read: a state of another layout would be noticed there.
    """
    options = {**options, form.returns_state: True}
    ours = dict(options)
    expected, expected_state = original(*args, **options)
    if form.initial is not None:
        options[form.initial] = torch.randn_like(expected_state)
        ours[form.initial] = _layout(options[form.initial], form)
        expected, expected_state = original(*args, **options)
    actual, actual_state = replacement(*args, **ours)
    return max(
        compare(expected, actual, "output of the recurrence"),
        compare(_layout(expected_state, form), actual_state, "state of the recurrence"),
    )


def _layout(state: torch.Tensor, form: _Form) -> torch.Tensor:
    return state.transpose(-1, -2).contiguous() if form.operator else state


def _normalised(x: torch.Tensor) -> torch.Tensor:
    """Return x of length 1, where the root's argument is raised as in the original."""
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)
