"""A causal convolution of packed sequences that go on from states, which it updates.

Source: torch_npu.npu_fused_causal_conv1d.
"""

import itertools

from onnxruntime_npu.opdef import FLOATS, INDICES, check, is_traced, npu_op, torch, wide

from . import _causal_calls
from ._causal_body import build

_NAME = "npu_fused_causal_conv1d"
_BLOCKS = ("block_idx_first_scheduled_token", "block_idx_last_scheduled_token", "initial_state_idx")
_OF_SEQUENCES = ("initial_state_mode", "num_accepted_tokens", "num_computed_tokens", *_BLOCKS)

op = npu_op(
    f"{_NAME}(Tensor x, Tensor weight, Tensor(a!) conv_states, *, Tensor? query_start_loc=None,"
    " Tensor? cache_indices=None, Tensor? initial_state_mode=None, Tensor? bias=None,"
    ' Tensor? num_accepted_tokens=None, str? activation="None", int? pad_slot_id=-1,'
    " int? run_mode=0, int? residual_connection=0, int? max_query_len=-1,"
    " Tensor? num_computed_tokens=None, Tensor? block_idx_first_scheduled_token=None,"
    " Tensor? block_idx_last_scheduled_token=None, Tensor? initial_state_idx=None,"
    ' int? block_size=128, str? conv_mode="default") -> Tensor',
    onnx="NPUFusedCausalConv1d",
    outputs=["y", "conv_states_out"],
    dtypes={
        **{name: FLOATS for name in ("x", "weight", "conv_states", "bias", "y")},
        **{name: INDICES for name in ("query_start_loc", "cache_indices", *_OF_SEQUENCES)},
    },
)


@op.function
def body(b, call, *inputs):
    return build(b, call, dict(zip((x.name for x in op.inputs), inputs, strict=True)))


_causal_calls.add(op)


def _expect(condition, message):
    check(condition, f"[{_NAME}] expected {message}")


def _shape(tensor):
    return None if tensor is None else list(tensor.shape)


def _check_tensors(x, weight, states, bias):
    _expect(x.dim() in (2, 3), f"x of shape [T, C] or [B, L, C], got {_shape(x)}")
    channels = x.shape[-1]
    _expect(
        weight.dim() == 2 and weight.shape[0] >= 1 and weight.shape[1] == channels,
        f"weight of shape [K, {channels}] with K >= 1, got {_shape(weight)}",
    )
    history = weight.shape[0] - 1
    _expect(
        states.dim() == 3 and states.shape[1] >= history and states.shape[2] == channels,
        f"conv_states of shape [rows, {history} or more, {channels}], got {_shape(states)}",
    )
    _expect(bias is None or _shape(bias) == [channels], f"bias [{channels}], got {_shape(bias)}")
    for name, tensor in (("weight", weight), ("conv_states", states), ("bias", bias)):
        _expect(
            tensor is None or tensor.dtype == x.dtype,
            f"{name} of x's dtype {x.dtype}, got {tensor is not None and tensor.dtype}",
        )


def _check_options(activation, run_mode, residual, conv_mode):
    _expect(
        activation in ("None", "silu", "swish"),
        f"activation None, silu or swish, got {activation}",
    )
    _expect(run_mode in (0, 1), f"run_mode 0 or 1, got {run_mode}")
    _expect(residual in (0, 1), f"residual_connection 0 or 1, got {residual}")
    _expect(conv_mode in ("default", "pangu"), f"conv_mode default or pangu, got {conv_mode}")


def _check_numbers(x, states, starts, numbers, conv_mode, block_size):
    """Return how many sequences there are; ``numbers`` are the tensors with rows for them."""
    given = [name for name in _BLOCKS if numbers[name] is not None]
    _expect(starts is not None or x.dim() == 3, "query_start_loc with x of shape [T, C], got none")
    if x.dim() == 3:
        sequences = x.shape[0]
        _expect(
            starts is None or _shape(starts) == [sequences + 1],
            f"query_start_loc of shape [{sequences + 1}], got {_shape(starts)}",
        )
    else:
        _expect(
            starts.dim() == 1 and starts.shape[0] >= 1,
            f"query_start_loc of shape [B + 1], got {_shape(starts)}",
        )
        sequences = starts.shape[0] - 1
    for name in _OF_SEQUENCES:
        _expect(
            numbers[name] is None or _shape(numbers[name]) == [sequences],
            f"{name} of shape [{sequences}], got {_shape(numbers[name])}",
        )
    rows, computed = numbers["cache_indices"], numbers["num_computed_tokens"]
    _expect(
        len(given) in (0, len(_BLOCKS)),
        f"none or all of {', '.join(_BLOCKS)}, got {', '.join(given)}",
    )
    if given:
        _expect(
            rows is not None and computed is not None,
            f"cache_indices and num_computed_tokens with {_BLOCKS[0]}, got none",
        )
        _expect(
            rows.dim() == 2 and rows.shape[0] == sequences,
            f"cache_indices of shape [{sequences}, blocks], got {_shape(rows)}",
        )
        _expect(block_size >= 2, f"block_size of at least 2, got {block_size}")
    else:
        _expect(
            rows is None or _shape(rows) == [sequences],
            f"cache_indices of shape [{sequences}], got {_shape(rows)}",
        )
        _expect(
            rows is not None or states.shape[0] >= sequences,
            f"conv_states of at least {sequences} rows without cache_indices, "
            f"got {states.shape[0]}",
        )
    _expect(
        conv_mode == "default" or computed is not None,
        f"num_computed_tokens with conv_mode {conv_mode}, got none",
    )
    return sequences


