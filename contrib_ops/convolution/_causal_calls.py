"""Samples and refusals of npu_fused_causal_conv1d."""

from onnxruntime_npu.opdef import Sample

_NAME = "npu_fused_causal_conv1d"


def _tensors(make, tokens, channels, taps, rows, entries):
    return make(tokens, channels), make(taps, channels), make(rows, entries, channels)


def _ints(make, **lists):
    return {name: make.tensor(values, "int32") for name, values in lists.items()}


def add(op):
    """Give the operator its samples and refusals."""
    op.samples(_samples)
    for id, match, change, needs_values in _refusals():
        op.errors(
            lambda make, change=change: _changed(make, change),
            match=rf"\[{_NAME}\] expected {match}",
            needs_values=needs_values,
            id=id,
        )


def _by_hand(make):
    weight = make.tensor([[1.0], [10.0]])
    # The last state is 5 for the first sequence, 0 for the second.
    yield Sample(
        make.tensor([[1.0], [2.0], [3.0]]),
        weight,
        make.tensor([[[7.0]], [[5.0]], [[8.0]]]),
        **_ints(make, query_start_loc=[0, 2, 3], cache_indices=[1, 0], initial_state_mode=[1, 0]),
        id="by_hand",
        expect=[[[15.0], [21.0], [30.0]], [[[3.0]], [[2.0]], [[8.0]]]],
    )
    # The first goes on after one draft of two, from 8; the second begins, and is too short.
    yield Sample(
        make.tensor([[1.0], [2.0], [4.0]]),
        weight,
        make.tensor([[[7.0], [8.0], [9.0]], [[4.0], [5.0], [6.0]]]),
        **_ints(
            make,
            query_start_loc=[0, 2, 3],
            num_accepted_tokens=[2, 3],
            num_computed_tokens=[9, 0],
        ),
        id="drafts_by_hand",
        expect=[[[18.0], [21.0], [40.0]], [[[8.0], [1.0], [2.0]], [[4.0], [0.0], [4.0]]]],
    )
    # Blocks of two end after the first and the third token.
    yield Sample(
        make.tensor([[1.0], [2.0], [3.0], [4.0], [5.0]]),
        weight,
        make.tensor([[[6.0]], [[7.0]], [[8.0]], [[9.0]]]),
        **_ints(
            make,
            query_start_loc=[0, 5],
            cache_indices=[[3, 0, 1, 2]],
            num_computed_tokens=[1],
            block_idx_first_scheduled_token=[0],
            block_idx_last_scheduled_token=[2],
            initial_state_idx=[0],
        ),
        block_size=2,
        id="blocks_by_hand",
        expect=[[[19.0], [21.0], [32.0], [43.0], [54.0]], [[[3.0]], [[5.0]], [[8.0]], [[1.0]]]],
    )
    # Two tokens have too few before them for the kernel's three taps.
    yield Sample(
        make.tensor([[[1.0], [2.0], [3.0]]]),
        make.tensor([[1.0], [1.0], [1.0]]),
        make.tensor([[[4.0], [5.0]]]),
        **_ints(make, num_computed_tokens=[0]),
        residual_connection=1,
        conv_mode="pangu",
        id="pangu_by_hand",
        expect=[[[[1.0], [2.0], [9.0]]], [[[2.0], [3.0]]]],
    )


