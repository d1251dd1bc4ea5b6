"""Inputs and conditions that the suites' tests share."""

import contextlib
import functools
import os
import statistics
import unittest

import numpy as np
import torch


def get_npu_device():
    """The device under test: ``npu:0``, or that of SET_NPU_DEVICE."""
    return f"npu:{os.environ.get('SET_NPU_DEVICE', 0)}"


def set_npu_device():
    """Makes the device under test current and returns its name."""
    device = get_npu_device()
    torch.npu.set_device(device)
    return device


def is_iterable(value):
    """Whether ``iter(value)`` works."""
    try:
        iter(value)
    except TypeError:
        return False
    return True


def create_common_tensor(item, minValue, maxValue, device=None):
    """A CPU tensor and its copy on the device; item is (numpy dtype, format or -1, shape)."""
    dtype, npu_format, shape = item[:3]
    values = np.random.uniform(minValue, maxValue, shape).astype(dtype)
    return _pair(values, npu_format, device)


def create_dtype_tensor(
    shape, dtype, npu_format=-1, min_value=-5, max_value=5, no_zero=False, device=None
):
    """As create_common_tensor, of a torch dtype: bool, float16 and float32, else int32."""
    if dtype == torch.bool:
        values = np.random.randint(0, 2, shape).astype(bool)
    elif dtype in (torch.float16, torch.float32):
        numpy_dtype = np.float16 if dtype == torch.float16 else np.float32
        values = np.random.uniform(min_value, max_value, shape).astype(numpy_dtype)
    else:
        values = np.random.randint(min_value, max_value + 1, shape).astype(np.int32)
    if no_zero:
        values = np.where(values == 0, np.ones_like(values), values)
    floating = dtype in (torch.float16, torch.float32)
    return _pair(values, npu_format if floating else -1, device)


def _pair(values, npu_format, device):
    import torch_npu

    values = np.asarray(values)
    on_npu = torch.from_numpy(values.copy()).to(device or get_npu_device())
    if npu_format != -1:
        on_npu = torch_npu.npu_format_cast(on_npu, npu_format)
    return torch.from_numpy(values), on_npu


def test_2args_broadcast(fn):
    """Results of ``fn`` on the CPU and on the device for two pairs of shapes that broadcast."""
    results = []
    for small in ((1, 1, 1), (4, 5)):
        x, x_npu = create_common_tensor((np.float32, -1, (2, 3, 4, 5)), 0, 1)
        y, y_npu = create_common_tensor((np.float32, -1, small), 0, 1)
        results.append([fn(x, y).numpy(), fn(x_npu, y_npu).cpu().numpy()])
    return results


test_2args_broadcast.__test__ = False  # not a test, despite its name


@contextlib.contextmanager
def freeze_rng_state():
    """Restores the state of the CPU generator on exit."""
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)


@functools.cache
def get_cycles_per_ms():
    """Cycles of ``torch.npu._sleep`` per millisecond, as measured."""

    def measured(cycles=1_000_000):
        start, end = (torch.npu.Event(enable_timing=True) for _ in range(2))
        start.record()
        torch.npu._sleep(cycles)
        end.record()
        end.synchronize()
        return cycles / start.elapsed_time(end)

    return statistics.mean(sorted(measured() for _ in range(10))[2:-2])


def _create_scaling_models_optimizers(
    device="npu", optimizer_ctor=torch.optim.SGD, optimizer_kwargs=None
):
    """Two equal modules, one to be trained with scaled gradients, and an optimizer of each."""
    modules = [
        torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)).to(device)
        for _ in range(2)
    ]
    modules[1].load_state_dict(modules[0].state_dict())
    kwargs = {"lr": 1.0} | (optimizer_kwargs or {})
    return *modules, *(optimizer_ctor(module.parameters(), **kwargs) for module in modules)


def _create_scaling_case(
    device="npu", dtype=torch.float, optimizer_ctor=torch.optim.SGD, optimizer_kwargs=None
):
    """Those modules and optimizers, four batches, a loss, and the batch to be skipped."""
    batches = [tuple(torch.randn(8, 8, dtype=dtype, device=device) for _ in "xy") for _ in range(4)]
    trained = _create_scaling_models_optimizers(device, optimizer_ctor, optimizer_kwargs)
    return *trained, batches, torch.nn.MSELoss().npu(), 2


def _product():
    """The name by which the suites know a product: `Ascend910B` of `Ascend910B2`."""
    name = torch.npu.get_device_name(0)
    if name.startswith("Ascend950"):
        return name[:9]
    return name[: 12 if name.startswith("Ascend910_") else 10]


class SupportedDevices:
    """Skips a test on products that are not listed."""

    def __init__(self, supported_devices):
        self.supported_devices = supported_devices

    def __call__(self, function):
        @functools.wraps(function)
        def run(test, *args, **kwargs):
            if _product() not in self.supported_devices:
                raise unittest.SkipTest(f"for {self.supported_devices}, not for {_product()}")
            return function(test, *args, **kwargs)

        return run


class SkipIfNotGteCANNVersion:
    """Skips a test if a part of CANN is missing or older than required."""

    def __init__(self, base_version, module="CANN"):
        self.base_version, self.module = base_version, module

    def __call__(self, function):
        @functools.wraps(function)
        def run(test, *args, **kwargs):
            from torch_npu.npu.utils import _is_gte_cann_version

            if not _is_gte_cann_version(self.base_version, module=self.module):
                raise unittest.SkipTest(f"needs {self.module} {self.base_version} or newer")
            return function(test, *args, **kwargs)

        return run


def check_operators_in_prof(expected_operators, prof, unexpected_operators=None):
    """Whether a profile has all of some operators and none of others; consumes the first list."""
    names = [event.key.replace("cached_", "") for event in prof.key_averages()]
    if any(name in (unexpected_operators or ()) for name in names):
        return False
    for name in names:
        if name in expected_operators:
            expected_operators.remove(name)
    return not expected_operators
