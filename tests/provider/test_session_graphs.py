"""Provider option enable_npu_graph: runs captured once and replayed."""

from __future__ import annotations

import gc
import itertools
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnxruntime as ort
import onnxruntime_npu
import pytest
from onnx import TensorProto, helper
from onnxruntime_npu import _C, npu
from provider_models import add_model, left_to_the_cpu, make_model, npu_session

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
HEADS, SIZE, CAPACITY = 4, 16, 48


class Bound:
    """A session's inputs and outputs, bound once in NPU memory."""

    def __init__(
        self,
        session: ort.InferenceSession,
        inputs: Mapping[str, np.ndarray],
        outputs: Mapping[str, Sequence[int]],
        graph: int = 0,
    ) -> None:
        self._session, self._graph = session, graph
        self.inputs = {k: onnxruntime_npu.ortvalue_from_numpy(v) for k, v in inputs.items()}
        self.outputs = {
            k: onnxruntime_npu.ortvalue_from_numpy(np.full(shape, np.nan, np.float32))
            for k, shape in outputs.items()
        }
        self._binding = session.io_binding()
        for name, value in self.inputs.items():
            self._binding.bind_ortvalue_input(name, value)
        for name, value in self.outputs.items():
            self._binding.bind_ortvalue_output(name, value)

    def run(self, **changed: np.ndarray) -> list[np.ndarray]:
        """Write new content to the bound inputs, run, and read the outputs."""
        for name, array in changed.items():
            ort.copy_tensors([ort.OrtValue.ortvalue_from_numpy(array)], [self.inputs[name]])
        options = ort.RunOptions()
        options.add_run_config_entry("gpu_graph_id", str(self._graph))
        self._session.run_with_iobinding(self._binding, options)
        return [onnxruntime_npu.ortvalue_to_numpy(v) for v in self.outputs.values()]


def launches(run) -> list[str]:
    onnxruntime_npu._C.start_launch_trace()
    run()
    return [span[0] for span in onnxruntime_npu._C.stop_launch_trace() if span[0] != "copy"]


def test_replays_read_current_input_values(rng):
    session = npu_session(add_model(), enable_npu_graph="1")
    x, y = rng.standard_normal((2, 3, 4), dtype=np.float32)
    bound = Bound(session, {"x": x, "y": y}, {"z": [3, 4]})
    for _ in range(4):
        (z,) = bound.run(x=x, y=y)
        np.testing.assert_array_equal(z, (x + y) * y)
        x, y = y, rng.standard_normal((3, 4), dtype=np.float32)


def test_replay_is_one_launch():
    session = npu_session(add_model(), enable_npu_graph="1")
    one = np.ones((3, 4), np.float32)
    bound = Bound(session, {"x": one, "y": one}, {"z": [3, 4]})
    for _ in range(2):  # the first run captures, and replays
        assert launches(bound.run) == ["Add", "Mul", "graph"]  # its nodes end before the graph does
    plain = Bound(session, {"x": one, "y": one}, {"z": [3, 4]}, graph=-1)
    assert launches(plain.run) == ["Add", "Mul"]


def test_each_graph_id_has_its_own_graph(rng):
    session = npu_session(add_model(), enable_npu_graph="1")
    bounds = []
    for number, rows in enumerate([3, 1, 5]):
        x = rng.standard_normal((rows, 4), dtype=np.float32)
        bounds.append((x, Bound(session, {"x": x, "y": x}, {"z": [rows, 4]}, graph=number)))
    for x, bound in [*bounds, *reversed(bounds)]:
        np.testing.assert_array_equal(bound.run()[0], (x + x) * x)


def test_evicted_graphs_are_captured_again(rng):
    session = npu_session(add_model(), enable_npu_graph="1")
    x = rng.standard_normal((2, 4), dtype=np.float32)
    bounds = [Bound(session, {"x": x, "y": x}, {"z": [2, 4]}, graph=n) for n in range(70)]
    for bound in [*bounds, *bounds]:
        x = x + 1
        np.testing.assert_array_equal(bound.run(x=x, y=x)[0], (x + x) * x)


def attention_model() -> bytes:
    """Static-cache attention whose lengths are inputs of the model."""
    cache = [1, HEADS, CAPACITY, SIZE]
    node = helper.make_node(
        "NPUFusedInferAttentionScore",
        ["query", "key", "value", "", "", "", "lengths"],
        ["out", ""],
        "attention",
        domain="npu",
        num_heads=HEADS,
        input_layout="BNSD",
        scale=0.25,
    )
    return make_model(
        [node],
        [
            ("query", FLOAT, [1, HEADS, 1, SIZE]),
            ("key", FLOAT, cache),
            ("value", FLOAT, cache),
            ("lengths", INT64, [1]),
        ],
        [("out", FLOAT, [1, HEADS, 1, SIZE])],
    )


