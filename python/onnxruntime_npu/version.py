"""``torch_npu.version``."""

from __future__ import annotations

from . import __version__ as __version__

git_version = "Unknown"
