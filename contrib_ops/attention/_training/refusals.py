"""Calls that training attention and its backward pass reject."""

from onnxruntime_npu.opdef import torch

from .samples import pattern


def wrong_calls():
    """Return (message, make) of calls that both passes reject; make: the forward arguments."""
    cases = []

    def call(make, change=None, **given):
        q, k, v = make(2, 4, 5, 8), make(2, 2, 7, 8), make(2, 2, 7, 8)
        given = {"head_num": 4, "input_layout": "BNSD", **given}
        return {"query": q, "key": k, "value": v, **(change(make) if change else {}), **given}

    def add(match, change=None, **given):
        cases.append((match, lambda make: call(make, change, **given)))

    add("expected input_layout BSH, SBH, BSND, BNSD or TND, got 'NSD'", input_layout="NSD")
    add(r"expected head_num in \[1, 2147483647\], got 0", head_num=0)
    add(r"expected head_num in \[1, 2147483647\], got 2147483648", head_num=2**31)
    add("expected keep_prob in .0, 1., got 1.5", keep_prob=1.5)
    add("expected sparse_mode in .0, 8., got 9", sparse_mode=9)
    add("expected input_layout TND with sparse_mode 7, got BNSD", sparse_mode=7)
    add("expected inner_precise 0, 1 or 2, got 3", inner_precise=3)
    add("expected softmax_layout '' or 'TND', got 'NTD'", softmax_layout="NTD")
    add("expected 8 heads in query, got 4", head_num=8)
    add("expected key of query's head size 8, got 16", lambda make: {"key": make(2, 2, 7, 16)})
    add(
        "expected the heads of key to divide head_num 4, got 3",
        lambda make: {"key": make(2, 3, 7, 8), "value": make(2, 3, 7, 8)},
    )
    add("expected key of shape .* for input_layout BNSD", lambda make: {"key": make(2, 7, 16)})
    add(
        "expected value with key's 2 heads and 7 rows, got 2 and 6",
        lambda make: {"value": make(2, 2, 6, 8)},
    )
    add(
        r"expected the \[2048, 2048\] atten_mask with sparse_mode 3, got \[5, 7\]",
        lambda make: {"atten_mask": torch.zeros(5, 7, dtype=torch.bool)},
        sparse_mode=3,
    )
    add(
        r"expected atten_mask of shape \[5, 7\] or",
        lambda make: {"atten_mask": torch.zeros(5, 6, dtype=torch.bool)},
    )
    add(
        r"expected prefix in \[0, 7\], got 8 for batch entry 1",
        lambda make: {"atten_mask": pattern(6)},
        sparse_mode=6,
        prefix=[1, 8],
    )
    add(
        "expected prefix with an entry for every sequence, got 1",
        lambda make: {"atten_mask": pattern(6)},
        sparse_mode=6,
        prefix=[1],
    )
    add(
        r"expected pse of shape \[1 or 2, 4, 1 or 5, 7\], got \[2, 4, 5, 6\]",
        lambda make: {"pse": make(2, 4, 5, 6)},
    )
    add(
        r"expected sink float32 of shape \[4\]",
        lambda make: {"sink": make(3, dtype="float32")},
    )

    add(
        "expected query of shape .B, N, S, D. for input_layout BNSD",
        lambda make: {"query": make(5, 8)},
    )
    add("expected value of shape .B, N, S, D. for input", lambda make: {"value": make(2, 14, 8)})
    add(
        "expected a head size from 1 to 768 in query, got 0",
        lambda make: {"query": make(2, 4, 5, 0)},
    )
    add("expected a head size from 1 to 768 in value", lambda make: {"value": make(2, 2, 7, 769)})
    add(
        "expected key and value of query's batch size 2, got 1 and 2",
        lambda make: {"key": make(1, 2, 7, 8)},
    )
    add(
        "expected query, key and value of one dtype, got .*float32, .*float16 and .*float32",
        lambda make: {"key": make(2, 2, 7, 8, dtype="float16")},
    )
    add("expected pse of query's dtype", lambda make: {"pse": make(2, 4, 5, 7, dtype="float16")})
    add(
        "expected the last axis of query to be a multiple of its 4 heads, got 33",
        lambda make: {"query": make(2, 5, 33), "key": make(2, 7, 16), "value": make(2, 7, 16)},
        input_layout="BSH",
    )
    add(
        "expected prefix as a list of integers with sparse_mode 6, got none",
        lambda make: {"atten_mask": pattern(6)},
        sparse_mode=6,
    )

    def packed(make):
        return {"query": make(5, 4, 8), "key": make(7, 2, 8), "value": make(7, 2, 8)}

    add(
        "expected actual_seq_qlen and actual_seq_kvlen for input_layout TND",
        packed,
        input_layout="TND",
    )
    add(
        r"expected actual_seq_kvlen to ascend within \[0, 7\], got 8 behind 3",
        packed,
        input_layout="TND",
        actual_seq_qlen=[2, 5],
        actual_seq_kvlen=[3, 8],
    )
    add(
        "expected actual_seq_kvlen with 2 entries, got 1",
        packed,
        input_layout="TND",
        actual_seq_qlen=[2, 5],
        actual_seq_kvlen=[7],
    )
    add(
        r"expected actual_seq_qlen to ascend within \[0, 5\], got -1 behind 2",
        packed,
        input_layout="TND",
        actual_seq_qlen=[2, -1],
        actual_seq_kvlen=[3, 7],
    )
    return cases