@pytest.fixture
def attention(rng):
    arrays = {
        "query": rng.standard_normal((1, HEADS, 1, SIZE), dtype=np.float32),
        "key": rng.standard_normal((1, HEADS, CAPACITY, SIZE), dtype=np.float32),
        "value": rng.standard_normal((1, HEADS, CAPACITY, SIZE), dtype=np.float32),
    }
    session = npu_session(attention_model(), enable_npu_graph="1")
    first = {**arrays, "lengths": np.array([1])}
    return arrays, Bound(session, first, {"out": [1, HEADS, 1, SIZE]})


def test_lengths_are_read_at_each_replay(attention):
    arrays, bound = attention
    plain = npu_session(attention_model())
    for length in (1, 7, CAPACITY, 0, 30):
        expected = plain.run(None, {**arrays, "lengths": np.array([length])})
        np.testing.assert_array_equal(bound.run(lengths=np.array([length])), expected)


@pytest.mark.parametrize("length", [CAPACITY + 1, -1, 2**62])
def test_bad_length_fails_only_its_own_replay(attention, length):
    _, bound = attention
    good = bound.run(lengths=np.array([5]))
    with pytest.raises(Exception, match=rf"expected actual_seq_lengths_kv in \[0, {CAPACITY}\]"):
        bound.run(lengths=np.array([length]))
    np.testing.assert_array_equal(bound.run(lengths=np.array([5])), good)


def test_failing_first_run_captures_nothing(attention):
    _, bound = attention
    for _ in range(2):
        with pytest.raises(Exception, match="expected actual_seq_lengths_kv"):
            bound.run(lengths=np.array([CAPACITY + 1]))
    assert np.isfinite(bound.run(lengths=np.array([5]))[0]).all()


def test_values_in_host_memory_are_refused(rng):
    session = npu_session(add_model(), enable_npu_graph="1")
    x = rng.standard_normal((3, 4), dtype=np.float32)
    refusal = r"\[graph\] expected inputs and outputs bound in NPU memory, got one in host memory"
    with pytest.raises(Exception, match=refusal):
        session.run(None, {"x": x, "y": x})
    binding = session.io_binding()
    for name in ("x", "y"):
        binding.bind_ortvalue_input(name, onnxruntime_npu.ortvalue_from_numpy(x))
    binding.bind_output("z", "cpu")
    with pytest.raises(Exception, match=refusal):
        session.run_with_iobinding(binding)
    options = ort.RunOptions()
    options.add_run_config_entry("gpu_graph_id", "-1")
    np.testing.assert_array_equal(session.run(None, {"x": x, "y": x}, options)[0], (x + x) * x)


def slice_model() -> bytes:
    """The end is the value of an input, which a replay would not read."""
    return make_model(
        [helper.make_node("Slice", ["x", "starts", "ends"], ["y"], "part")],
        [("x", FLOAT, ["n"]), ("ends", INT64, [1])],
        [("y", FLOAT, ["m"])],
        {"starts": np.array([0])},
    )


def test_host_input_that_is_not_a_shape_is_refused():
    npu_session(slice_model())
    with pytest.raises(Exception, match=r"enable_npu_graph expected .* got 'ends' of Slice 'part'"):
        npu_session(slice_model(), enable_npu_graph="1")


def test_host_computed_shapes_can_be_captured(rng):
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"], "shape"),
        helper.make_node("Slice", ["shape", "zero", "one"], ["rows"], "rows"),
        helper.make_node("Concat", ["rows", "rest"], ["wanted"], "wanted", axis=0),
        helper.make_node("Reshape", ["x", "wanted"], ["flat"], "flat"),
        helper.make_node("Neg", ["flat"], ["y"], "neg"),
    ]
    model = make_model(
        nodes,
        [("x", FLOAT, ["n", 2, 3])],
        [("y", FLOAT, ["n", 6])],
        {"zero": np.array([0]), "one": np.array([1]), "rest": np.array([-1])},
    )
    session = npu_session(model, enable_npu_graph="1")
    x = rng.standard_normal((5, 2, 3), dtype=np.float32)
    bound = Bound(session, {"x": x}, {"y": [5, 6]})
    for _ in range(3):
        np.testing.assert_array_equal(bound.run(x=x)[0], -x.reshape(5, 6))
        x = x + 1


def test_nodes_on_the_cpu_are_refused_by_name():
    nodes = [
        helper.make_node("Neg", ["x"], ["a"], "neg"),
        left_to_the_cpu("a", "b"),
        helper.make_node("Neg", ["b"], ["y"], "back"),
    ]
    model = make_model(nodes, [("x", FLOAT, [2, 3])], [("y", FLOAT, [2, 3])])
    with pytest.raises(Exception, match=r"enable_npu_graph expected .*Normalizer 'left'"):
        npu_session(model, enable_npu_graph="1")


