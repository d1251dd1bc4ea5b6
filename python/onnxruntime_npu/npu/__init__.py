"""The device API: ``torch.npu`` with torch, raw memory and streams without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import errors, torch_bridge
from . import _sanitizer as _sanitizer
from . import amp as amp
from . import devices as devices
from . import legacy_types as legacy_types
from . import streams as streams
from . import utils as utils
from ._lazy import DeferredNpuCallError as DeferredNpuCallError
from ._lazy import _is_in_bad_fork as _is_in_bad_fork
from ._lazy import init as init
from ._lazy import is_initialized as is_initialized
from .amp import *  # noqa: F403
from .deterministic import *  # noqa: F403
from .devices import *  # noqa: F403
from .graphed_callables import *  # noqa: F403
from .graphs import *  # noqa: F403
from .host_memory import *  # noqa: F403
from .memory import *  # noqa: F403
from .memory import _dump_snapshot as _dump_snapshot
from .memory import _record_memory_history as _record_memory_history
from .memory import _set_allocator_settings as _set_allocator_settings
from .memory import _snapshot as _snapshot
from .mstx import *  # noqa: F403
from .options import *  # noqa: F403
from .pluggable_allocator import *  # noqa: F403
from .random import *  # noqa: F403
from .random import _get_rng_state_offset as _get_rng_state_offset
from .random import _set_rng_state_offset as _set_rng_state_offset
from .recovery import *  # noqa: F403
from .streams import ExternalEvent as ExternalEvent
from .streams import StreamContext as StreamContext
from .streams import _sleep as _sleep
from .streams import current_stream as current_stream
from .streams import default_stream as default_stream
from .streams import set_stream as set_stream
from .streams import stream as stream
from .utils import *  # noqa: F403

if TYPE_CHECKING:
    from .streams import Event as Event
    from .streams import ExternalStream as ExternalStream
    from .streams import Stream as Stream
    from .streams import SyncLaunchStream as SyncLaunchStream

_lazy_init = init  # torch_npu's name, which scripts use


def __getattr__(name: str) -> object:
    if name in streams.TORCH_CLASSES:  # replaced when torch is imported
        return getattr(streams, name)
    if name in legacy_types.NAMES:
        return legacy_types.legacy_type(name)
    if name == "OutOfMemoryError":  # the name that handlers of scripts have, as in torch.cuda
        return errors.out_of_memory_type()
    if name == "_initialized":  # torch.utils.checkpoint reads it to save random states
        return is_initialized()
    if name == "default_generators":
        return tuple(map(torch_bridge.default_generator, range(devices.device_count())))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *streams.TORCH_CLASSES, "OutOfMemoryError"])