def _samples(make):
    yield from _by_hand(make)
    yield Sample(
        *_tensors(make, 150, 300, 4, 5, 3),
        **_ints(make, query_start_loc=[0, 3, 73, 73, 150], cache_indices=[4, 0, 2, 1]),
        bias=make(300),
        activation="silu",
        id="prompts",
    )
    yield Sample(
        *_tensors(make, 7, 40, 4, 9, 3),
        **_ints(
            make,
            query_start_loc=[0, 1, 2, 3, 4, 5, 6, 7],
            cache_indices=[8, 2, -1, 3, 0, 1, 7],
            initial_state_mode=[1, 1, 1, 1, 0, 1, 1],
        ),
        activation="swish",
        residual_connection=1,
        run_mode=1,
        max_query_len=1,
        id="one_token_each",
    )
    # Tokens before the first sequence and after the last.
    yield Sample(
        *_tensors(make, 9, 17, 3, 3, 2),
        query_start_loc=make.tensor([2, 4, 7], "int64"),
        cache_indices=make.tensor([2, 0], "int64"),
        initial_state_mode=make.tensor([0, 1], "int64"),
        pad_slot_id=5,
        id="other_tokens",
    )
    drafts = _ints(
        make,
        cache_indices=[0, 2, 4, 5],
        num_computed_tokens=[100, 1, 0, 30],
        num_accepted_tokens=[2, 1, 3, 3],
    )
    x, weight, states = make(4, 3, 16), make(3, 16), make(6, 4, 16)
    yield Sample(x, weight, states, **drafts, conv_mode="pangu", id="drafts_of_a_batch")
    yield Sample(
        x,
        weight,
        states,
        **drafts,
        **_ints(make, query_start_loc=[0, 1, 3, 9, 12]),
        activation="silu",
        residual_connection=1,
        conv_mode="pangu",
        id="drafts_and_a_prompt",
    )
    # The third reads what the second does; the fourth has no row where its first block ends.
    yield Sample(
        *_tensors(make, 21, 24, 4, 12, 4),
        **_ints(
            make,
            query_start_loc=[0, 1, 8, 11, 21],
            cache_indices=[[3, 4, -7, -7], [0, 1, 2, -7], [0, 5, 6, -7], [7, -1, 8, 9]],
            num_computed_tokens=[3, 4, 4, 2],
            num_accepted_tokens=[1, 2, 1, 1],
            block_idx_first_scheduled_token=[0, 1, 1, 1],
            block_idx_last_scheduled_token=[0, 2, 1, 3],
            initial_state_idx=[0, 0, 0, 0],
        ),
        block_size=4,
        activation="silu",
        id="blocks",
    )
    yield Sample(
        *_tensors(make, 5, 6, 1, 2, 0),
        **_ints(make, query_start_loc=[0, 2, 5]),
        bias=make(6),
        id="one_tap",
    )
    yield Sample(
        *_tensors(make, 11, 8, 6, 2, 7),
        **_ints(make, query_start_loc=[0, 3, 11]),
        id="six_taps",
    )
    # More taps than tokens that one task convolves.
    yield Sample(
        *_tensors(make, 400, 600, 70, 1, 69),
        **_ints(make, query_start_loc=[0, 400]),
        id="seventy_taps",
    )
    yield Sample(
        make(7, 10).t(),
        make(7, 2).t(),
        make(3, 7, 2).transpose(1, 2),
        **_ints(make, query_start_loc=[0, 6, 10], cache_indices=[2, 1]),
        id="views",
    )
    yield Sample(
        *_tensors(make, 0, 8, 3, 2, 2),
        **_ints(make, query_start_loc=[0, 0], cache_indices=[9]),
        id="no_tokens",
    )
    yield Sample(
        *_tensors(make, 3, 4, 3, 2, 2),
        **_ints(make, query_start_loc=[0]),
        id="no_sequences",
    )


def _changed(make, change):
    x, weight, states = _tensors(make, 6, 4, 3, 8, 3)
    call = {"x": x, "weight": weight, "conv_states": states} | _ints(
        make,
        query_start_loc=[0, 4, 6],
        cache_indices=[[5, 1, 2], [3, 4, 7]],
        initial_state_mode=[1, 1],
        num_accepted_tokens=[1, 2],
        num_computed_tokens=[1, 1],
        block_idx_first_scheduled_token=[0, 0],
        block_idx_last_scheduled_token=[2, 1],
        initial_state_idx=[0, 0],
    )
    return Sample(**call | {"bias": make(4), "block_size": 2} | change(make))


def _flat(make):
    """Return what makes the call one without blocks."""
    none = ("block_idx_first_scheduled_token", "block_idx_last_scheduled_token")
    return dict.fromkeys((*none, "initial_state_idx")) | _ints(make, cache_indices=[5, 1])