@pytest.mark.usefixtures("still_memory")
def test_memory_is_held_until_the_graph_is_released(rng):
    before = onnxruntime_npu.npu.memory_allocated()
    x = rng.standard_normal((64, 4), dtype=np.float32)
    for _ in range(3):
        session = npu_session(add_model(), enable_npu_graph="1")
        bound = Bound(session, {"x": x, "y": x}, {"z": [64, 4]})
        other = npu_session(add_model())
        for _ in range(3):
            np.testing.assert_array_equal(bound.run()[0], (x + x) * x)
            other.run(None, {"x": x + 1, "y": x})  # would overwrite memory that the graph freed
        del session, bound, other
        gc.collect()
    assert onnxruntime_npu.npu.memory_allocated() == before


def test_memory_of_destroyed_graphs_returns_to_the_device(rng):
    x = rng.standard_normal((64, 4), dtype=np.float32)

    def reserved_after(session: ort.InferenceSession, graphs: int) -> int:
        for graph in range(graphs):
            Bound(session, {"x": x, "y": x}, {"z": [64, 4]}, graph).run()
        return onnxruntime_npu.npu.memory_reserved()

    session = npu_session(add_model(), enable_npu_graph="1")
    full = reserved_after(session, 64)
    assert reserved_after(session, 80) <= full
    del session
    gc.collect()
    before = onnxruntime_npu.npu.memory_reserved()
    for _ in range(5):
        session = npu_session(add_model(), enable_npu_graph="1")
        reserved_after(session, 1)
        del session
        gc.collect()
    assert onnxruntime_npu.npu.memory_reserved() <= before


def chain_model() -> bytes:
    """Four intermediate values of 4 MiB and a small result."""
    names = ["x", "a", "b", "c", "d"]
    nodes = [helper.make_node("Tanh", [i], [o], o) for i, o in itertools.pairwise(names)]
    nodes.append(helper.make_node("ReduceSum", ["d", "axes"], ["y"], "y", keepdims=0))
    shapes = [("x", FLOAT, [1024, 1024])], [("y", FLOAT, [1024])]
    return make_model(nodes, *shapes, {"axes": np.array([1])})


def test_graphs_of_a_session_share_temporary_memory(rng):
    session = npu_session(chain_model(), enable_npu_graph="1")
    x = rng.standard_normal((1024, 1024), dtype=np.float32)
    expected = npu_session(chain_model()).run(None, {"x": x})[0]
    bounds = [Bound(session, {"x": x}, {"y": [1024]}, graph=n) for n in range(6)]
    before = npu.memory_reserved()
    bounds[0].run()
    one = npu.memory_reserved() - before
    assert one > 0
    for bound in bounds:
        bound.run()
    assert npu.memory_reserved() - before == one
    for bound in [*bounds, *bounds]:
        np.testing.assert_array_equal(bound.run()[0], expected)


def test_dropped_output_memory_still_belongs_to_its_graph(rng):
    session = npu_session(add_model(), enable_npu_graph="1")
    x = rng.standard_normal((64, 4), dtype=np.float32)
    inputs = [onnxruntime_npu.ortvalue_from_numpy(x + n) for n in range(2)]

    def run(graph: int) -> ort.OrtValue:
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", inputs[graph])
        binding.bind_ortvalue_input("y", inputs[graph])
        binding.bind_output("z", "npu", 0)
        options = ort.RunOptions()
        options.add_run_config_entry("gpu_graph_id", str(graph))
        session.run_with_iobinding(binding, options)
        return binding.get_outputs()[0]

    run(0)  # dropped
    kept = run(1)
    expected = (x + 1 + x + 1) * (x + 1)
    np.testing.assert_array_equal(onnxruntime_npu.ortvalue_to_numpy(kept), expected)
    options = ort.RunOptions()
    options.add_run_config_entry("gpu_graph_id", "0")
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", inputs[0])
    binding.bind_ortvalue_input("y", inputs[0])
    session.run_with_iobinding(binding, options)  # replays, and writes to the memory of its output
    np.testing.assert_array_equal(onnxruntime_npu.ortvalue_to_numpy(kept), expected)


def test_released_graph_is_captured_again(rng):
    session = npu_session(add_model(), enable_npu_graph="1")
    x = rng.standard_normal((2, 4), dtype=np.float32)
    bound = Bound(session, {"x": x, "y": x}, {"z": [2, 4]}, graph=5)
    bound.run()
    session.release_captured_graph(5)
    session.release_captured_graph(5)  # no such graph: does nothing
    plain = Bound(session, {"x": x, "y": x}, {"z": [2, 4]}, graph=-1)
    np.testing.assert_array_equal(plain.run()[0], (x + x) * x)
    wider = rng.standard_normal((7, 4), dtype=np.float32)
    other = Bound(session, {"x": wider, "y": wider}, {"z": [7, 4]}, graph=5)
    for _ in range(2):  # the released graph of this id would use other memory
        np.testing.assert_array_equal(other.run()[0], (wider + wider) * wider)


