"""Provider option enable_npu_graph: a replay with other values than those of the capture fails."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnxruntime as ort
import onnxruntime_npu
import pytest
from provider_models import add_model, npu_session

REFUSAL = r"\[graph\] expected the values that graph 0 was captured with, got {}"
SHAPE = (3, 4)


@pytest.fixture
def session() -> ort.InferenceSession:
    return npu_session(add_model(), enable_npu_graph="1")


def on_npu(fill: float, shape: tuple[int, ...] = SHAPE) -> ort.OrtValue:
    return onnxruntime_npu.ortvalue_from_numpy(np.full(shape, fill, np.float32))


def bind(session: ort.InferenceSession, **values: ort.OrtValue) -> ort.IOBinding:
    binding = session.io_binding()
    for name, value in values.items():
        if name == "z":
            binding.bind_ortvalue_output(name, value)
        else:
            binding.bind_ortvalue_input(name, value)
    return binding


def test_other_input_is_refused(session):
    x, y, z = on_npu(1), on_npu(1), on_npu(0)
    session.run_with_iobinding(bind(session, x=x, y=y, z=z))
    with pytest.raises(Exception, match=REFUSAL.format("input 'y' bound to address")):
        session.run_with_iobinding(bind(session, x=x, y=on_npu(7), z=z))
    session.run_with_iobinding(bind(session, x=x, y=y, z=z))  # the same values, of another binding
    np.testing.assert_array_equal(onnxruntime_npu.ortvalue_to_numpy(z), np.full(SHAPE, 2.0))


def test_other_output_is_refused(session):
    x, z = on_npu(1), on_npu(0)
    session.run_with_iobinding(bind(session, x=x, y=x, z=z))
    with pytest.raises(Exception, match=REFUSAL.format("output 'z' bound to address")):
        session.run_with_iobinding(bind(session, x=x, y=x, z=on_npu(0)))


def test_other_shape_at_the_same_address_is_refused(session):
    x, z = on_npu(1), on_npu(0)
    binding = bind(session, x=x, y=x, z=z)
    session.run_with_iobinding(binding)
    address = x.data_ptr()
    for _ in range(2):  # the address and the form count, not how they are bound
        binding.bind_input("x", "npu", 0, np.float32, SHAPE, address)
        session.run_with_iobinding(binding)
    binding.bind_input("x", "npu", 0, np.float32, (2, 4), address)
    with pytest.raises(Exception, match=REFUSAL.format(r"input 'x' .*\[2, 4\].*\[3, 4\]")):
        session.run_with_iobinding(binding)


def test_missing_input_is_refused(session):
    x, z = on_npu(1), on_npu(0)
    binding = bind(session, x=x, y=x, z=z)
    session.run_with_iobinding(binding)
    binding.clear_binding_inputs()
    binding.bind_ortvalue_input("x", x)
    with pytest.raises(Exception, match=REFUSAL.format("input 'y' bound to nothing")):
        session.run_with_iobinding(binding)


def test_copies_of_host_values_are_bound_once(session):
    z = on_npu(0)
    binding = bind(session, z=z)
    for name in ("x", "y"):
        binding.bind_cpu_input(name, np.ones(SHAPE, np.float32))
    for _ in range(2):
        session.run_with_iobinding(binding)
    np.testing.assert_array_equal(onnxruntime_npu.ortvalue_to_numpy(z), np.full(SHAPE, 2.0))
    binding.bind_cpu_input("x", np.zeros(SHAPE, np.float32))  # which makes another copy
    with pytest.raises(Exception, match=REFUSAL.format("input 'x' bound to a copy")):
        session.run_with_iobinding(binding)


def test_memory_of_allocated_outputs_belongs_to_one_binding(session):
    def allocating() -> ort.IOBinding:
        binding = bind(session, x=x, y=x)
        binding.bind_output("z", "npu", 0)
        return binding

    x = on_npu(1)
    first = allocating()
    for _ in range(2):
        session.run_with_iobinding(first)
        (z,) = first.get_outputs()
        np.testing.assert_array_equal(onnxruntime_npu.ortvalue_to_numpy(z), np.full(SHAPE, 2.0))
    with pytest.raises(Exception, match=REFUSAL.format("output 'z' bound to memory that its run")):
        session.run_with_iobinding(allocating())


ONE = np.ones(SHAPE, np.float32)
UNBOUND: dict[str, Callable[[ort.InferenceSession, ort.RunOptions | None], object]] = {
    "run": lambda s, o: s.run(None, {"x": ONE, "y": ONE}, o),
    "run_with_ort_values": lambda s, o: s.run_with_ort_values(
        None, {"x": on_npu(1), "y": on_npu(1)}, o
    ),
    "run_async": lambda s, o: s.run_async(None, {"x": ONE, "y": ONE}, lambda *_: None, None, o),
}


@pytest.mark.parametrize("name", UNBOUND)
def test_values_that_nobody_bound_are_refused(session, name):
    x, z = on_npu(1), on_npu(0)
    session.run_with_iobinding(bind(session, x=x, y=x, z=z))
    with pytest.raises(Exception, match=r"\[(graph|run_async)\] expected"):
        UNBOUND[name](session, None)
    options = ort.RunOptions()
    options.add_run_config_entry("gpu_graph_id", "-1")
    UNBOUND[name](session, options)  # runs without a graph
    onnxruntime_npu.npu.synchronize()


def test_released_graph_is_captured_with_other_values(session):
    x, three, z, other = on_npu(1), on_npu(3), on_npu(0), on_npu(0)
    session.run_with_iobinding(bind(session, x=x, y=x, z=z))
    session.release_captured_graph(0)
    for _ in range(2):
        session.run_with_iobinding(bind(session, x=three, y=x, z=other))
        session.release_captured_graph(0)
    np.testing.assert_array_equal(onnxruntime_npu.ortvalue_to_numpy(other), np.full(SHAPE, 4.0))


def test_other_graph_takes_other_values(session):
    one, three = on_npu(1), on_npu(3)
    outputs = [on_npu(0), on_npu(0)]
    options = [ort.RunOptions(), ort.RunOptions()]
    bindings = [bind(session, x=x, y=one, z=z) for x, z in zip((one, three), outputs, strict=True)]
    for number, option in enumerate(options):
        option.add_run_config_entry("gpu_graph_id", str(number))
    for _ in range(2):
        for binding, option in zip(bindings, options, strict=True):
            session.run_with_iobinding(binding, option)
    for value, z in zip((2.0, 4.0), outputs, strict=True):
        np.testing.assert_array_equal(onnxruntime_npu.ortvalue_to_numpy(z), np.full(SHAPE, value))


def test_other_sessions_are_not_compared():
    session = npu_session(add_model())
    for value in (1.0, 2.0):
        x, z = on_npu(value), on_npu(0)
        session.run_with_iobinding(bind(session, x=x, y=x, z=z))
        expected = np.full(SHAPE, 2 * value * value)
        np.testing.assert_array_equal(onnxruntime_npu.ortvalue_to_numpy(z), expected)
