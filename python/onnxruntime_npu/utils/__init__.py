"""``torch_npu.utils``: combined tensors, asynchronous saving, FLOP counts, thread affinity."""

from __future__ import annotations

from ..npu.utils import get_cann_version as get_cann_version
from . import collect_env as collect_env
from .affinity import reset_thread_affinity as reset_thread_affinity
from .affinity import set_thread_affinity as set_thread_affinity
from .combined_tensors import get_part_combined_tensor as get_part_combined_tensor
from .combined_tensors import is_combined_tensor_valid as is_combined_tensor_valid
from .combined_tensors import npu_combine_tensors as npu_combine_tensors
from .flops_counter import FlopsCounter as FlopsCounter
from .save_async import save_async as save_async
