"""Sample calls of inference attention: integer caches and results, padding, prefixes."""

from __future__ import annotations

from onnxruntime_npu.opdef import Sample, torch

from .._cases import compressed_mask


def quantised_samples(make):
    """Yield calls whose keys and values are int8 or int4, one for every way to scale them."""
    bnsd = {"input_layout": "BNSD", "num_heads": 4, "num_key_value_heads": 2, "scale": 0.2}
    q = make(2, 4, 5, 16)

    def ints(*shape):
        return make.ints(*shape, low=-128, high=128, dtype="int8")

    def scales(*shape, dtype=None):
        return make.uniform(*shape, low=0.005, high=0.02, dtype=dtype)

    def offsets(*shape, dtype=None):
        return make(*shape, scale=8, dtype=dtype)

    kv = ints(2, 2, 21, 16), ints(2, 2, 21, 16)
    yield Sample(q, *kv, **bnsd, antiquant_scale=scales(2), id="int8_tensor")
    yield Sample(q, *kv, **bnsd, antiquant_scale=scales(2, 2, 1, 16),
                 antiquant_offset=offsets(2, 2, 1, 16), id="int8_channel")  # fmt: skip
    yield Sample(q, *kv, **bnsd, antiquant_scale=scales(2, 2, 1, 16),
                 antiquant_offset=offsets(64), id="int8_flat_offset")  # fmt: skip
    yield Sample(q, *kv, **bnsd, antiquant_scale=scales(2, 2, 21, dtype="float32"),
                 antiquant_offset=offsets(2, 2, 21, dtype="float32"), antiquant_mode=1,
                 actual_seq_lengths_kv=[21, 3], id="int8_token")  # fmt: skip
    for mode, shape in enumerate([(1,), (1, 2, 21), (2,), (2, 2, 21)]):
        yield Sample(q, *kv, **bnsd, key_antiquant_scale=scales(*shape),
                     value_antiquant_scale=scales(*shape), value_antiquant_offset=offsets(*shape),
                     key_antiquant_mode=mode, value_antiquant_mode=mode,
                     softmax_lse_flag=True, id=f"int8_mode_{mode}")  # fmt: skip
    yield Sample(q, *kv, **bnsd, key_antiquant_scale=scales(2, 16), value_antiquant_mode=1,
                 value_antiquant_scale=scales(2, 21), id="int8_channel_and_token")  # fmt: skip
    words = make.ints(2, 21, 4, low=-(2**31), high=2**31, dtype="int32")
    yield Sample(make(2, 1, 64), words, words.flip(1), num_heads=4, num_key_value_heads=2,
                 antiquant_scale=scales(2, 32), antiquant_offset=make(2, 32),
                 id="int4_channel")  # fmt: skip
    table = make.tensor([[3, 1, 99], [0, 4, 2]], dtype="int32")
    paged = {**bnsd, "block_table": table, "block_size": 8, "actual_seq_lengths_kv": [11, 24]}
    pages = ints(5, 8, 32), ints(5, 8, 32)
    for mode, shape in ((0, (32,)), (1, (2, 24)), (3, (2, 2, 30)), (4, (5, 8)), (5, (5, 2, 8))):
        yield Sample(q, *pages, **paged, key_antiquant_scale=scales(*shape),
                     value_antiquant_scale=scales(*shape), key_antiquant_mode=mode,
                     value_antiquant_mode=mode, id=f"int8_pages_mode_{mode}")  # fmt: skip
    nz = ints(5, 2, 1, 8, 32), ints(5, 2, 2, 8, 32)
    yield Sample(make(2, 4, 1, 32), *nz, **paged, antiquant_scale=scales(2), id="int8_nz")
    nz = make(5, 2, 2, 8, 16), make(5, 2, 1, 8, 16)
    yield Sample(make(2, 4, 1, 32), *nz, **paged, id="nz_decode")
    yield Sample(make(2, 4, 9, 32), *nz, **paged, id="nz_prefill")
    tnd = {**bnsd, "input_layout": "TND", "actual_seq_lengths": [2, 5],
           "actual_seq_lengths_kv": [7, 21]}  # fmt: skip
    yield Sample(make(5, 4, 16), ints(21, 2, 16), ints(21, 2, 16), **tnd,
                 key_antiquant_scale=scales(1, 21), value_antiquant_scale=scales(1, 21),
                 key_antiquant_mode=1, value_antiquant_mode=1, id="int8_tnd_token")  # fmt: skip
    yield Sample(make(5, 4, 16), *pages, **{**tnd, "actual_seq_lengths_kv": [11, 24]},
                 block_table=table, block_size=8, key_antiquant_scale=scales(2),
                 value_antiquant_scale=scales(2), key_antiquant_mode=2, value_antiquant_mode=2,
                 query_rope=make(5, 4, 8), key_rope=make(5, 8, 16), id="int8_rope")  # fmt: skip
    latents, one = ints(5, 8, 24), scales(5, 1, 8, dtype="float32")
    yield Sample(make(5, 4, 24), latents, latents, **{**tnd, "num_key_value_heads": 1,
                 "actual_seq_lengths_kv": [11, 24]}, block_table=table, block_size=8,
                 sparse_mode=3, atten_mask=compressed_mask(), key_antiquant_scale=one,
                 value_antiquant_scale=one, key_antiquant_mode=5, value_antiquant_mode=5,
                 query_rope=make(5, 4, 8), key_rope=make(5, 8, 8),
                 id="int8_latents")  # fmt: skip
    latents, one = ints(2, 1, 21, 24), scales(2, 1, 21, dtype="float32")
    yield Sample(make(2, 4, 1, 24), latents, latents, **{**bnsd, "num_key_value_heads": 1},
                 key_antiquant_scale=one, value_antiquant_scale=one, key_antiquant_mode=3,
                 value_antiquant_mode=3, actual_seq_lengths_kv=[21, 4],
                 query_rope=make(2, 4, 1, 8), key_rope=make(2, 1, 21, 8),
                 id="int8_latents_decode")  # fmt: skip


