"""Semantics, function body and samples that both versions of the MLA prolog share."""

from onnxruntime_npu.opdef import FLOATS, Sample, check, check_indices, torch

from ._cache_rows import body_store, store

QUANTIZED = [*FLOATS, "int8"]
ARGUMENTS = (
    "Tensor token_x, Tensor weight_dq, Tensor weight_uq_qr, Tensor weight_uk,"
    " Tensor weight_dkv_kr, Tensor rmsnorm_gamma_cq, Tensor rmsnorm_gamma_ckv, Tensor rope_sin,"
    " Tensor rope_cos, Tensor cache_index, Tensor(a!) kv_cache, Tensor(b!) kr_cache, *,"
    " Tensor? dequant_scale_x=None, Tensor? dequant_scale_w_dq=None,"
    " Tensor? dequant_scale_w_uq_qr=None, Tensor? dequant_scale_w_dkv_kr=None,"
    " Tensor? quant_scale_ckv=None, Tensor? quant_scale_ckr=None, Tensor? smooth_scales_cq=None,"
    " float rmsnorm_epsilon_cq=1.0000000000000001e-05,"
    " float rmsnorm_epsilon_ckv=1.0000000000000001e-05, str cache_mode='PA_BSND'"
)
_SCALES = (
    "dequant_scale_x",
    "dequant_scale_w_dq",
    "dequant_scale_w_uq_qr",
    "dequant_scale_w_dkv_kr",
    "quant_scale_ckv",
    "quant_scale_ckr",
    "smooth_scales_cq",
)


def dtypes(activations):
    """Return the element types of the inputs; ``activations``: of token_x and its weights."""
    floats = ("weight_uk", "rmsnorm_gamma_cq", "rmsnorm_gamma_ckv", "rope_sin", "rope_cos")
    return {
        **dict.fromkeys(("token_x", "weight_dq", "weight_dkv_kr"), activations),
        **dict.fromkeys(("weight_uq_qr", "kv_cache", "kr_cache"), QUANTIZED),
        **dict.fromkeys(floats, FLOATS),
        "cache_index": ["int64"],
        **{name: ["float32"] for name in _SCALES},
        "query": activations,
        "query_rope": FLOATS,
    }


def _check_shapes(op, t):
    """Check every shape against the sizes of the weights; t: the tensors by name."""

    def of_shape(name, *shape):
        got = list(t[name].shape)
        check(got == list(shape), f"[{op}] expected {name} of shape {list(shape)}, got {got}")

    x, dq, uk = t["token_x"], t["weight_dq"], t["weight_uk"]
    check(
        x.dim() in (2, 3),
        f"[{op}] expected token_x of shape [T, He] or [B, S, He], got {list(x.shape)}",
    )
    check(
        dq.dim() == 2 and uk.dim() == 3 and 0 not in dq.shape and 0 not in uk.shape,
        f"[{op}] expected weight_dq of shape [He, Hcq] and weight_uk of shape [N, D, Hckv], none "
        f"empty, got {list(dq.shape)} and {list(uk.shape)}",
    )
    lead, (he, hcq), (n, d, hckv) = x.shape[:-1], dq.shape, uk.shape
    dr = t["rope_cos"].shape[-1] if t["rope_cos"].dim() else 0
    check(
        dr > 0 and dr % 2 == 0,
        f"[{op}] expected rope_cos of an even width, got {list(t['rope_cos'].shape)}",
    )
    of_shape("token_x", *lead, he)
    of_shape("weight_uq_qr", hcq, n * (d + dr))
    of_shape("weight_dkv_kr", he, hckv + dr)
    of_shape("rmsnorm_gamma_cq", hcq)
    of_shape("rmsnorm_gamma_ckv", hckv)
    of_shape("rope_sin", *lead, dr)
    of_shape("rope_cos", *lead, dr)
    of_shape("cache_index", *lead)
    for name, width in (("kv_cache", hckv), ("kr_cache", dr)):
        shape = list(t[name].shape)
        check(
            len(shape) == 4 and shape[2] == 1 and shape[3] == width,
            f"[{op}] expected {name} of shape [blocks, block_size, 1, {width}], got {shape}",
        )
    caches = [list(t[name].shape[:2]) for name in ("kv_cache", "kr_cache")]
    check(
        caches[0] == caches[1],
        f"[{op}] expected kv_cache and kr_cache of as many blocks of one size, got {caches[0]} "
        f"and {caches[1]}",
    )
    tokens = x.numel() // he
    widths = (tokens, hcq, n * (d + dr), hckv + dr, hckv, dr, hcq)
    for name, width in zip(_SCALES, widths, strict=True):
        check(
            t[name] is None or t[name].numel() == width,
            f"[{op}] expected {name} of {width} elements, "
            f"got {t[name] is not None and list(t[name].shape)}",
        )


