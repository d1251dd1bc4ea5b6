"""Position-sensitive pooling and its gradient in torch: a mask of pixels for every bin."""

from onnxruntime_npu.opdef import check, torch, wide


def check_arguments(op, rois, group_size, output_dim):
    """Refuse what the pooling and its gradient do not take."""
    check(
        rois.dim() == 3 and rois.shape[1] == 5,
        f"[{op}] expected rois of shape [B, 5, R], got {list(rois.shape)}",
    )
    check(0 < group_size < 128, f"[{op}] expected group_size from 1 to 127, got {group_size}")
    check(
        0 < output_dim < 2**31,
        f"[{op}] expected output_dim from 1 to {2**31 - 1}, got {output_dim}",
    )


def check_map(op, name, shape, group_size, output_dim):
    """Refuse a map that has not one channel for every bin of every channel of the result."""
    channels = output_dim * group_size**2
    check(
        len(shape) == 4 and shape[1] == channels,
        f"[{op}] expected {name} [N, {channels}, H, W], group_size^2 channels for each of "
        f"output_dim, got {list(shape)}",
    )


def _inside(low, high, scale, groups, extent):
    """Return [n, groups, extent]: whether a bin of a region holds a pixel, along one axis."""
    start = (low + 0.5).floor() * scale
    length = ((high + 0.5).floor() + 1) * scale - start
    size = torch.where(length < 0.1, 0.1, length) / groups
    bins = torch.arange(groups, dtype=torch.float64, device=low.device)
    first = (bins * size[:, None] + start[:, None]).floor()[..., None]
    last = ((bins + 1) * size[:, None] + start[:, None]).ceil()[..., None]
    pixels = torch.arange(extent, dtype=torch.float64, device=low.device)
    return (pixels >= first) & (pixels < last)


def bin_means(rois, scale, groups, shape, dtype):
    """Return the images of the regions, whether each is there, and what a pixel counts in a bin.

    The last has the shape [n, groups, H, groups, W]; coordinates are computed in float64.
    """
    image, x1, y1, x2, y2 = rois.double().transpose(1, 2).reshape(-1, 5).unbind(1)
    there = (image >= 0) & (image < shape[0])
    rows = _inside(y1, y2, scale, groups, shape[2])
    columns = _inside(x1, x2, scale, groups, shape[3])
    held = (rows[:, :, :, None, None] & columns[:, None, None]).to(dtype)
    area = held.sum((2, 4), keepdim=True).clamp(min=1)
    return torch.where(there, image, 0.0).to(torch.int64), there, held / area


def pool(features, rois, scale, groups, channels):
    """Return [n, channels, groups, groups]: the mean of every bin of every region."""
    features = wide(features)
    batch, _, height, width = features.shape
    shape = rois.shape[0] * rois.shape[2], channels, groups, groups
    if batch == 0:
        return features.new_zeros(shape) + features.sum()  # 0, and a function of the features
    image, there, part = bin_means(rois, scale, groups, features.shape, features.dtype)
    maps = features.reshape(batch, channels, groups, groups, height, width)[image]
    part = part.permute(0, 1, 3, 2, 4)[:, None]
    # What lies outside a bin does not count, even if it is not a number.
    sums = torch.where(part > 0, maps * part, 0.0).sum((-2, -1))
    return torch.where(there[:, None, None, None], sums, 0.0)


def spread(gradient, rois, scale, groups, channels, shape):
    """Return the gradient of pool's features of that shape."""
    grad = wide(gradient)
    zeros = grad.new_zeros(shape)
    if shape[0] == 0:
        return zeros
    image, there, part = bin_means(rois, scale, groups, shape, grad.dtype)
    part = part.permute(0, 1, 3, 2, 4)[:, None]
    grad = torch.where(there[:, None, None, None], grad, 0.0)
    spread = torch.where(part > 0, grad[..., None, None] * part, 0.0)
    spread = spread.reshape(grad.shape[0], channels * groups**2, shape[2], shape[3])
    return zeros.index_add(0, image, spread)
