"""Devices and generators."""

import warnings

import pytest
from onnxruntime_npu import _C, npu

from row_calls import calls


@calls("npu.init", "npu.is_initialized")
def _(c, name):
    npu.init()
    assert npu.is_initialized()


@calls("npu.is_available", "npu.device_count", "npu.current_device")
def _(c, name):
    assert npu.is_available() and npu.device_count() >= 1 and npu.current_device() == 0


@calls("npu.get_device_name", "npu.get_device_properties")
def _(c, name):
    assert npu.get_device_properties("npu:0").name == npu.get_device_name(0)
    assert npu.get_device_properties().total_memory > 0


@calls("npu.can_device_access_peer")
def _(c, name):
    assert npu.can_device_access_peer(0, 0) is False


@calls("npu.set_device", "npu.device", "npu.device_of")
def _(c, name):
    if name == "set_device":
        npu.set_device(0)
    elif name == "device":
        with npu.device("npu:0") as entered:
            assert entered.idx == 0 and npu.current_device() == 0
    else:
        with npu.device_of(object()) as entered:
            assert entered.idx == -1


@calls("npu.current_blas_handle", "npu.get_device_capability", "npu.aclnn.version")
def _(c, name):
    with pytest.warns(UserWarning):
        assert getattr(npu.aclnn if name == "version" else npu, name)() is None


@calls("npu.set_sync_debug_mode", "npu.get_sync_debug_mode")
def _(c, name):
    with pytest.warns(UserWarning, match="prototype"):
        npu.set_sync_debug_mode("error")
    assert npu.get_sync_debug_mode() == 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        npu.set_sync_debug_mode("default")
    assert npu.get_sync_debug_mode() == 0


@calls("npu.utilization")
def _(c, name):
    assert 0 <= npu.utilization() <= 100


@calls("npu.ipc_collect", "npu.synchronize")
def _(c, name):
    assert getattr(npu, name)() is None


@calls("npu.stress_detect")
def _(c, name):
    assert npu.stress_detect("aic") == 0


@calls("npu.stop_device", "npu.restart_device")
def _(c, name):
    address = c.block()
    assert npu.stop_device(0) == 0
    with pytest.raises(RuntimeError, match="FORCE STOP"):
        _C.fill(0, address, 1, 8)
    npu.restart_device(0)
    _C.fill(0, address, 1, 8)
    assert _C.copy_to_host(0, address, 8) == b"\1" * 8


@calls("npu.check_uce_in_memory")
def _(c, name):
    assert npu.check_uce_in_memory(0) == 0


@calls(
    "npu.get_rng_state",
    "npu.set_rng_state",
    "npu.get_rng_state_all",
    "npu.set_rng_state_all",
    "npu.manual_seed",
    "npu.manual_seed_all",
    "npu.initial_seed",
)
def _(c, name):
    npu.manual_seed_all(3)
    npu.manual_seed(42)
    state, states = npu.get_rng_state(), npu.get_rng_state_all()
    npu.manual_seed(1)
    npu.set_rng_state(state)
    assert npu.initial_seed() == 42
    npu.manual_seed(1)
    npu.set_rng_state_all(states)
    assert npu.initial_seed() == 42


@calls("npu.seed", "npu.seed_all")
def _(c, name):
    seeds = set()
    for _ in range(3):
        getattr(npu, name)()
        seeds.add(npu.initial_seed())
    assert len(seeds) == 3