def _check_modes(op, t, full_allowed):
    """Check that dtypes and scales match one of the modes."""
    full = full_allowed and t["token_x"].dtype == torch.int8
    quantized = full or t["weight_uq_qr"].dtype == torch.int8
    floats = t["weight_uk"].dtype
    for name in ("rmsnorm_gamma_cq", "rmsnorm_gamma_ckv", "rope_sin", "rope_cos"):
        _of_dtype(op, t, name, floats)
    for name in ("token_x", "weight_dq", "weight_dkv_kr"):
        _of_dtype(op, t, name, torch.int8 if full else floats)
    _of_dtype(op, t, "weight_uq_qr", torch.int8 if quantized else floats)
    _of_dtype(op, t, "kv_cache", floats if t["quant_scale_ckv"] is None else torch.int8)
    _of_dtype(op, t, "kr_cache", floats if t["quant_scale_ckr"] is None else torch.int8)
    for name, wanted in (
        ("dequant_scale_x", full),
        ("dequant_scale_w_dq", full),
        ("dequant_scale_w_uq_qr", quantized),
        ("dequant_scale_w_dkv_kr", full),
        ("quant_scale_ckr", not full and t["quant_scale_ckv"] is not None),
    ):
        check(
            (t[name] is not None) == wanted,
            f"[{op}] expected {'' if wanted else 'no '}{name} in this quantization mode",
        )
    for name in ("quant_scale_ckv", "smooth_scales_cq"):
        check(
            quantized or t[name] is None, f"[{op}] expected no {name} without an int8 weight_uq_qr"
        )


def _of_dtype(op, t, name, dtype):
    want, got = (str(d).removeprefix("torch.") for d in (dtype, t[name].dtype))
    check(
        want == got,
        f"[{op}] expected {name} of dtype {want} in this quantization mode, got {got}",
    )


def _rms_norm(x, gamma, epsilon):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon) * gamma.to(x.dtype)


def _rope(x, cos, sin):
    """Take even elements first, then odd, and rotate halves."""
    q1, q2 = x[..., ::2], x[..., 1::2]
    return torch.cat((q1, q2), -1) * cos + torch.cat((-q2, q1), -1) * sin


def _divisor(rows):
    """Return the int8 scale of every row; it is 1 for a row of zeros."""
    scale = rows.abs().amax(-1, keepdim=True) / 127
    return torch.where(scale == 0, 1.0, scale), scale


