"""RoiAlign and its gradient in torch: samples are gathered along rows, then along columns."""

import math

from onnxruntime_npu.opdef import check, is_traced, torch, wide

MOST_SAMPLES = 4096
_MOST_BINS = 1 << 16


def check_arguments(op, rois, pooled_height, pooled_width, sample_num, roi_end_mode):
    """Refuse what npu_roi_align and its gradient do not take."""
    check(
        rois.dim() == 2 and rois.shape[1] == 5,
        f"[{op}] expected rois of shape [n, 5], got {list(rois.shape)}",
    )
    check(
        0 < pooled_height <= _MOST_BINS and 0 < pooled_width <= _MOST_BINS,
        f"[{op}] expected pooled_height and pooled_width from 1 to {_MOST_BINS}, "
        f"got {pooled_height} and {pooled_width}",
    )
    check(
        sample_num <= MOST_SAMPLES,
        f"[{op}] expected at most {MOST_SAMPLES} for sample_num, got {float(sample_num):g}",
    )
    check(
        roi_end_mode in (0, 1, 2),
        f"[{op}] expected roi_end_mode 0, 1 or 2, got {roi_end_mode}",
    )


def _samples(op, start, length, bins, samples, extent):
    """Return positions below and above, the part of the one above, and which samples count."""
    size = length / bins
    wanted = samples if samples > 0 else size
    check(
        wanted <= MOST_SAMPLES,
        f"[{op}] expected regions of at most {MOST_SAMPLES} samples a bin and axis, got more; "
        "pass a positive sample_num",
    )
    count = max(math.ceil(wanted), 0)
    numbers = torch.arange(bins * count, dtype=torch.float64)
    within = (numbers % max(count, 1) + 0.5) * size / max(count, 1)
    position = start + torch.div(numbers, max(count, 1), rounding_mode="floor") * size + within
    counts = (position >= -1) & (position <= extent) & torch.tensor(extent > 0)
    position = torch.where(counts, position, 0.0).clamp(0, max(extent - 1, 0))
    low = position.floor().to(torch.int64)
    return low, (low + 1).clamp(max=max(extent - 1, 0)), position - low, counts


def _blend(values, axis, samples, bins):
    """Return the mean of each bin along an axis."""
    low, high, part, counts = (s.to(values.device) for s in samples)
    shape = [1] * values.dim()
    shape[axis] = -1
    part, counts = part.to(values.dtype).reshape(shape), counts.reshape(shape)
    if not low.numel() or not values.shape[axis]:
        sizes = list(values.shape)
        sizes[axis] = bins
        return values.new_zeros(sizes) + values.flatten()[:0].sum()
    below, above = values.index_select(axis, low), values.index_select(axis, high)
    sampled = torch.where(counts, (1 - part) * below + part * above, 0.0)
    return sampled.unflatten(axis, (bins, -1)).mean(axis + 1)


def pool(op, features, rois, scale, height, width, samples, mode):
    """Return [n, C, height, width] of the features [B, C, H, W] in the regions [n, 5]."""
    features = wide(features)
    batch, channels, rows, columns = features.shape
    empty = features.new_zeros(rois.shape[0], channels, height, width)
    if is_traced(rois):
        return empty
    empty = empty + features.flatten()[:0].sum()  # 0, and a function of the features
    pooled = []
    offset, end = (0.5, 0) if mode == 2 else (0.0, mode)
    for image, x1, y1, x2, y2 in rois.detach().double().tolist():
        if not 0 <= image < batch:
            pooled.append(empty[0])
            continue
        x1, y1 = x1 * scale - offset, y1 * scale - offset
        w, h = (x2 + end) * scale - offset - x1, (y2 + end) * scale - offset - y1
        if mode < 2:  # in this order, so that NaN stays
            w, h = (1.0 if side < 1 else side for side in (w, h))
        down = _samples(op, y1, h, height, samples, rows)
        across = _samples(op, x1, w, width, samples, columns)
        pooled.append(_blend(_blend(features[int(image)], 1, down, height), 2, across, width))
    return torch.stack(pooled) if pooled else empty


def spread(op, gradient, rois, shape, *how):
    """Return the gradient of pool's features of that shape."""
    grad = wide(gradient)
    zeros = grad.new_zeros(shape)
    if is_traced(rois):
        return zeros
    _, pullback = torch.func.vjp(lambda features: pool(op, features, rois, *how), zeros)
    return pullback(grad)[0]
