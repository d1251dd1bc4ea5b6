"""Means and standard deviations of box deltas: torch_npu has an argument for each number."""

FOUR_MEANS_AND_STDS = ", ".join(f"float {name}{k}" for name in ("means", "stds") for k in range(4))


def four(attributes, name):
    """Return the four numbers of means or stds."""
    return [attributes[f"{name}{k}"] for k in range(4)]
