"""Sample calls of training attention, for both passes."""

from onnxruntime_npu.opdef import torch


def pattern(sparse_mode):
    """Return the compressed mask of a pattern."""
    if sparse_mode == 6:
        left = torch.arange(2048) >= 1024
        return torch.cat([torch.ones(2048, 2048).triu(1).bool(), left.expand(1024, 2048)])
    return torch.ones(2048, 2048, dtype=torch.bool).triu(1)


def prefix_mask(rows, keys, prefix):
    """Return the full mask of sparse mode 5, [B, 1, Sq, Skv]."""
    i, j = torch.arange(rows)[:, None], torch.arange(keys)
    return ((j > i + keys - rows) & (j >= torch.tensor(prefix).view(-1, 1, 1))).unsqueeze(1)


def calls(make):
    """Yield (id, query, key, value, keyword arguments) for both passes."""

    def qkv(rows, keys, heads=4, kv_heads=2, size=16, value_size=16, batch=2, layout="BNSD"):
        shapes = {
            "BSH": lambda s, n, d: (batch, s, n * d),
            "SBH": lambda s, n, d: (s, batch, n * d),
            "BSND": lambda s, n, d: (batch, s, n, d),
            "BNSD": lambda s, n, d: (batch, n, s, d),
            "TND": lambda s, n, d: (s, n, d),
        }[layout]
        tensors = (
            make(*shapes(rows, heads, size)),
            make(*shapes(keys, kv_heads, size)),
            make(*shapes(keys, kv_heads, value_size)),
        )
        return *tensors, {"head_num": heads, "input_layout": layout, "scale": 0.25}

    for layout in ("BSH", "SBH", "BSND"):
        q, k, v, given = qkv(21, 37, layout=layout)
        yield layout.lower(), q, k, v, given
    q, k, v, given = qkv(37, 70, value_size=8)
    for mode in (2, 3, 4):
        given_mode = {"sparse_mode": mode, "pre_tockens": 20, "next_tockens": 4}
        yield f"mode_{mode}", q, k, v, {**given, **given_mode, "atten_mask": pattern(mode)}
    band = {"pre_tockens": 20, "next_tockens": 30, "atten_mask": make.bools(4, 37, 70)[:1]}
    band["atten_mask"] = make.bools(2, 4, 37, 70, p=0.2)
    yield "mask_per_head_and_band", q, k, v, {**given, **band}
    band |= {"pre_tockens": 2**63 - 1, "next_tockens": 2**63 - 1}
    yield "unbounded_band", q, k, v, {**given, **band}
    whole = {"sparse_mode": 1, "atten_mask": make.bools(37, 70), "pse": make(1, 4, 37, 70)}
    yield "mask_and_bias", q, k, v, {**given, **whole}
    yield "bias_per_batch", q, k, v, {**given, "pse": make(2, 4, 37, 70)}
    yield "bias_of_a_row", q, k, v, {**given, "pse": make(2, 4, 1, 70)}
    full = {"sparse_mode": 5, "prefix": [40, 61], "atten_mask": prefix_mask(37, 70, [40, 61])}
    yield "prefix", q, k, v, {**given, **full}
    short = {"sparse_mode": 6, "prefix": [0, 61], "atten_mask": pattern(6)}
    yield "prefix_by_pattern", q, k, v, {**given, **short}
    yield "sink", q, k, v, {**given, "sink": make(4, dtype="float32")}
    yield "dropout", q, k, v, {**given, "keep_prob": 0.75, "seed": 2**40 + 7, "offset": 12}
    yield "all_dropped", q, k, v, {**given, "keep_prob": 0.0}
    masked = {"sparse_mode": 1, "atten_mask": torch.ones(37, 70, dtype=torch.uint8)}
    yield "all_masked", q, k, v, {**given, **masked}
    q, k, v, given = qkv(30, 7, size=24)
    causal = {"sparse_mode": 3, "atten_mask": pattern(3)}
    yield "rows_without_keys", q, k, v, {**given, **causal}
    q, k, v, given = qkv(1, 9, heads=6, size=16)
    yield (
        "one_query",
        q,
        k,
        v,
        {**given, "keep_prob": 0.5, "seed": 3, "sink": make(6, dtype="float32")},
    )
    q, k, v, given = qkv(150, 150, batch=1, heads=2, kv_heads=1)
    yield "several_blocks", q, k, v, {**given, **causal, "keep_prob": 0.9, "seed": 1}

    q, k, v, given = qkv(40, 61, layout="TND")
    lists = {"actual_seq_qlen": [7, 7, 30, 39, 0], "actual_seq_kvlen": [9, 20, 20, 60, 0]}
    yield "tnd", q, k, v, {**given, **lists, "keep_prob": 0.8, "seed": 5}
    lists = {"actual_seq_qlen": (7, 20, 39), "actual_seq_kvlen": (9, 30, 60)}
    for mode in (3, 7, 8):
        given_mode = {"sparse_mode": mode, "pre_tockens": 8, "next_tockens": 2}
        yield (
            f"tnd_mode_{mode}",
            q,
            k,
            v,
            {**given, **lists, **given_mode, "atten_mask": pattern(mode)},
        )
    yield "tnd_mask_and_bias", q, k, v, {
        **given, **lists, "sparse_mode": 1, "atten_mask": make.bools(25, 40),
        "pse": make(3, 4, 22, 40),
    }  # fmt: skip
    # More rows of no sequence than the mask and the bias have.
    yield "tnd_rows_of_no_sequence", q, k, v, {
        **given, "actual_seq_qlen": (3, 5, 7), "actual_seq_kvlen": (9, 30, 60), "sparse_mode": 1,
        "atten_mask": make.bools(25, 40), "pse": make(3, 4, 22, 40),
    }  # fmt: skip
    # A sequence of more keys than the mask has, at which no query looks.
    yield "tnd_keys_without_queries", q, k, v, {
        **given, "actual_seq_qlen": (7, 7, 30), "actual_seq_kvlen": (9, 55, 60), "sparse_mode": 1,
        "atten_mask": make.bools(25, 40), "pse": make(3, 4, 23, 40),
    }  # fmt: skip
    yield "tnd_prefix", q, k, v, {
        **given, **lists, "sparse_mode": 6, "prefix": [3, 0, 30], "atten_mask": pattern(6),
        "sink": make(4, dtype="float32"),
    }  # fmt: skip
    q, k, v, given = qkv(5, 9, batch=0)
    yield "no_batch", q, k, v, given
    q, k, v, given = qkv(5, 0)
    yield "no_keys", q, k, v, given
    q, k, v, given = qkv(0, 5)
    yield "no_queries", q, k, v, given
    if make.dtype == "float32":  # one dtype suffices: the bias alone is 1100 x 1100
        q, k, v, given = qkv(1100, 1100, heads=2, kv_heads=1, batch=1, size=4, value_size=4)
        yield "compressed_bias", q, k, v, {**given, **causal, "pse": make(1, 2, 1024, 1100)}
