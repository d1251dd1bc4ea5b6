"""Splits latent keys and values into an RMS-normalised and a rotated part and caches both.

Source: torch_npu.npu_kv_rmsnorm_rope_cache. The caches are written in place; unlike
torch_npu's schema, this one declares it.
"""

from onnxruntime_npu.opdef import FLOATS, Sample, check, check_indices, npu_op, torch

from ._cache_rows import body_store, store
from ._rotation import rotation_tolerances

_CACHED = [*FLOATS, "int8"]
_MODES = ("Norm", "PA", "PA_BNSD", "PA_NZ", "PA_BLK_BNSD", "PA_BLK_NZ")

op = npu_op(
    "npu_kv_rmsnorm_rope_cache(Tensor kv, Tensor gamma, Tensor cos, Tensor sin, Tensor index,"
    " Tensor(a!) k_cache, Tensor(b!) ckv_cache, *, Tensor? k_rope_scale=None,"
    " Tensor? c_kv_scale=None, Tensor? k_rope_offset=None, Tensor? c_kv_offset=None,"
    " Tensor? v=None, float epsilon=1e-05, str cache_mode='Norm', bool is_output_kv=False)"
    " -> (Tensor(a!), Tensor(b!), Tensor, Tensor)",
    onnx="NPUKvRmsnormRopeCache",
    outputs=["k_cache_out", "ckv_cache_out", "k_embed", "y"],
    dtypes={
        "kv": FLOATS,
        "gamma": FLOATS,
        "cos": FLOATS,
        "sin": FLOATS,
        "index": ["int64"],
        "k_cache": _CACHED,
        "ckv_cache": _CACHED,
        "k_rope_scale": ["float32"],
        "c_kv_scale": ["float32"],
        "k_rope_offset": ["float32"],
        "c_kv_offset": ["float32"],
        "v": FLOATS,
        "k_embed": FLOATS,
        "y": FLOATS,
    },
)


def _check(condition, message):
    check(condition, f"[npu_kv_rmsnorm_rope_cache] {message}")


def _check_cache(name, cache, width, scale_name, scale, kv, mode):
    norm = mode == "Norm"
    shape = list(cache.shape)
    form = f"[B, 1, length, {width}]" if norm else f"[blocks, block_size, 1, {width}]"
    _check(
        len(shape) == 4
        and shape[1 if norm else 2] == 1
        and shape[3] == width
        and (not norm or shape[0] == kv.shape[0]),
        f"expected {name} of shape {form}, got {shape}",
    )
    if scale is None:
        _check(
            cache.dtype.is_floating_point,
            f"expected {name} of a float type without {scale_name}, got {cache.dtype}",
        )
    else:
        _check(
            cache.dtype == torch.int8,
            f"expected {name} of int8, because it is quantized, got {cache.dtype}",
        )
        _check(
            list(scale.shape) == [width],
            f"expected {scale_name} of float32 and shape {[width]}, "
            f"got {scale.dtype} {list(scale.shape)}",
        )
    d0 = 16 if scale is None else 32
    _check(
        not mode.endswith("NZ") or width % d0 == 0,
        f"expected {name} of a width that is a multiple of {d0} in an NZ cache_mode, got {width}",
    )


