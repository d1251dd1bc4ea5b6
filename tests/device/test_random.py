"""The generators' API, with and without torch."""

import numpy as np
import pytest
from onnxruntime_npu import npu

pytestmark = pytest.mark.usefixtures("restored_state")


@pytest.fixture
def restored_state():
    states = npu.get_rng_state_all()
    yield
    npu.set_rng_state_all(states)


def as_list(state):
    return [int(x) for x in state]


def test_generator_offset_can_be_set():
    npu.manual_seed(11)
    npu._set_rng_state_offset(100)
    assert npu._get_rng_state_offset() == 100 and npu.initial_seed() == 11
    npu.manual_seed(11)
    assert npu._get_rng_state_offset() == 0


def test_seeding_resets_the_offset_and_seed_is_readable():
    npu.manual_seed(1234)
    assert npu.initial_seed() == 1234
    state = as_list(npu.get_rng_state())
    assert len(state) == 16
    assert state == [210, 4] + [0] * 14
    npu.manual_seed_all(99)
    assert npu.initial_seed() == 99
    npu.manual_seed("7")
    assert npu.initial_seed() == 7
    for bad in ("x", None):
        with pytest.raises((TypeError, ValueError)):
            npu.manual_seed(bad)


def test_states_can_be_restored_and_copied():
    npu.manual_seed(5)
    saved = npu.get_rng_state("npu:0")
    npu.seed()
    assert npu.initial_seed() != 5
    npu.set_rng_state(saved, 0)
    assert npu.initial_seed() == 5
    saved[0] = 77
    assert npu.initial_seed() == 5
    states = npu.get_rng_state_all()
    assert len(states) == npu.device_count()
    npu.seed_all()
    npu.set_rng_state_all(states)
    assert as_list(npu.get_rng_state()) == as_list(states[0])


def test_wrong_state_is_refused():
    with pytest.raises((TypeError, RuntimeError)):
        npu.set_rng_state(np.zeros(16, dtype=np.float32))
    with pytest.raises(RuntimeError, match="16"):
        npu.set_rng_state(npu.get_rng_state()[:8])
    with pytest.raises(AssertionError, match="Invalid device id"):
        npu.get_rng_state(99)


def test_each_device_has_its_own_generator(run_python):
    code = """
from onnxruntime_npu import npu
with npu.device(1):
    npu.manual_seed(11)
npu.manual_seed(22)
assert npu.initial_seed() == 22
with npu.device(1):
    assert npu.initial_seed() == 11
npu.seed_all()
a, b = (bytes(bytearray(s)) for s in npu.get_rng_state_all())
assert a == b
print("ok")
"""
    assert run_python(code, ORT_NPU_DEVICE_COUNT="2") == (0, "ok\n")


def test_states_are_real_where_torch_traces():
    torch = pytest.importorskip("torch")
    state = npu.get_rng_state()
    npu.manual_seed(5)
    with torch._subclasses.FakeTensorMode():
        traced = npu.get_rng_state()
        npu.set_rng_state(state)
    assert as_list(traced)[0] == 5
    assert as_list(npu.get_rng_state()) == as_list(state)