def _check_starts(starts, tokens):
    least = 0
    for i, start in enumerate(starts):
        _expect(
            least <= start <= tokens,
            f"query_start_loc that does not decrease, entry {i} in [{least}, {tokens}], "
            f"got {start}",
        )
        least = start


def _check_row(row, rows):
    _expect(0 <= row < rows, f"cache_indices in [0, {rows}), got {row}")


def _blocks(i, length, numbers, width, block_size, pad):
    """Return the rows of a sequence in blocks: what it reads and writes, and the blocks it ends.

    Each of those is the row and the number of tokens after which its block ends.
    """
    rows = numbers["cache_indices"][i]
    first, last, initial = (numbers[name][i] for name in _BLOCKS)
    _expect(0 <= last < width, f"{_BLOCKS[1]} in [0, {width}), got {last}")
    _expect(0 <= first <= last, f"{_BLOCKS[0]} in [0, {last}], got {first}")
    most = min(first + 1, last)
    _expect(0 <= initial <= most, f"{_BLOCKS[2]} in [0, {most}], got {initial}")
    if rows[initial] == pad:
        return pad, pad, []
    past = numbers["num_computed_tokens"][i] % block_size
    ends = range(block_size - past, length, block_size)
    _expect(
        last - first <= len(ends),
        f"at most {len(ends)} blocks that end in sequence {i}, got {last - first}",
    )
    ended = zip(rows[first:last], ends[len(ends) - (last - first) :], strict=True)
    return rows[initial], rows[last], [(row, end) for row, end in ended if row != pad]


def _begin(i, numbers, history, size):
    """Return whether the sequence has a state, and how many entries the row has before it."""
    computed, mode = numbers["num_computed_tokens"], numbers["initial_state_mode"]
    _expect(
        mode is None or mode[i] in (0, 1),
        f"initial_state_mode 0 or 1, got {mode and mode[i]} for sequence {i}",
    )
    if (mode and mode[i] == 0) or (computed and computed[i] == 0):
        return False, 0
    accepted, most = numbers["num_accepted_tokens"], size - history
    if accepted is None:
        return True, most
    _expect(
        1 <= accepted[i] <= most + 1,
        f"num_accepted_tokens in [1, {most + 1}] for sequence {i}, got {accepted[i]}",
    )
    return True, accepted[i] - 1


def _check_owners(found):
    """Refuse rows of states that one sequence writes and another reads or writes."""
    written = sorted((row, i) for i, (_, rows) in found.items() for row in rows)
    pairs = itertools.pairwise(written)
    shared = [(row, i, j) for (row, i), (other, j) in pairs if row == other]
    owners = dict(written)
    shared += [
        (row, i, owners[row])
        for i, (row, _) in found.items()
        if row is not None and owners.get(row, i) != i
    ]
    row, i, j = shared[0] if shared else (0, 0, 0)
    _expect(
        not shared,
        f"cache_indices that give each sequence rows of its own, got {row} of sequences {i} and "
        f"{j}",
    )