def _slots(index, batch, length, page, mode):
    """Return the cache row of every token; negative: not stored."""
    tokens = torch.arange(batch * length, device=index.device)
    b, s = tokens // max(length, 1), tokens % max(length, 1)
    flat = index.reshape(-1)
    if mode == "Norm":
        return b * page + flat
    if not mode.startswith("PA_BLK"):
        return flat
    base = flat[b * -(-length // page) + s // page]
    return torch.where(base < 0, base, base // page * page + s % page)


@op.reference
def reference(
    kv,
    gamma,
    cos,
    sin,
    index,
    k_cache,
    ckv_cache,
    k_rope_scale=None,
    c_kv_scale=None,
    k_rope_offset=None,
    c_kv_offset=None,
    v=None,
    epsilon=1e-05,
    cache_mode="Norm",
    is_output_kv=False,
):
    """Return both caches with new rows k and y for every token, then k and y themselves.

    Without v, kv [B, 1, S, M + R] = [r, p] gives y = rms_norm(r) * gamma [M] and k = rope(p) [R].
    With v [B, 1, S, V], kv [B, 1, S, M] gives z = rms_norm(kv) * gamma, k = [rope(z[:R]), z[R:]]
    and y = v. rope takes even elements first, then odd, and rotates halves by cos, sin
    [B, 1, S, R], which may broadcast. All in float32; k and y are rounded to kv's dtype, rows of
    a float cache to its own, and rows of int8 caches are round(row * scale) with k_rope_scale,
    c_kv_scale [width], clamped.

    cache_mode selects the row of token (b, s):
    Norm: caches [B, 1, length, width], index [B, S]: row index[b, s] of batch row b.
    PA, PA_BNSD: caches [blocks, block_size, 1, width], index [B * S]: row index[t] of all blocks.
    PA_BLK_BNSD: index [B * ceil(S / block_size)]: row s % block_size of the block that holds row
    index[b, s // block_size].
    PA_NZ, PA_BLK_NZ: the same rows, a block stored as [width / d0, block_size, d0] with d0 = 16, or
    32 in int8.
    Except for Norm, a token with a negative index is not stored. is_output_kv is accepted: k and y
    are always returned.
    """
    _check(
        cache_mode in _MODES,
        "expected cache_mode Norm, PA, PA_BNSD, PA_NZ, PA_BLK_BNSD or PA_BLK_NZ, "
        f"got '{cache_mode}'",
    )
    _check(
        k_rope_offset is None and c_kv_offset is None,
        "expected no k_rope_offset and no c_kv_offset: asymmetric quantization is not defined",
    )
    _check(
        kv.dim() == 4 and kv.shape[1] == 1,
        f"expected kv of shape [B, 1, S, D], got {list(kv.shape)}",
    )
    _check(gamma.dim() == 1, f"expected gamma of rank 1, got {list(gamma.shape)}")
    _check(
        cos.dim() == 4 and sin.dim() == 4,
        f"expected cos and sin of rank 4, got {list(cos.shape)} and {list(sin.shape)}",
    )
    batch, _, length, _ = kv.shape
    m, r = gamma.shape[0], cos.shape[3]
    width = m + r if v is None else m
    both = "gamma's and cos's width together" if v is None else "gamma's width, at least cos's"
    _check(
        kv.shape[3] == width and r % 2 == 0 and r <= width,
        f"expected kv of {both}, cos's even, got kv {list(kv.shape)}, gamma {list(gamma.shape)} "
        f"and cos {list(cos.shape)}",
    )
    tokens = [batch, 1, length, r]
    _check(
        all(t in (1, n) for x in (cos, sin) for t, n in zip(x.shape, tokens, strict=True)),
        f"expected cos and sin that broadcast to {tokens}, "
        f"got {list(cos.shape)} and {list(sin.shape)}",
    )
    _check(
        v is None or (v.dim() == 4 and list(v.shape[:3]) == tokens[:3]),
        f"expected v of shape [{batch}, 1, {length}, D], got {v is not None and list(v.shape)}",
    )
    for name, t in (("gamma", gamma), ("cos", cos), ("sin", sin), ("v", v)):
        _check(
            t is None or t.dtype == kv.dtype,
            f"expected {name} of kv's dtype {kv.dtype}, got {t is not None and t.dtype}",
        )
    _check(
        (k_rope_scale is None) == (c_kv_scale is None),
        "expected k_rope_scale and c_kv_scale both or neither",
    )
    k_width, y_width = (r, m) if v is None else (m, v.shape[3])
    _check_cache("k_cache", k_cache, k_width, "k_rope_scale", k_rope_scale, kv, cache_mode)
    _check_cache("ckv_cache", ckv_cache, y_width, "c_kv_scale", c_kv_scale, kv, cache_mode)
    _check(
        k_cache.shape[:3] == ckv_cache.shape[:3],
        f"expected k_cache and ckv_cache of as many rows, "
        f"got {list(k_cache.shape)} and {list(ckv_cache.shape)}",
    )
    page = k_cache.shape[2 if cache_mode == "Norm" else 1]
    by_block = cache_mode.startswith("PA_BLK")
    indices = batch * -(-length // page) if by_block else batch * length
    _check(
        index.numel() == indices,
        f"expected index of int64 with {indices} elements, got int64 {list(index.shape)}",
    )

    compute = torch.promote_types(kv.dtype, torch.float32)
    wide = kv.to(compute).reshape(batch * length, width)
    normed = wide[:, :m]
    mean_of_squares = normed.square().mean(-1, keepdim=True)
    normed = normed * torch.rsqrt(mean_of_squares + epsilon) * gamma.to(compute)
    pairs = wide[:, m:] if v is None else normed[:, :r]
    q1, q2 = pairs[:, ::2], pairs[:, 1::2]
    cosines, sines = (x.to(compute).expand(tokens).reshape(-1, r) for x in (cos, sin))
    k = torch.cat((q1, q2), -1) * cosines + torch.cat((-q2, q1), -1) * sines
    if v is None:
        y = normed
    else:
        k = torch.cat((k, normed[:, r:]), -1)
        y = v.to(compute).reshape(batch * length, y_width)
    rows = page if cache_mode == "Norm" else k_cache.shape[0] * page
    lowest = 0 if cache_mode == "Norm" else None
    check_indices(index, lowest, rows, "[npu_kv_rmsnorm_rope_cache] expected index")
    slots = _slots(index, batch, length, page, cache_mode)
    fractal = cache_mode.endswith("NZ")
    return (
        store(k_cache, k, slots, page, fractal, k_rope_scale),
        store(ckv_cache, y, slots, page, fractal, c_kv_scale),
        k.to(kv.dtype).reshape(batch, 1, length, k_width),
        y.to(kv.dtype).reshape(batch, 1, length, y_width),
    )


def _body_slots(b, call, kv, index, k_cache):
    """Return the cache row [T, 1] of every token and the size of a page."""
    mode = call.attrs["cache_mode"]

    def size(value, axis):
        return b.Squeeze(b.Slice(b.Shape(value), [axis], [axis + 1]), [0])

    batch, length = size(kv, 0), size(kv, 2)
    page = size(k_cache, 2 if mode == "Norm" else 1)
    zero, one = b.const(0, "int64"), b.const(1, "int64")
    flat = b.Reshape(index, [-1])
    if mode in ("PA", "PA_BNSD", "PA_NZ"):
        return b.Reshape(flat, [-1, 1]), page
    row = b.Unsqueeze(b.Range(zero, batch, one), [1])
    if mode == "Norm":
        per_row = b.Reshape(flat, b.Concat(b.Unsqueeze(batch, [0]), [-1], axis=0))
        return b.Reshape(b.Add(per_row, b.Mul(row, page)), [-1, 1]), page
    s = b.Unsqueeze(b.Range(zero, length, one), [0])
    blocks = b.Div(b.Sub(b.Add(length, page), one), page)
    base = b.Gather(flat, b.Add(b.Mul(row, blocks), b.Div(s, page)))
    place = b.Add(b.Mul(b.Div(base, page), page), b.Mod(s, page))
    return b.Reshape(b.Where(b.Less(base, zero), base, place), [-1, 1]), page


@op.function
def body(
    b,
    call,
    kv,
    gamma,
    cos,
    sin,
    index,
    k_cache,
    ckv_cache,
    k_rope_scale,
    c_kv_scale,
    k_rope_offset,
    c_kv_offset,
    v,
):
    dtype = call.dtype("kv")
    wide, weight, cosines, sines = (b.Cast(x, to="float32") for x in (kv, gamma, cos, sin))
    m, r = b.Shape(gamma), b.Slice(b.Shape(cos), [3], [4])
    normed = b.Slice(wide, [0], m, [3])
    mean_of_squares = b.ReduceMean(b.Mul(normed, normed), [3], keepdims=1)
    root = b.Sqrt(b.Add(mean_of_squares, call.attrs["epsilon"]))
    normed = b.Mul(b.Div(normed, root), weight)
    pairs = b.Slice(wide, m, [2**62], [3]) if v is None else b.Slice(normed, [0], r, [3])
    q1, q2 = b.Slice(pairs, [0], [2**62], [3], [2]), b.Slice(pairs, [1], [2**62], [3], [2])
    turned = b.Mul(b.Concat(b.Neg(q2), q1, axis=3), sines)
    k = b.Add(b.Mul(b.Concat(q1, q2, axis=3), cosines), turned)
    if v is None:
        y = normed
    else:
        k = b.Concat(k, b.Slice(normed, r, [2**62], [3]), axis=3)
        y = b.Cast(v, to="float32")
    slots, page = _body_slots(b, call, kv, index, k_cache)

    def rows(x):
        return b.Reshape(x, b.Concat([-1], b.Slice(b.Shape(x), [3], [4]), axis=0))

    def stored(name, cache, values, scale):
        fractal = call.attrs["cache_mode"].endswith("NZ")
        return body_store(b, call.dtype(name), cache, rows(values), slots, page, fractal, scale)

    return (
        stored("k_cache", k_cache, k, k_rope_scale),
        stored("ckv_cache", ckv_cache, y, c_kv_scale),
        b.Cast(k, to=dtype),
        b.Cast(y, to=dtype),
    )


def _inputs(make, batch, length, m=48, r=32):
    tables = [make.uniform(batch, 1, length, r, low=-1.0) for _ in range(2)]
    return [make(batch, 1, length, m + r), make(m), *tables]


def _int8(make, *shape):
    return make.ints(*shape, low=-128, high=128, dtype="int8")


def _scales(make, k, y):
    scales = {"k_rope_scale": k, "c_kv_scale": y}
    return {n: make.uniform(w, low=20.0, high=60.0, dtype="float32") for n, w in scales.items()}


@op.samples
def samples(make):
    yield Sample(
        make.tensor([[[[3.0, 4.0, 0.0, 0.0, 1.0, 2.0, 3.0, 4.0]]]]),
        make.tensor([1.0, 1.0, 2.0, 2.0]),
        make.tensor([[[[0.5, 0.6, 0.7, 0.8]]]]),
        make.tensor([[[[0.1, 0.2, 0.3, 0.4]]]]),
        make.tensor([3], "int64"),
        make.tensor([[[[0.0] * 4]] * 2] * 2),
        make.tensor([[[[0.0] * 4]] * 2] * 2),
        cache_mode="PA_BNSD",
        is_output_kv=True,
        id="catalogue",
        expect=[
            [[[[0.0] * 4], [[0.0] * 4]], [[[0.0] * 4], [[0.3, 1.0, 1.7, 4.4]]]],
            [[[[0.0] * 4], [[0.0] * 4]], [[[0.0] * 4], [[1.2, 1.6, 0.0, 0.0]]]],
            [[[[0.3, 1.0, 1.7, 4.4]]]],
            [[[[1.2, 1.6, 0.0, 0.0]]]],
        ],
    )
    batch, length = 2, 5
    per_row = torch.stack([make.permutation(9)[:length] for _ in range(batch)])
    caches = [make(batch, 1, 9, 32), make(batch, 1, 9, 48)]
    yield Sample(*_inputs(make, batch, length), per_row, *caches, id="norm")
    broadcast = _inputs(make, batch, length)
    broadcast[2:] = [make.uniform(1, 1, length, 32), make.uniform(1, 1, 1, 32)]
    yield Sample(*broadcast, per_row, *caches, epsilon=1e-3, id="tables_broadcast")
    paged = make.permutation(16)[: batch * length]
    paged[3] = -1
    # Three tokens fill one block and two begin the next; one block of the second row is skipped.
    by_block = make.tensor([4, 12, 9, -2], "int64")
    for mode in _MODES[1:]:
        index = by_block if mode.startswith("PA_BLK") else paged
        page = 3 if mode.startswith("PA_BLK") else 4
        shape = (16 // page, page, 1)
        yield Sample(
            *_inputs(make, batch, length),
            index,
            make(*shape, 32),
            make(*shape, 48),
            cache_mode=mode,
            is_output_kv=True,
            id=mode.lower(),
        )
        yield Sample(
            *_inputs(make, batch, length, m=64),
            index,
            _int8(make, *shape, 32),
            _int8(make, *shape, 64),
            **_scales(make, 32, 64),
            cache_mode=mode,
            id=f"{mode.lower()}_int8",
        )
    kv = make(batch, 1, length, 48)
    tables = [make.uniform(batch, 1, length, 16, low=-1.0) for _ in range(2)]
    v = make(batch, 1, length, 32)
    for mode in ("PA", "PA_NZ"):
        yield Sample(
            *(kv, make(48), *tables, paged),
            *(make(4, 4, 1, 48), make(4, 4, 1, 32)),
            v=v,
            cache_mode=mode,
            id=f"separate_v_{mode.lower()}",
        )
    yield Sample(
        *(make(1, 1, 200, 80), make(48), make(1, 1, 200, 32), make(1, 1, 200, 32)),
        make.permutation(256)[:200],
        *(make(16, 16, 1, 32), make(16, 16, 1, 48)),
        cache_mode="PA",
        id="threads",
    )
    # Caches of other types than kv's, and than each other's.
    others = [t for t in FLOATS if t != make.dtype]
    for mode in ("Norm", "PA_NZ"):
        shape = (batch, 1, 9) if mode == "Norm" else (4, 4, 1)
        yield Sample(
            *_inputs(make, batch, length),
            per_row if mode == "Norm" else paged,
            make(*shape, 32, dtype=others[0]),
            make(*shape, 48, dtype=others[1]),
            cache_mode=mode,
            id=f"other_types_{mode.lower()}",
        )
    empty = [make.ints(0), make(4, 4, 1, 32), make(4, 4, 1, 48)]
    yield Sample(*_inputs(make, 2, 0), *empty, cache_mode="PA", id="no_tokens")
    yield Sample(*_inputs(make, 0, 3), *empty, cache_mode="PA_NZ", id="empty_batch")
    one = [make.tensor([15], "int64"), *empty[1:]]
    yield Sample(*_inputs(make, 1, 1), *one, cache_mode="PA", id="one_token")


rotation_tolerances(op)


def _bad(make, **changes):
    names = ("kv", "gamma", "cos", "sin", "index", "k_cache", "ckv_cache")
    defaults = dict(zip(names, _inputs(make, 2, 3), strict=False))
    defaults |= {
        "index": make.ints(6, high=16),
        "k_cache": make(4, 4, 1, 32),
        "ckv_cache": make(4, 4, 1, 48),
        "cache_mode": "PA",
    }
    return Sample(**(defaults | changes))


op.errors(
    lambda make: _bad(make, cache_mode="BSND"),
    match=r"\[npu_kv_rmsnorm_rope_cache\] expected cache_mode Norm, PA, .* got 'BSND'",
    id="cache_mode",
)
op.errors(
    lambda make: _bad(make, index=make.tensor([0, 1, 2, 3, 4, 16], "int64")),
    match=r"\[npu_kv_rmsnorm_rope_cache\] expected index in \[0, 16\), got 16",
    needs_values=True,
    id="index_too_large",
)
op.errors(
    lambda make: _bad(make, index=make.ints(5)),
    match=r"\[npu_kv_rmsnorm_rope_cache\] expected index of int64 with 6 elements, got int64 \[5\]",
    id="index_count",
)
op.errors(
    lambda make: _bad(make, kv=make(2, 1, 3, 79)),
    match=r"\[npu_kv_rmsnorm_rope_cache\] expected kv of gamma's and cos's width together, cos's "
    r"even, got kv \[2, 1, 3, 79\], gamma \[48\] and cos \[2, 1, 3, 32\]",
    id="kv_width",
)
op.errors(
    lambda make: _bad(make, kv=make(2, 3, 80)),
    match=r"\[npu_kv_rmsnorm_rope_cache\] expected kv of shape \[B, 1, S, D\], got \[2, 3, 80\]",
    id="kv_rank",
)
op.errors(
    lambda make: _bad(make, gamma=make(1, 48)),
    match=r"\[npu_kv_rmsnorm_rope_cache\] expected gamma of rank 1, got \[1, 48\]",
    id="gamma_rank",
)
op.errors(
    lambda make: _bad(make, cos=make(3, 32)),
    match=r"\[npu_kv_rmsnorm_rope_cache\] expected cos and sin of rank 4, got \[3, 32\] and",
    id="cos_rank",
)
op.errors(
    lambda make: _bad(make, k_cache=make(4, 4, 1, 31)),
    match=r"\[npu_kv_rmsnorm_rope_cache\] expected k_cache of shape "
    r"\[blocks, block_size, 1, 32\], got \[4, 4, 1, 31\]",
    id="k_cache_shape",
)
op.errors(
    lambda make: _bad(make, ckv_cache=make(4, 5, 1, 48)),
    match=r"\[npu_kv_rmsnorm_rope_cache\] expected k_cache and ckv_cache of as many rows, got "
    r"\[4, 4, 1, 32\] and \[4, 5, 1, 48\]",
    id="cache_rows",
)
op.errors(
    lambda make: _bad(make, k_rope_scale=make(32, dtype="float32")),
    match=r"\[npu_kv_rmsnorm_rope_cache\] expected k_rope_scale and c_kv_scale both or neither",
    id="one_scale",
)
op.errors(
    lambda make: _bad(make, **_scales(make, 32, 48)),
    match=r"\[npu_kv_rmsnorm_rope_cache\] expected k_cache of int8, because it is quantized, got",
    id="cache_dtype",
)
op.errors(
    lambda make: _bad(make, ckv_cache=_int8(make, 4, 4, 1, 48)),
    match=r"\[npu_kv_rmsnorm_rope_cache\] expected ckv_cache of a float type without c_kv_scale, "
    "got .*int8",
    id="int8_cache_without_scale",
)
op.errors(
    lambda make: _bad(make, k_rope_offset=make(32, dtype="float32")),
    match=r"\[npu_kv_rmsnorm_rope_cache\] expected no k_rope_offset and no c_kv_offset",
    id="offset",
)