def reference(
    op,
    token_x,
    weight_dq,
    weight_uq_qr,
    weight_uk,
    weight_dkv_kr,
    rmsnorm_gamma_cq,
    rmsnorm_gamma_ckv,
    rope_sin,
    rope_cos,
    cache_index,
    kv_cache,
    kr_cache,
    *,
    rmsnorm_epsilon_cq,
    rmsnorm_epsilon_ckv,
    cache_mode,
    full_allowed,
    **scales,
):
    """Return the five outputs of version 2 of the operator named ``op``."""
    check(
        cache_mode in ("PA_BSND", "PA_NZ"),
        f"[{op}] expected cache_mode PA_BSND or PA_NZ, got '{cache_mode}'",
    )
    tensors = {
        "token_x": token_x,
        "weight_dq": weight_dq,
        "weight_uq_qr": weight_uq_qr,
        "weight_uk": weight_uk,
        "weight_dkv_kr": weight_dkv_kr,
        "rmsnorm_gamma_cq": rmsnorm_gamma_cq,
        "rmsnorm_gamma_ckv": rmsnorm_gamma_ckv,
        "rope_sin": rope_sin,
        "rope_cos": rope_cos,
        "cache_index": cache_index,
        "kv_cache": kv_cache,
        "kr_cache": kr_cache,
        **scales,
    }
    _check_shapes(op, tensors)
    _check_modes(op, tensors, full_allowed)
    for name, cache in (("kv_cache", kv_cache), ("kr_cache", kr_cache)):
        d0 = 32 if cache.dtype == torch.int8 else 16
        check(
            cache_mode != "PA_NZ" or cache.shape[3] % d0 == 0,
            f"[{op}] expected {name} of a width that is a multiple of {d0} in cache_mode PA_NZ, "
            f"got {cache.shape[3]}",
        )

    rows = kv_cache.shape[0] * kv_cache.shape[1]
    check_indices(cache_index, None, rows, f"[{op}] expected cache_index")
    lead, (n, d, hckv), dr = token_x.shape[:-1], weight_uk.shape, rope_cos.shape[-1]
    dtype = weight_uk.dtype
    compute = torch.promote_types(dtype, torch.float32)
    quantized, full = weight_uq_qr.dtype == torch.int8, token_x.dtype == torch.int8
    x = token_x.reshape(-1, weight_dq.shape[0])
    cos, sin = (t.to(compute).reshape(-1, 1, dr) for t in (rope_cos, rope_sin))

    def product(rows, weight, row_scale, column_scale):
        if row_scale is None:
            return rows.to(compute) @ weight.to(compute)
        exact = (rows.double() @ weight.double()).to(compute)  # sums of int8 products
        return exact * row_scale.to(compute).reshape(-1, 1) * column_scale.to(compute).reshape(-1)

    row_scale = scales["dequant_scale_x"]
    c = product(x, weight_dq, row_scale, scales["dequant_scale_w_dq"])
    c = c if full else c.to(dtype).to(compute)
    cq = _rms_norm(c, rmsnorm_gamma_cq, rmsnorm_epsilon_cq)
    if quantized:
        if scales["smooth_scales_cq"] is not None:
            cq = cq * scales["smooth_scales_cq"].to(compute).reshape(-1)
        divisor, scale = _divisor(cq)
        u = product((cq / divisor).round(), weight_uq_qr, scale, scales["dequant_scale_w_uq_qr"])
    else:
        u = (cq.to(dtype).to(compute) @ weight_uq_qr.to(compute)).to(dtype).to(compute)
    u = u.reshape(-1, n, d + dr)
    nope = u[..., :d].to(dtype).to(compute)
    query = torch.einsum("tnd,ndh->tnh", nope, weight_uk.to(compute)).to(dtype)
    query_rope = _rope(u[..., d:], cos, sin).to(dtype)
    query_scale = torch.ones(1, dtype=torch.float32, device=x.device)
    kv_scale = scales["quant_scale_ckv"]
    if full and kv_scale is not None:
        kv_scale = kv_scale.reshape(-1)[:1].expand(hckv)
        divisor, query_scale = _divisor(query.to(compute))
        query = (query.to(compute) / divisor).round().clamp(-128, 127).to(torch.int8)
        query_rope = (query_rope.to(compute) * kv_scale[0] / divisor).to(dtype)
        query_scale = query_scale.to(torch.float32)

    h = product(x, weight_dkv_kr, row_scale, scales["dequant_scale_w_dkv_kr"])
    kc = _rms_norm(h[:, :hckv], rmsnorm_gamma_ckv, rmsnorm_epsilon_ckv)
    kr = _rope(h[:, None, hckv:], cos, sin).reshape(-1, dr)
    slots, page, fractal = cache_index.reshape(-1), kv_cache.shape[1], cache_mode == "PA_NZ"
    kr_scale = scales["quant_scale_ckr"]
    return (
        query.reshape(*lead, n, hckv),
        query_rope.reshape(*lead, n, dr),
        store(kv_cache, kc, slots, page, fractal, None if kv_scale is None else kv_scale.flatten()),
        store(kr_cache, kr, slots, page, fractal, None if kr_scale is None else kr_scale.flatten()),
        query_scale,
    )