def padded_samples(make):
    """Yield calls with left padding and with a prefix."""
    bnsd = {"input_layout": "BNSD", "num_heads": 4, "num_key_value_heads": 2, "scale": 0.25,
            "softmax_lse_flag": True}  # fmt: skip
    causal = {"sparse_mode": 3, "atten_mask": compressed_mask()}
    q, kv = make(2, 4, 9, 16), (make(2, 2, 30, 16), make(2, 2, 30, 16))
    lengths = {"actual_seq_lengths": [9, 4], "actual_seq_lengths_kv": [17, 25]}
    two = {"query_padding_size": make.tensor([2], dtype="int64"),
           "kv_padding_size": make.tensor([3], dtype="int64")}  # fmt: skip
    yield Sample(q, *kv, **bnsd, **causal, **two, actual_seq_lengths=[7, 4],
                 actual_seq_lengths_kv=[17, 25], id="left_padding")  # fmt: skip
    yield Sample(q, *kv, **bnsd, **two, **lengths, id="padding_without_room")
    yield Sample(q, *kv, **bnsd, **two, actual_seq_lengths=[7, 4], actual_seq_lengths_kv=[17, 25],
                 atten_mask=make.bools(2, 1, 9, 30), sparse_mode=1, pse_shift=make(1, 4, 9, 30),
                 id="padding_mask_and_bias")  # fmt: skip
    yield Sample(make(2, 4, 1, 16), *kv, **bnsd, **two, actual_seq_lengths_kv=[27, 28],
                 id="padding_decode")  # fmt: skip
    negative = make.tensor([-5], dtype="int64")
    yield Sample(make(2, 4, 1, 16), *kv, **bnsd, actual_seq_lengths_kv=[30, 2],
                 kv_padding_size=negative, id="negative_padding")  # fmt: skip

    prefix = {"key_shared_prefix": make(1, 2, 6, 16), "value_shared_prefix": make(1, 2, 6, 16)}
    yield Sample(q, *kv, **bnsd, **causal, **prefix, id="prefix")
    yield Sample(q, *kv, **bnsd, **causal, **prefix, **lengths, actual_shared_prefix_len=[5],
                 id="prefix_lengths")  # fmt: skip
    yield Sample(q, *kv, **bnsd, **prefix, actual_shared_prefix_len=[0],
                 atten_mask=make.bools(9, 30), id="prefix_of_nothing")  # fmt: skip
    yield Sample(make(2, 1, 64), make(2, 8, 32), make(2, 8, 32), num_heads=4,
                 num_key_value_heads=2, key_shared_prefix=make(1, 140, 32),
                 value_shared_prefix=make(1, 140, 32), actual_seq_lengths_kv=[8, 0],
                 atten_mask=make.bools(2, 148), id="prefix_decode")  # fmt: skip
    yield Sample(q, *kv, **bnsd, **causal, **prefix, **two, actual_seq_lengths=[7, 4],
                 actual_seq_lengths_kv=[17, 25], id="prefix_and_padding")  # fmt: skip
    yield Sample(q, *kv, **bnsd, **prefix, kv_padding_size=two["kv_padding_size"],
                 actual_shared_prefix_len=[5], actual_seq_lengths_kv=[17, 28], sparse_mode=1,
                 atten_mask=make.bools(2, 1, 9, 35), pse_shift=make(2, 4, 9, 36),
                 id="prefix_padding_mask_and_bias")  # fmt: skip
    yield Sample(make(2, 4, 1, 16), *kv, **bnsd, **prefix, kv_padding_size=two["kv_padding_size"],
                 actual_seq_lengths_kv=[17, 25], atten_mask=make.bools(2, 36),
                 id="prefix_padding_decode")  # fmt: skip
    table = make.tensor([[3, 1], [0, 4]], dtype="int32")
    yield Sample(q, make(5, 16, 32), make(5, 2, 16, 16), **bnsd, **prefix, block_table=table,
                 block_size=16, actual_seq_lengths_kv=[31, 5], id="prefix_pages")  # fmt: skip
    ints = [make.ints(b, 2, s, 16, low=-128, high=128, dtype="int8") for b, s in ((2, 30), (1, 6))]
    yield Sample(q, ints[0], ints[0], **bnsd, key_shared_prefix=ints[1],
                 value_shared_prefix=ints[1], id="int8_prefix",
                 antiquant_scale=make.uniform(2, 2, 16, low=0.005, high=0.02))  # fmt: skip