@pytest.mark.usefixtures("still_memory")
def test_releasing_every_graph_frees_the_memory(rng):
    session = npu_session(chain_model(), enable_npu_graph="1")
    x = rng.standard_normal((1024, 1024), dtype=np.float32)
    bounds = [Bound(session, {"x": x}, {"y": [1024]}, graph=n) for n in range(2)]
    before = npu.memory_reserved()
    for bound in bounds:
        bound.run()
    held = npu.memory_reserved()
    session.release_captured_graph(0)
    assert npu.memory_reserved() == held
    session.release_captured_graph(1)
    assert held - before >= 4 << 20
    assert npu.memory_reserved() == before


def test_replay_runs_after_work_enqueued_by_the_caller():
    session = npu_session(add_model(), enable_npu_graph="1")
    one = np.ones((3, 4), np.float32)
    bound = Bound(session, {"x": one, "y": one}, {"z": [3, 4]})
    bound.run()
    gate, other = npu.ExternalEvent(), npu.Stream()
    gate.wait(npu.current_stream())
    _C.fill(0, bound.inputs["x"].data_ptr(), 0, one.nbytes)
    timer = threading.Timer(0.2, lambda: gate.record(other))
    timer.start()
    (z,) = bound.run()
    timer.join()
    np.testing.assert_array_equal(z, one)  # (0 + 1) * 1


@pytest.mark.parametrize("graph", ["0", "1"])
def test_run_inside_a_capture_is_refused_and_invalidates_it(graph):
    session = npu_session(add_model(), enable_npu_graph=graph)
    one = np.ones((3, 4), np.float32)
    bound = Bound(session, {"x": one, "y": one}, {"z": [3, 4]})
    for _ in range(2):  # with a graph, a capture first and then a replay
        refusal = pytest.raises(Exception, match="run of a session: run it outside")
        at_the_end = pytest.raises(RuntimeError, match="run of a session")
        with at_the_end, npu.graph(npu.NPUGraph(), stream=npu.Stream()), refusal:
            bound.run()
        np.testing.assert_array_equal(bound.run()[0], 2 * one)


def test_streamless_copy_in_capture_is_refused_and_invalidates_it():
    value = onnxruntime_npu.ortvalue_from_numpy(np.ones(4, np.float32))
    host = ort.OrtValue.ortvalue_from_numpy(np.zeros(4, np.float32))
    for illegal in (
        lambda: onnxruntime_npu.ortvalue_to_numpy(value),
        lambda: ort.copy_tensors([host], [value]),
        lambda: onnxruntime_npu.ortvalue_from_numpy(np.ones(4, np.float32)),
    ):
        refusal = pytest.raises(Exception, match="not permitted when stream is capturing")
        at_the_end = pytest.raises(RuntimeError, match="not permitted")
        with at_the_end, npu.graph(npu.NPUGraph(), stream=npu.Stream()), refusal:
            illegal()
    np.testing.assert_array_equal(onnxruntime_npu.ortvalue_to_numpy(value), np.ones(4, np.float32))


@pytest.mark.parametrize("graph", ["0", "1"])
def test_session_can_be_destroyed_while_caller_stream_is_blocked(graph, run_python):
    code = f"""
import faulthandler, sys, threading
faulthandler.dump_traceback_later(30, exit=True)
sys.path.insert(0, {str(Path(__file__).parent)!r})
import numpy as np
import onnxruntime_npu
from onnxruntime_npu import npu
from provider_models import add_model, npu_session
from test_session_graphs import Bound
one = np.ones((3, 4), np.float32)
session = npu_session(add_model(), enable_npu_graph="{graph}")
bound = Bound(session, dict(x=one, y=one), dict(z=[3, 4]))
bound.run()
gate, other = npu.ExternalEvent(), npu.Stream()
gate.wait(npu.current_stream())
del session, bound  # no other thread unblocks the stream
gate.record(other)
npu.synchronize()
print("ok")
"""
    assert run_python(code) == (0, "ok\n")


def test_runs_of_several_threads_are_serialised(rng):
    session = npu_session(add_model(), enable_npu_graph="1")
    plain = npu_session(add_model())

    def work(number: int) -> None:
        x = np.random.default_rng(number).standard_normal((9, 4), dtype=np.float32)
        bound = Bound(session, {"x": x, "y": x}, {"z": [9, 4]}, graph=number)
        for _ in range(50):
            np.testing.assert_array_equal(bound.run()[0], (x + x) * x)
            np.testing.assert_array_equal(plain.run(None, {"x": x, "y": x})[0], (x + x) * x)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
