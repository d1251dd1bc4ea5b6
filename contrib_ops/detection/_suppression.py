"""Greedy non-maximum suppression, in torch."""

from onnxruntime_npu.opdef import check, is_traced, torch

MOST = 2**31 - 1  # indices are int32


def check_overlap(op, name, threshold):
    """Refuse a threshold of intersection over union outside [0, 1]."""
    check(0 <= threshold <= 1, f"[{op}] expected {name} from 0 to 1, got {float(threshold):g}")


def check_count(op, name, count):
    """Refuse what is not a number of boxes."""
    check(
        0 <= count <= MOST and count == int(count),
        f"[{op}] expected {name} to be a whole number from 0 to {MOST}, got {float(count):g}",
    )


def overlaps(corners, threshold, floor=0.0, ties=False):
    """Return [n, n]: which boxes overlap which by more than the threshold, or as much with ties.

    corners: x1, y1, x2, y2 or y1, x1, y2, x2, each [n], in order; a box without area or with NaN
    overlaps none.
    """
    a, b = [c[:, None] for c in corners], [c[None] for c in corners]
    width = torch.minimum(a[2], b[2]) - torch.maximum(a[0], b[0])
    height = torch.minimum(a[3], b[3]) - torch.maximum(a[1], b[1])
    areas = (corners[2] - corners[0]) * (corners[3] - corners[1])
    both = width * height
    union = (areas[:, None] + areas[None] - both).clamp(min=floor)
    exceeds = torch.ge if ties else torch.gt
    return (width > 0) & (height > 0) & exceeds(both / union, threshold)


def keep_greedily(suppresses, candidates):
    """Return which candidates remain, [n] bool, when each that does removes those behind it.

    suppresses: [n, n], by descending score; of a trace only the shape counts.
    """
    keep = candidates.clone()
    if not is_traced(keep):
        for i in range(keep.shape[0]):
            if keep[i]:
                keep[i + 1 :] &= ~suppresses[i, i + 1 :]
    return keep