def body(b, call, tensors):
    """Build the five outputs; ``tensors`` are the node inputs by name."""
    t = dict(tensors)
    dtype, full = call.dtype("weight_uk"), call.dtype("token_x") == "int8"
    quantized = call.dtype("weight_uq_qr") == "int8"
    kv_scale, kr_scale = t["quant_scale_ckv"], t["quant_scale_ckr"]
    uk_shape = b.Shape(t["weight_uk"])
    n, d, hckv = (b.Slice(uk_shape, [i], [i + 1]) for i in range(3))
    dr = b.Slice(b.Shape(t["rope_cos"]), [-1], [2**62])
    lead = b.Slice(b.Shape(t["token_x"]), [0], [-1])
    x = b.Reshape(t["token_x"], b.Concat([-1], b.Slice(b.Shape(t["weight_dq"]), [0], [1]), axis=0))
    table_shape = b.Concat([-1, 1], dr, axis=0)
    cos, sin = (
        b.Reshape(b.Cast(t[name], to="float32"), table_shape) for name in ("rope_cos", "rope_sin")
    )

    def wide(value):
        return b.Cast(value, to="float32")

    def rounded(value):
        return wide(b.Cast(value, to=dtype))

    def integers(rows, weight, row_scale, column_scale):
        sums = wide(b.MatMulInteger(rows, weight))
        scaled = b.Mul(sums, b.Reshape(row_scale, [-1, 1]))
        return b.Mul(scaled, b.Reshape(column_scale, [-1]))

    def project(weight, column_scale):
        if full:
            return integers(x, t[weight], t["dequant_scale_x"], t[column_scale])
        return b.MatMul(wide(x), wide(t[weight]))

    def rms_norm(value, gamma, epsilon):
        mean = b.ReduceMean(b.Mul(value, value), [-1], keepdims=1)
        rstd = b.Reciprocal(b.Sqrt(b.Add(mean, call.attrs[epsilon])))
        return b.Mul(b.Mul(value, rstd), wide(t[gamma]))

    def rope(value):
        q1, q2 = b.Slice(value, [0], [2**62], [2], [2]), b.Slice(value, [1], [2**62], [2], [2])
        turned = b.Mul(b.Concat(b.Neg(q2), q1, axis=2), sin)
        return b.Add(b.Mul(b.Concat(q1, q2, axis=2), cos), turned)

    def divisor(rows):
        scale = b.Div(b.ReduceMax(b.Abs(rows), [-1], keepdims=1), 127.0)
        return b.Where(b.Equal(scale, 0.0), b.const(1.0, "float32"), scale), scale

    c = project("weight_dq", "dequant_scale_w_dq")
    cq = rms_norm(c if full else rounded(c), "rmsnorm_gamma_cq", "rmsnorm_epsilon_cq")
    if quantized:
        if t["smooth_scales_cq"] is not None:
            cq = b.Mul(cq, b.Reshape(t["smooth_scales_cq"], [-1]))
        by, scale = divisor(cq)
        rows = b.Cast(b.Round(b.Div(cq, by)), to="int8")
        u = integers(rows, t["weight_uq_qr"], scale, t["dequant_scale_w_uq_qr"])
    else:
        u = rounded(b.MatMul(rounded(cq), wide(t["weight_uq_qr"])))
    u = b.Reshape(u, b.Concat([-1], n, b.Add(d, dr), axis=0))
    nope = rounded(b.Slice(u, [0], d, [2]))
    # Not Transpose and MatMul: for zero tokens, onnxruntime's fused form divides by zero.
    query = b.Einsum(nope, wide(t["weight_uk"]), equation="tnd,ndh->tnh")
    query = b.Cast(query, to=dtype)
    query_rope = b.Cast(rope(b.Slice(u, d, [2**62], [2])), to=dtype)
    query_scale = b.const([1.0], "float32")
    if full and kv_scale is not None:
        kv_scale = b.Slice(b.Reshape(kv_scale, [-1]), [0], [1])
        by, query_scale = divisor(wide(query))
        query = b.Cast(b.Clip(b.Round(b.Div(wide(query), by)), -128.0, 127.0), to="int8")
        query_rope = b.Cast(b.Div(b.Mul(wide(query_rope), kv_scale), by), to=dtype)

    h = project("weight_dkv_kr", "dequant_scale_w_dkv_kr")
    kc = rms_norm(b.Slice(h, [0], hckv, [1]), "rmsnorm_gamma_ckv", "rmsnorm_epsilon_ckv")
    pairs = b.Unsqueeze(b.Slice(h, hckv, [2**62], [1]), [1])
    kr = b.Squeeze(rope(pairs), [1])
    slots = b.Reshape(t["cache_index"], [-1, 1])

    def stored(name, values, scale):
        page = b.Squeeze(b.Slice(b.Shape(t[name]), [1], [2]), [0])
        fractal = call.attrs["cache_mode"] == "PA_NZ"
        scale = None if scale is None else b.Reshape(scale, [-1])
        return body_store(b, call.dtype(name), t[name], values, slots, page, fractal, scale)

    return (
        b.Reshape(query, b.Concat(lead, n, hckv, axis=0), allowzero=1),
        b.Reshape(query_rope, b.Concat(lead, n, dr, axis=0), allowzero=1),
        stored("kv_cache", kc, kv_scale),
        stored("kr_cache", kr, kr_scale),
        query_scale,
    )