def quantised_output_samples(make):
    """Yield calls whose result is int8, and calls with int8 operands."""
    bsnd = {"input_layout": "BSND", "num_heads": 4, "num_key_value_heads": 2, "scale": 0.25}
    qkv = make(2, 9, 4, 16), make(2, 30, 2, 16), make(2, 30, 2, 24)
    one = {"quant_scale2": make.tensor([40.0], dtype="float32"),
           "quant_offset2": make.tensor([-3.0], dtype="float32")}  # fmt: skip
    yield Sample(*qkv, **bsnd, **one, actual_seq_lengths=[9, 2], id="int8_out")
    yield Sample(*qkv, **{**bsnd, "input_layout": "BSND_NBSD"}, id="int8_out_channel",
                 quant_scale2=make.uniform(1, 4, 1, 24, low=20, high=200))  # fmt: skip
    if make.dtype != "float16":  # the result of int8 operands is float16 or int8 for every dtype
        return
    # Scores are multiples of 1/32, so weights are rarely close to a rounding boundary.
    ints = (make.ints(2, 4, 9, 16, low=-4, high=4, dtype="int8"),
            make.ints(2, 2, 30, 16, low=-4, high=4, dtype="int8"),
            make.ints(2, 2, 30, 16, low=-128, high=128, dtype="int8"))  # fmt: skip
    bits = torch.tensor([0.25, 1.5e-4]).view(torch.int32).to(torch.int64) | 1 << 46
    call = {"dequant_scale1": bits[:1].view(torch.uint64), "dequant_scale2": bits[1:],
            "quant_scale1": make.tensor([127.0], dtype="float32"), "input_layout": "BNSD",
            "num_heads": 4, "num_key_value_heads": 2, "scale": 0.125}  # fmt: skip
    yield Sample(*ints, **call, softmax_lse_flag=True, id="int8_operands")
    yield Sample(*ints, **call, **one, pse_shift=make(1, 4, 9, 30), id="int8_operands_and_out")
    call["dequant_scale1"] = make.tensor([-0.25], dtype="float32")
    yield Sample(ints[0][:, :, :1], *ints[1:], **call, id="int8_decode")
    call["dequant_scale1"] = bits[:1]
    rope = {"query_rope": make.ints(2, 4, 9, 8, low=-2, high=3).half() / 4,
            "key_rope": make.ints(2, 2, 30, 8, low=-2, high=3).half() / 4}  # fmt: skip
    yield Sample(*ints, **call, **rope, softmax_lse_flag=True, id="int8_operands_and_rope")
    rope = {name: x.to(torch.bfloat16) for name, x in rope.items()}
    yield Sample(*ints, **call, **rope, pse_shift=make(1, 4, 9, 30, dtype="bfloat16"),
                 id="int8_operands_and_bfloat16_rope")  # fmt: skip
    # Long rows: weights of 1 each, every one much less than 1/127 of the sum.
    ones = torch.ones(1, 1, 600, 16, dtype=torch.int8)
    yield Sample(ones[:, :, :20], ones, ones, input_layout="BNSD", id="int8_ones",
                 dequant_scale1=make.tensor([1.0], dtype="float32"),
                 quant_scale1=make.tensor([1.0], dtype="float32"),
                 dequant_scale2=make.tensor([1.0], dtype="float32"),
                 expect=[torch.ones(1, 1, 20, 16).tolist(), [0.0]])  # fmt: skip