def _refusals():
    """Yield the name of each, its message, the change of a valid call, and if it needs values."""
    shapes = [
        ("x", r"x of shape \[T, C\] or \[B, L, C\], got \[4\]", (4,)),
        ("weight", r"weight of shape \[K, 4\] with K >= 1, got \[4, 3\]", (4, 3)),
        ("weight", r"weight of shape \[K, 4\] with K >= 1, got \[0, 4\]", (0, 4)),
        ("conv_states", r"conv_states of shape \[rows, 2 or more, 4\], got \[8, 1, 4\]", (8, 1, 4)),
        ("bias", r"bias \[4\], got \[3\]", (3,)),
    ]
    for i, (name, match, shape) in enumerate(shapes):
        yield f"{name}_{i}", match, lambda make, n=name, s=shape: {n: make(*s)}, False
    for name, size in (("weight", (3, 4)), ("conv_states", (8, 3, 4)), ("bias", (4,))):
        yield (
            f"{name}_dtype",
            rf"{name} of x's dtype .*float16, got .*float32",
            lambda make, n=name, s=size: {
                "x": make(6, 4, dtype="float16"),
                "weight": make(3, 4, dtype="float16"),
                "conv_states": make(8, 3, 4, dtype="float16"),
                "bias": make(4, dtype="float16"),
                n: make(*s, dtype="float32"),
            },
            False,
        )
    for name, value, match in [
        ("activation", "gelu", "activation None, silu or swish, got gelu"),
        ("run_mode", 2, "run_mode 0 or 1, got 2"),
        ("residual_connection", -1, "residual_connection 0 or 1, got -1"),
        ("conv_mode", "qwen", "conv_mode default or pangu, got qwen"),
        ("block_size", 1, "block_size of at least 2, got 1"),
        ("query_start_loc", None, r"query_start_loc with x of shape \[T, C\], got none"),
        ("cache_indices", None, "cache_indices and num_computed_tokens with .*, got none"),
        ("initial_state_idx", None, "none or all of .*, got block_idx_first_scheduled_token, bl"),
    ]:
        yield f"{name}_{value}", match, lambda make, n=name, v=value: {n: v}, False
    lists = [
        ("query_start_loc", r"query_start_loc of shape \[B \+ 1\], got \[0\]", []),
        ("initial_state_mode", r"initial_state_mode of shape \[2\], got \[1\]", [1]),
        ("cache_indices", r"cache_indices of shape \[2, blocks\], got \[2\]", [0, 1]),
    ]
    for name, match, values in lists:
        yield name, match, lambda make, n=name, v=values: _ints(make, **{n: v}), False
    yield (
        "starts_of_a_batch",
        r"query_start_loc of shape \[3\], got \[4\]",
        lambda make: {"x": make(2, 3, 4)} | _ints(make, query_start_loc=[0, 2, 4, 6]),
        False,
    )
    yield (
        "flat_cache_indices",
        r"cache_indices of shape \[2\], got \[2, 2\]",
        lambda make: _flat(make) | _ints(make, cache_indices=[[0, 1], [2, 3]]),
        False,
    )
    yield (
        "few_rows",
        "conv_states of at least 2 rows without cache_indices, got 1",
        lambda make: _flat(make) | {"cache_indices": None, "conv_states": make(1, 3, 4)},
        False,
    )
    yield (
        "pangu",
        "num_computed_tokens with conv_mode pangu, got none",
        lambda make: _flat(make) | {"num_computed_tokens": None, "conv_mode": "pangu"},
        False,
    )
    first, last = "block_idx_first_scheduled_token", "block_idx_last_scheduled_token"
    starts = "query_start_loc that does not decrease, entry"
    own = "cache_indices that give each sequence rows of its own, got"
    for i, (name, values, match) in enumerate(
        [
            ("query_start_loc", [-1, 4, 6], rf"{starts} 0 in \[0, 6\], got -1"),
            ("query_start_loc", [0, 4, 3], rf"{starts} 2 in \[4, 6\], got 3"),
            ("query_start_loc", [0, 4, 7], rf"{starts} 2 in \[4, 6\], got 7"),
            ("initial_state_mode", [1, 2], "initial_state_mode 0 or 1, got 2 for sequence 1"),
            ("num_accepted_tokens", [0, 1], r"num_accepted_tokens in \[1, 2\] for sequence 0"),
            ("num_accepted_tokens", [1, 3], r"num_accepted_tokens in \[1, 2\] for sequence 1"),
            ("num_computed_tokens", [-1, 1], "num_computed_tokens of at least 0, got -1 for"),
            (last, [3, 1], rf"{last} in \[0, 3\), got 3"),
            (first, [0, 2], rf"{first} in \[0, 1\], got 2"),
            ("initial_state_idx", [2, 0], r"initial_state_idx in \[0, 1\], got 2"),
            (last, [2, 2], "at most 1 blocks that end in sequence 1, got 2"),
            ("cache_indices", [[8, 1, 2], [3, 4, 7]], r"cache_indices in \[0, 8\), got 8"),
            ("cache_indices", [[5, 1, -2], [3, 4, 7]], r"cache_indices in \[0, 8\), got -2"),
            ("cache_indices", [[5, 1, 2], [3, 2, 7]], f"{own} 2 of sequences 0 and 1"),
            ("cache_indices", [[5, 5, 2], [3, 4, 7]], f"{own} 5 of sequences 0 and 0"),
        ]
    ):
        yield f"number_{i}", match, lambda make, n=name, v=values: _ints(make, **{n: v}), True
    for i, (values, match) in enumerate(
        [
            ([5, 8], r"cache_indices in \[0, 8\), got 8"),
            ([-3, 1], r"cache_indices in \[0, 8\), got -3"),
            ([4, 4], f"{own} 4 of sequences 0 and 1"),
        ]
    ):
        yield (
            f"row_{i}",
            match,
            lambda make, v=values: _flat(make) | _ints(make, cache_indices=v),
            True,
        )
    # The second sequence reads a row that the first writes.
    yield (
        "row_of_another",
        f"{own} 1 of sequences 1 and 0",
        lambda make: _ints(
            make, cache_indices=[[5, 1, 2], [1, 4, 7]], block_idx_first_scheduled_token=[0, 1]
        ),
        True,
    )