def _int8(make, *shape):
    return make.ints(*shape, low=-128, high=128, dtype="int8")


def inputs(
    make, *lead, he=48, hcq=40, n=3, d=24, hckv=32, dr=32, blocks=4, page=4, mode="A", slots=None
):
    """Return the arguments of one call by name, for a quantization mode A to E."""
    tokens = 1
    for size in lead:
        tokens *= size
    quantized, full, int8_cache = mode != "A", mode in "DE", mode in "CE"
    # Weights keep activations near one, as a trained model's do.
    weight = _int8 if full else (lambda make, k, n: make(k, n, scale=k**-0.5))
    up = n * (d + dr)
    index = make.permutation(blocks * page)[:tokens] if slots is None else slots
    found = {
        "token_x": _int8(make, *lead, he) if full else make(*lead, he),
        "weight_dq": weight(make, he, hcq),
        "weight_uq_qr": _int8(make, hcq, up) if quantized else weight(make, hcq, up),
        "weight_uk": make(n, d, hckv, scale=d**-0.5),
        "weight_dkv_kr": weight(make, he, hckv + dr),
        "rmsnorm_gamma_cq": make.uniform(hcq, low=0.5, high=1.5),
        "rmsnorm_gamma_ckv": make.uniform(hckv, low=0.5, high=1.5),
        "rope_sin": make.uniform(*lead, dr, low=-1.0),
        "rope_cos": make.uniform(*lead, dr, low=-1.0),
        "cache_index": index.reshape(lead),
        "kv_cache": _int8(make, blocks, page, 1, hckv)
        if int8_cache
        else make(blocks, page, 1, hckv),
        "kr_cache": _int8(make, blocks, page, 1, dr) if mode == "C" else make(blocks, page, 1, dr),
    }

    def scale(*shape, low, high):
        return make.uniform(*shape, low=low, high=high, dtype="float32")

    if quantized:
        found["dequant_scale_w_uq_qr"] = scale(1, up, low=1e-3, high=3e-3)
    if full:
        found["dequant_scale_x"] = scale(tokens, 1, low=5e-3, high=2e-2)
        found["dequant_scale_w_dq"] = scale(1, hcq, low=1e-3, high=3e-3)
        found["dequant_scale_w_dkv_kr"] = scale(1, hckv + dr, low=1e-3, high=3e-3)
    if int8_cache:
        found["quant_scale_ckv"] = scale(1, hckv, low=20.0, high=60.0)
    if mode == "C":
        found["quant_scale_ckr"] = scale(1, dr, low=20.0, high=60.0)
    return found


