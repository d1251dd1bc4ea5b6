"""Rules that differ between generations of devices: which one holds, by ORT_NPU_GENERATION.

The variable is read once, as the runtime reads it; a function body keeps the rule of its export.
"""

import os

_SETTING = os.environ.get("ORT_NPU_GENERATION") or None
if _SETTING not in (None, "older", "newest"):
    raise ValueError(
        f"environment variable ORT_NPU_GENERATION: expected older or newest, got '{_SETTING}'"
    )


def is_newest():
    """Whether the newest generation's rule is asked for, in the place of an older default."""
    return _SETTING == "newest"


def is_older():
    """Whether the older generations' rule is asked for, in the place of a newer default."""
    return _SETTING == "older"
