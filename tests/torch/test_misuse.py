"""Misuse raises torch's exception types with a remedy, and leaves the device usable."""

import threading

import pytest
import torch
from null_backend import computed

pytestmark = pytest.mark.no_values

npu = torch.npu


@pytest.fixture(autouse=True)
def usable_afterwards():
    yield
    assert (torch.ones(3, device="npu") + 1).sum().item() == computed(6)
    assert not npu.is_current_stream_capturing()


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.ones(2, device="npu:99"),
        lambda: torch.ones(2).npu(99),
        lambda: torch.ones(2).to("npu:99"),
        lambda: npu.set_device(99),
        lambda: torch.empty(2, device="npu").to("npu:99"),
    ],
)
def test_nonexistent_device_is_an_error(call):
    with pytest.raises(RuntimeError, match=r"invalid device ordinal 99: expected 0 to 0"):
        call()
    with pytest.raises(AssertionError, match="Invalid device id"):
        npu.get_device_properties(99)


@pytest.mark.parametrize(
    "call",
    [
        lambda a, b: a + b,
        lambda a, b: a @ b,
        lambda a, b: torch.cat([a, b]),
        lambda a, b: torch.where(a > 0, a, b),
        lambda a, b: a.index_select(0, b[0].long()),
        lambda a, b: torch.nn.functional.layer_norm(a, (4,), b[0]),
        lambda a, b: torch.nn.functional.embedding(b.long(), a),
        lambda a, b: torch.ops.npu.npu_rms_norm(a, b[0]),
    ],
)
def test_tensors_on_two_devices_in_one_operator(call):
    a, b = torch.ones(4, 4, device="npu"), torch.ones(4, 4)
    with pytest.raises((RuntimeError, ValueError), match=r"npu:0.*cpu|cpu.*npu:0|on npu"):
        call(a, b)


@pytest.mark.parametrize("address", [1, 0x1000, 2**63])
def test_foreign_pointer_is_not_freed(address):
    inside = torch.ones(1000, device="npu")
    for wrong in (address, inside.data_ptr() + 64):
        with pytest.raises(RuntimeError, match="invalid device pointer"):
            npu.caching_allocator_delete(wrong)
    block = npu.caching_allocator_alloc(100)
    npu.caching_allocator_delete(block)
    with pytest.raises(RuntimeError, match="freed before"):
        npu.caching_allocator_delete(block)
    assert inside.sum().item() == computed(1000)


def test_calls_not_allowed_in_a_capture():
    x = torch.ones(1 << 15, device="npu")
    illegal = {
        "item": lambda: x[0].item(),
        "cpu": lambda: x.cpu(),
        "nonzero": lambda: x.nonzero(),
        "synchronize": npu.synchronize,
        "replay": lambda: done.replay(),
        "fallback": lambda: torch.special.airy_ai(x[:4]),
    }
    done = npu.NPUGraph()
    with npu.graph(done):
        x + 1
    for name, call in illegal.items():
        graph = npu.NPUGraph()
        try:
            with npu.graph(graph), pytest.raises(RuntimeError, match="capturing"):
                call()
        except RuntimeError as error:
            assert "capturing" in str(error), name
        assert not npu.is_current_stream_capturing()
    done.replay()


def test_invalid_captures():
    graph = npu.NPUGraph()
    with pytest.raises(ZeroDivisionError), npu.graph(graph):
        torch.ones(2, device="npu") / (1 // 0)
    assert not npu.is_current_stream_capturing()
    with pytest.raises(RuntimeError, match="non-default stream"):
        npu.NPUGraph().capture_begin()
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        npu.NPUGraph().replay()
    stream = npu.Stream()
    with npu.stream(stream):
        first, second = npu.NPUGraph(), npu.NPUGraph()
        first.capture_begin()
        with pytest.raises(RuntimeError, match="captured or updated already"):
            second.capture_begin()
        first.capture_end()
        graph = npu.NPUGraph()
        graph.capture_begin()
        del graph  # an abandoned capture
    assert not npu.is_current_stream_capturing()


def test_empty_capture_warns():
    x = torch.ones(3)
    graph = npu.NPUGraph()
    with pytest.warns(UserWarning, match="The NPU Graph is empty"), npu.graph(graph):
        x + 1  # on the CPU
    graph.replay()


def test_captures_of_two_threads_are_independent():
    results = []
    captured, other = npu.Stream(), npu.Stream()  # two: streams come from a pool of 32, in turn

    def work():
        with npu.stream(other):
            results.append((torch.ones(4, device="npu") * 3).sum().item())

    graph = npu.NPUGraph()
    with npu.graph(graph, stream=captured, capture_error_mode="thread_local"):
        x = torch.ones(4, device="npu")
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        y = x + 1
    graph.replay()
    assert results == computed([12.0]) and y.tolist() == computed([2] * 4)


@pytest.mark.parametrize(
    "conf",
    ["max_split_size_mb", "max_split_size_mb:x", "no_such:1", "garbage_collection_threshold:2"],
)
def test_malformed_allocator_settings(conf):
    with pytest.raises((ValueError, RuntimeError)) as raised:
        npu.memory._set_allocator_settings(conf)
    assert conf.partition(":")[0] in str(raised.value)


@pytest.mark.parametrize(
    "function, message",
    [
        (torch.abs, "Found dtype Int but expected Float"),
        (torch.conj_physical, "Found dtype Int but expected Float"),
        (torch.mean, "can't be cast to the desired output type Int"),
        (torch.angle, "can't be cast to the desired output type Int"),
        (torch.isposinf, "isposinf does not support non-boolean outputs"),
        (torch.isneginf, "isneginf does not support non-boolean outputs"),
    ],
)
def test_outputs_of_another_type_are_refused(function, message):
    x, out = torch.rand(3, device="npu"), torch.empty(0, dtype=torch.int32, device="npu")
    with pytest.raises(RuntimeError, match=message):
        function(x, **({"dim": 0} if function is torch.mean else {}), out=out)


@pytest.mark.parametrize("name", ["median", "nanmedian", "kthvalue"])
def test_ranked_elements_keep_their_type(name):
    x, places = torch.rand(4, 3, device="npu"), torch.empty(0, dtype=torch.int64, device="npu")
    rank = {"k": 2} if name == "kthvalue" else {}
    with pytest.raises(RuntimeError, match="output values must be of same type as input"):
        getattr(torch, name)(x, **rank, dim=0, out=(places, places.clone()))
    with pytest.raises(RuntimeError, match="output indices must be of scalar type Long"):
        getattr(torch, name)(x, **rank, dim=0, out=(x[:0, 0].clone(), places.int()))


def test_truncated_integers_keep_their_type():
    x = torch.arange(3, device="npu")
    with pytest.raises(RuntimeError, match="Found dtype Float but expected Long"):
        torch.trunc(x, out=torch.empty(3, device="npu"))