def samples(make, modes, has_query_scale):
    """Yield the sample calls of both versions."""
    known = [
        [[[1.1767, 1.96116]]],
        [[[1.80427, 1.09825]]],
        [[[[0.632454, 1.26491]]]],
        [[[[-2.6, 3.2]]]],
    ]
    yield Sample(
        make.tensor([[1.0, 2.0]]),
        make.tensor([[1.0, 0.0], [1.0, 1.0]]),
        make.tensor([[1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 1.0, -1.0]]),
        make.tensor([[[1.0, 1.0], [0.0, 1.0]]]),
        make.tensor([[1.0, 0.0, 1.0, 2.0], [0.0, 1.0, 0.0, 1.0]]),
        *(make.tensor([1.0, 1.0]), make.tensor([1.0, 1.0])),
        *(make.tensor([[0.8, 0.8]]), make.tensor([[0.6, 0.6]])),
        make.tensor([0], "int64"),
        *(make.tensor([[[[7.0, 7.0]]]]), make.tensor([[[[7.0, 7.0]]]])),
        id="catalogue",
        expect=[*known, [1.0]] if has_query_scale else known,
    )
    for mode in modes:
        kwargs = inputs(make, 5, mode=mode)
        if mode in "BD":
            kwargs["smooth_scales_cq"] = make.uniform(1, 40, low=0.5, high=2.0, dtype="float32")
        yield Sample(**kwargs, id=f"mode_{mode.lower()}")
        nz = inputs(make, 2, 3, mode=mode)
        yield Sample(**nz, cache_mode="PA_NZ", id=f"mode_{mode.lower()}_batched_nz")
    skipped = make.tensor([3, -1, 0], "int64")
    yield Sample(**inputs(make, 3, slots=skipped), rmsnorm_epsilon_cq=0.1, id="not_stored")
    yield Sample(**inputs(make, 1, n=1, hckv=17, dr=2, page=3), id="one_token_odd_sizes")
    yield Sample(**inputs(make, 0), id="no_tokens")
    yield Sample(**inputs(make, 2, 0, mode=modes[-1]), id="empty_batch")
    yield Sample(**inputs(make, 70, n=2, he=130, hcq=70, blocks=5, page=16), id="many_tokens")
    views = inputs(make, 4)
    for name in ("weight_dq", "weight_uq_qr", "weight_dkv_kr"):
        views[name] = views[name].t().contiguous().t()
    yield Sample(**views, id="not_contiguous")


def errors(op, name, modes):
    """Add the refusals that both versions share."""

    def refuse(id, match, *, needs_values=False, mode="A", **changes):
        def make_call(make):
            made = {k: v(make) if callable(v) else v for k, v in changes.items()}
            return Sample(**(inputs(make, 5, mode=mode) | made))

        op.errors(
            make_call, match=rf"\[{name}\] expected {match}", id=id, needs_values=needs_values
        )

    refuse("cache_mode", "cache_mode PA_BSND or PA_NZ, got 'BNSD'", cache_mode="BNSD")
    refuse("token_rank", r"token_x of shape \[T, He\] or", token_x=lambda make: make(48))
    refuse("token_width", r"token_x of shape \[5, 48\], got", token_x=lambda make: make(5, 47))
    refuse("heads", r"weight_uq_qr of shape \[40, 168\]", weight_uq_qr=lambda make: make(40, 112))
    refuse("weight_rank", "weight_dq of shape .He, Hcq.", weight_dq=lambda make: make(1, 48, 40))
    refuse("gamma_rank", r"rmsnorm_gamma_cq of", rmsnorm_gamma_cq=lambda make: make(1, 40))
    refuse("rope_rank", "rope_sin of shape", rope_sin=lambda make: make(1, 5, 32))
    refuse("odd_rope", "rope_cos of an even width", rope_cos=lambda make: make(5, 31))
    refuse("cache_width", r"kr_cache of shape", kr_cache=lambda make: make(4, 4, 1, 30))
    refuse("cache_blocks", "kv_cache and kr_cache of as", kr_cache=lambda make: make(3, 4, 1, 32))
    refuse("index_shape", r"cache_index of shape \[5\]", cache_index=lambda make: make.ints(4))
    refuse(
        "index_too_large",
        r"cache_index in \[0, 16\), got 16",
        cache_index=lambda make: make.tensor([0, 1, 2, 3, 16], "int64"),
        needs_values=True,
    )
    refuse(
        "smooth_without_int8",
        "no smooth_scales_cq without an int8 weight_uq_qr",
        smooth_scales_cq=lambda make: make(40, dtype="float32"),
    )
    refuse("scale_missing", "dequant_scale_w_uq_qr in", mode="B", dequant_scale_w_uq_qr=None)
    refuse(
        "one_cache_scale", "quant_scale_ckr in|kr_cache of dtype", mode="C", quant_scale_ckr=None
    )
    refuse(
        "scale_size",
        "dequant_scale_w_uq_qr of 168 elements",
        mode="B",
        dequant_scale_w_uq_qr=lambda make: make(167, dtype="float32"),
    )
    refuse(
        "cache_dtype",
        "kv_cache of dtype int8",
        mode="C",
        kv_cache=lambda make: make(4, 4, 1, 32),
    )
    if "D" in modes:
        refuse(
            "half_full",
            "weight_dq of dtype int8",
            mode="D",
            weight_dq=lambda make: make(48, 40),
        )