@op.reference
def reference(
    x,
    weight,
    conv_states,
    query_start_loc=None,
    cache_indices=None,
    initial_state_mode=None,
    bias=None,
    num_accepted_tokens=None,
    activation="None",
    pad_slot_id=-1,
    run_mode=0,
    residual_connection=0,
    max_query_len=-1,
    num_computed_tokens=None,
    block_idx_first_scheduled_token=None,
    block_idx_last_scheduled_token=None,
    initial_state_idx=None,
    block_size=128,
    conv_mode="default",
):
    """y[t] = act(bias + sum over k of weight[k] * p[t + k]), where p is a sequence after its state.

    x: [T, C], the tokens of all sequences, or [B, L, C]; weight: [K, C]; bias: [C];
    query_start_loc: [B + 1], sequence i has tokens query_start_loc[i] to query_start_loc[i + 1] of
    x; it may be left out for [B, L, C]. conv_states: [rows, S, C] with S >= K - 1; cache_indices:
    [B], the row of each sequence, i for sequence i without it. Floats have x's dtype, y has its
    shape; computed in float32 and rounded once.

    A state is the last K - 1 entries of the row, with num_accepted_tokens [B] those that begin
    at entry num_accepted_tokens - 1: S - K + 1 of the tokens before may be drafts. It is zeros
    where num_computed_tokens [B] or initial_state_mode [B], 0 or 1, is 0. Then the row ends with
    what the state and the sequence's tokens end with; entries for which there are not enough of
    these stay. activation: None, or silu and swish, which are the same; residual_connection 1 adds
    x after it. conv_mode pangu sets the results of the first K - 1 - num_computed_tokens tokens of
    a sequence to 0, before x is added.

    With block_idx_first_scheduled_token, block_idx_last_scheduled_token and initial_state_idx, all
    [B], a sequence has a row for each block of block_size tokens, in cache_indices [B, blocks]: it
    reads that of initial_state_idx and writes that of block_idx_last_scheduled_token; those from
    block_idx_first_scheduled_token on before it get the state at the end of their blocks.

    What torch_npu leaves open: sequences without tokens, and those whose row is pad_slot_id, are
    skipped: their rows stay, their numbers are not read. Tokens of a skipped or of no sequence have
    y = 0. Rows that a sequence writes belong to it alone. torch_npu documents that bias, activation
    and initial_state_mode have no effect in its present kernels; here they have that of their
    names, as in its first release. run_mode and max_query_len change nothing.
    """
    activation = "None" if activation is None else activation
    pad = -1 if pad_slot_id is None else pad_slot_id
    block_size = 128 if block_size is None else block_size
    conv_mode = "default" if conv_mode is None else conv_mode
    numbers = {
        "cache_indices": cache_indices,
        "initial_state_mode": initial_state_mode,
        "num_accepted_tokens": num_accepted_tokens,
        "num_computed_tokens": num_computed_tokens,
        "block_idx_first_scheduled_token": block_idx_first_scheduled_token,
        "block_idx_last_scheduled_token": block_idx_last_scheduled_token,
        "initial_state_idx": initial_state_idx,
    }
    residual_connection = residual_connection or 0
    _check_tensors(x, weight, conv_states, bias)
    _check_options(activation, run_mode or 0, residual_connection, conv_mode)
    sequences = _check_numbers(x, conv_states, query_start_loc, numbers, conv_mode, block_size)
    inputs = (x, weight, conv_states, query_start_loc, *numbers.values())
    if any(is_traced(t) for t in inputs if t is not None):
        return x.new_empty(x.shape), conv_states.new_empty(conv_states.shape)

    tokens, states = x.flatten(0, -2), conv_states.clone()
    y = torch.zeros_like(wide(tokens))
    rows, size, history = *states.shape[:2], weight.shape[0] - 1
    if query_start_loc is None:
        starts = [i * x.shape[1] for i in range(sequences + 1)]
    else:
        starts = query_start_loc.tolist()
    _check_starts(starts, tokens.shape[0])
    numbers = {name: t if t is None else t.tolist() for name, t in numbers.items()}
    computed = numbers["num_computed_tokens"]
    width = 0 if cache_indices is None else cache_indices.shape[-1]
    found, plans = {}, []
    for i, (begin, end) in enumerate(itertools.pairwise(starts)):
        if begin == end:
            continue
        _expect(
            computed is None or computed[i] >= 0,
            f"num_computed_tokens of at least 0, got {computed and computed[i]} for sequence {i}",
        )
        if initial_state_idx is not None:
            read, write, ended = _blocks(i, end - begin, numbers, width, block_size, pad)
        else:
            read = i if cache_indices is None else numbers["cache_indices"][i]
            write, ended = read, []
        if read == pad:
            continue
        stored = [(row, at) for row, at in ((write, end - begin), *ended) if row != pad]
        for row in (read, *(row for row, _ in stored)):
            _check_row(row, rows)
        has_state, offset = _begin(i, numbers, history, size)
        found[i] = (read if has_state else None, [row for row, _ in stored])
        plans.append((i, begin, end, read, has_state, offset, stored))
    _check_owners(found)

    for i, begin, end, read, has_state, offset, stored in plans:
        before = conv_states[read][: offset + history]
        before = before if has_state else torch.zeros_like(conv_states[read][:history])
        padded = torch.cat([before, tokens[begin:end]])
        windows = wide(padded[offset:]).unfold(0, history + 1, 1)
        result = (windows * wide(weight).t()).sum(-1)
        result = result if bias is None else result + wide(bias)
        result = result if activation == "None" else result * torch.sigmoid(result)
        if conv_mode == "pangu":
            result[: max(history - computed[i], 0)] = 0
        y[begin:end] = result + wide(tokens[begin:end]) if residual_connection else result
        for row, at in stored:
            if at == end - begin:
                entries = padded[-size:] if size else padded[:0]
            else:
                entries = padded[offset + at :][:history]
            states[row, size - entries.shape[0] :] = entries
    return y.view(x.shape).to(x.dtype), states
