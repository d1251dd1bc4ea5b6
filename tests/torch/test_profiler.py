"""``torch_npu.profiler`` and torch's own: npu launches next to the CPU's operators."""

import gzip
import json
import os
import time

import pytest
import torch
from onnxruntime_npu import npu, profiler
from onnxruntime_npu.profiler import ProfilerActivity, dynamic_profile

BOTH = [ProfilerActivity.CPU, ProfilerActivity.NPU]
# torch converts ticks to the system clock, which may be slewed by up to 500 ppm: pauses of twice
# this value can be distinguished from the work between them in tests of up to 20 s.
SLEW_US = 10_000
# Microseconds since an epoch, in doubles.
ROUNDING_US = 0.01
OPERATORS = ["aten::mm", "aten::relu", "aten::exp"]


def exported(profile, folder):
    path = folder / "trace.json"
    profile.export_chrome_trace(path)
    return json.loads(path.read_text())


def of(trace, category):
    return [event for event in trace["traceEvents"] if event.get("cat") == category]


@pytest.fixture
def x():
    made = torch.rand(64, 64).npu()
    npu.synchronize()
    return made


def test_trace_shows_kernels_at_the_time_they_ran(x, tmp_path):
    side = npu.Stream()
    x.sigmoid()
    npu.synchronize()
    with profiler.profile(activities=BOTH) as profile:
        x @ x
        time.sleep(0.02)
        before = time.time_ns() / 1000
        with npu.stream(side):
            x.relu()
        side.synchronize()
        after = time.time_ns() / 1000
        time.sleep(0.02)
        x.exp()
    x.tanh()
    trace = exported(profile, tmp_path)

    kernels = {event["name"]: event for event in of(trace, "kernel")}
    assert list(kernels) == ["Gemm", "Relu", "Exp"]  # not Sigmoid, not Tanh
    first, relu, last = kernels.values()
    assert relu["tid"] == side.stream_id != first["tid"] == last["tid"]
    assert {event["pid"] for event in kernels.values()} == {0}
    assert all(event["dur"] >= 0 for event in kernels.values())
    started = relu["ts"] + trace["baseTimeNanoseconds"] / 1000
    assert before - SLEW_US <= started <= started + relu["dur"] <= after + SLEW_US

    launches = {event["args"]["correlation"]: event for event in of(trace, "privateuse1_runtime")}
    operators = {event["args"]["External id"]: event for event in of(trace, "cpu_op")}
    for kernel, operator in zip(kernels.values(), OPERATORS, strict=True):
        launch = launches[kernel["args"]["correlation"]]
        assert launch["ts"] <= kernel["ts"]
        cause = operators[kernel["args"]["External id"]]
        assert cause["name"] == operator
        assert cause["ts"] - SLEW_US <= launch["ts"] <= cause["ts"] + cause["dur"] + SLEW_US
        assert launch["tid"] == cause["tid"] and launch["pid"] == cause["pid"]

    arrows = of(trace, "ac2g")
    assert sorted(event["ph"] for event in arrows) == ["f"] * 3 + ["s"] * 3
    names = {
        (event["pid"], event["args"].get("name") or event["args"].get("labels"))
        for event in trace["traceEvents"]
        if event["name"] in ("process_name", "process_labels")
    }
    assert (0, "NPU 0") in names and not any("GPU" in str(name) for _, name in names)


def test_single_activity_kind(x, tmp_path):
    with profiler.profile(activities=[ProfilerActivity.NPU]) as profile:
        x.relu()
    trace = exported(profile, tmp_path)
    assert [event["name"] for event in of(trace, "kernel")] == ["Relu"]
    assert not of(trace, "cpu_op")
    with profiler.profile(activities=[ProfilerActivity.CPU]) as profile:
        x.relu()
    trace = exported(profile, tmp_path)
    assert not of(trace, "kernel") and of(trace, "cpu_op")
    assert profiler.supported_activities() == set(BOTH)


def test_torch_profiler_attributes_kernel_times(x):
    x.requires_grad_()
    with torch.profiler.profile(activities=BOTH, profile_memory=True) as profile:
        (x @ x).sum().backward()
    averages = {event.key: event for event in profile.key_averages()}
    assert averages["aten::mm"].self_device_time_total > 0
    assert averages["Gemm"].count == 3  # one forward, two backward on autograd's thread
    times = averages["Gemm"].self_device_time_total
    # The same times, possibly added in another order.
    assert averages["aten::mm"].self_device_time_total >= times * (1 - 1e-9) > 0
    assert averages["aten::mm"].device_memory_usage >= 64 * 64 * 4
    assert "Self NPU" in profile.key_averages().table()


def test_trace_has_session_launches_and_graph_replays(x, tmp_path):
    onnx = pytest.importorskip("onnx")
    ort = pytest.importorskip("onnxruntime")
    graph = npu.NPUGraph()
    with npu.graph(graph):
        x.relu()
    a, b = (onnx.helper.make_tensor_value_info(name, 1, [3]) for name in "ab")
    node = onnx.helper.make_node("Sigmoid", ["a"], ["b"])
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node], "one", [a], [b]),
        opset_imports=[onnx.helper.make_opsetid("", 18)],
        ir_version=10,
    )
    session = ort.InferenceSession(model.SerializeToString(), providers=["NPUExecutionProvider"])
    given = {"a": torch.ones(3).numpy()}
    session.run(None, given)
    with profiler.profile(activities=BOTH) as profile:
        graph.replay()
        session.run(None, given)
    trace = exported(profile, tmp_path)
    (replay,) = (event for event in of(trace, "gpu_user_annotation") if event["name"] == "graph")
    kernels = {event["name"]: event for event in of(trace, "kernel")}
    relu, sigmoid = kernels["Relu"], kernels["Sigmoid"]
    assert replay["tid"] == relu["tid"] == npu.current_stream()._stream.id != sigmoid["tid"]
    assert replay["ts"] <= relu["ts"]
    end = relu["ts"] + relu["dur"]
    assert end <= replay["ts"] + replay["dur"] + ROUNDING_US
    assert {event["id"] for event in of(trace, "ac2g") if event["ph"] == "f"} == {
        event["args"]["correlation"] for event in of(trace, "privateuse1_runtime")
    }


def test_schedule_selects_the_recorded_steps(x, tmp_path):
    schedule = profiler.schedule(wait=1, warmup=1, active=2, repeat=2, skip_first=1)
    handler = profiler.tensorboard_trace_handler(str(tmp_path / "made"), "worker")
    with profiler.profile(schedule=schedule, on_trace_ready=handler) as profile:
        for _ in range(11):
            x.relu()
            profile.step()
    files = sorted((tmp_path / "made").glob("worker.*.pt.trace.json"))
    assert len(files) == 2
    for file, steps in zip(files, ([3, 4], [7, 8]), strict=True):
        trace = json.loads(file.read_text())
        marked = [event["name"] for event in of(trace, "user_annotation")]
        assert marked == [f"ProfilerStep#{step}" for step in steps]
        assert [event["name"] for event in of(trace, "kernel")] == ["Relu", "Relu"]
    profiler.analyse(tmp_path)
    with pytest.warns(UserWarning, match="does not run"):
        profile.step()


def test_schedule_returns_the_action_of_each_step():
    schedule = profiler.schedule(wait=1, warmup=1, active=2, repeat=1, skip_first=2)
    action = profiler.ProfilerAction
    cycle = [action.NONE, action.WARMUP, action.RECORD, action.RECORD_AND_SAVE]
    assert [schedule(step) for step in range(8)] == [action.NONE] * 2 + cycle + [action.NONE] * 2
    with pytest.warns(UserWarning, match=r"expected active >= 1, got 0; 1 is used"):
        assert profiler.schedule(wait=0, warmup=0, active=0)(5) is action.RECORD_AND_SAVE
    with pytest.raises(ValueError, match="expected step >= 0, got -1"):
        schedule(-1)


def test_trace_has_marks_and_metadata(tmp_path):
    # Stacks count whole microseconds and omit shorter operators: enough work for hundreds.
    x = torch.rand(1024, 1024).npu()
    npu.synchronize()
    config = profiler._ExperimentalConfig(mstx=True, mstx_domain_exclude=["secret"])
    profile = profiler.profile(activities=BOTH, experimental_config=config, with_stack=True)
    profile.add_metadata("text", 'a "word"')
    with profile:
        with npu.mstx.annotate("range", npu.current_stream()):
            x.relu()
            npu.mstx.mark("not this", domain="secret")
        profile.add_metadata_json("numbers", "[1, 2]")
    trace = exported(profile, tmp_path)
    assert (trace["text"], trace["numbers"]) == ('a "word"', [1, 2])
    (relu,), (operator,) = (
        of(trace, "kernel"),
        [event for event in of(trace, "cpu_op") if event["name"] == "aten::relu"],
    )
    marks = {event["ph"]: event for event in trace["traceEvents"] if event["name"] == "range"}
    assert sorted(marks) == ["b", "e", "i"]
    assert marks["b"]["ts"] - SLEW_US <= operator["ts"] <= marks["e"]["ts"] + SLEW_US
    assert (marks["i"]["pid"], marks["i"]["tid"]) == (relu["pid"], relu["tid"])
    assert "not this" not in {event["name"] for event in trace["traceEvents"]}
    profile.export_stacks(str(tmp_path / "stacks"), "self_npu_time_total")
    assert "test_profiler.py" in (tmp_path / "stacks").read_text()

    profile.export_chrome_trace(tmp_path / "again.json.gz")
    with gzip.open(tmp_path / "again.json.gz", "rt") as file:
        assert json.load(file) == trace


def test_kernel_error_ends_the_profile_and_keeps_the_trace(x, tmp_path):
    profile = profiler.profile(activities=BOTH)
    with pytest.raises(RuntimeError, match=r"\[GatherND\] expected an index"), profile:
        x[torch.tensor([99]).npu()]
    assert "GatherND" in [event["name"] for event in of(exported(profile, tmp_path), "kernel")]
    with profiler.profile(activities=BOTH) as profile:
        x.relu()
    assert [event["name"] for event in of(exported(profile, tmp_path), "kernel")] == ["Relu"]


def test_npu_profile_leaves_kernel_error_to_next_synchronize(x, tmp_path):
    with npu.profile(tmp_path / "trace.json"):
        x[torch.tensor([99]).npu()]
    with pytest.raises(RuntimeError, match=r"\[GatherND\] expected an index"):
        npu.synchronize()


def test_only_one_profile_at_a_time(x, tmp_path):
    with npu.profile(tmp_path / "other.json"):
        with pytest.raises(RuntimeError, match="a profile runs already"):
            profiler.profile(activities=BOTH).start()
        x.relu()
    launches = json.loads((tmp_path / "other.json").read_text())["traceEvents"]
    assert [event["name"] for event in launches if event["ph"] == "X"] == ["Relu"]
    with (
        profiler.profile(activities=BOTH),
        pytest.raises(RuntimeError, match="a profile runs already"),
        npu.profile(tmp_path / "other.json"),
    ):
        pass
    profile = profiler._KinetoProfile(activities=BOTH)
    profile.start()
    x.relu()
    profile.stop()
    assert len(of(exported(profile, tmp_path), "kernel")) == 1


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"activities": []}, ValueError, r"expected activities of ProfilerActivity"),
        ({"activities": ["NPU"]}, ValueError, r"got \['NPU'\]"),
        ({"schedule": 3}, TypeError, "expected schedule to be callable, got 3"),
        ({"on_trace_ready": "dir"}, TypeError, "expected on_trace_ready to be callable"),
        ({"experimental_config": 1}, TypeError, "_ExperimentalConfig, got int"),
    ],
)
def test_wrong_arguments_are_reported(options, error, match):
    with pytest.raises(error, match=match):
        profiler.profile(**options)


def test_wrong_uses_are_reported(x, tmp_path):
    profile = profiler.profile(activities=BOTH)
    with pytest.raises(RuntimeError, match="expected a profile that recorded"):
        profile.export_chrome_trace(tmp_path / "trace.json")
    with pytest.raises(ValueError, match=r"ends in \.json, got 'trace'"):
        profile.export_chrome_trace("trace")
    with pytest.raises(ValueError, match=r"expected JSON, got '\{'"):
        profile.add_metadata_json("key", "{")
    with pytest.raises(TypeError, match="expected a str, got int"):
        profile.add_metadata("key", 3)
    with pytest.raises(ValueError, match="expected a folder with traces"):
        profiler.analyse(tmp_path)


def test_ascend_options_are_checked_and_stored():
    config = profiler._ExperimentalConfig(
        profiler_level=profiler.ProfilerLevel.Level1,
        l2_cache=True,
        export_type=[profiler.ExportType.Text, profiler.ExportType.Db],
        host_sys=[profiler.HostSystem.CPU],
    )
    assert config.aic_metrics is profiler.AiCMetrics.PipeUtilization and config.l2_cache
    assert config.export_type == ["text", "db"]
    for options, match in (
        ({"profiler_level": 7}, "expected profiler_level to be one of ProfilerLevel, got 7"),
        ({"l2_cache": "yes"}, "expected l2_cache to be a bool, got 'yes'; False is used"),
        ({"export_type": ["xml"]}, "expected export_type to be a list of ExportType"),
        ({"gc_detect_threshold": -1}, "expected gc_detect_threshold to be a number >= 0"),
        ({"aic_metrics": profiler.AiCMetrics.Memory}, "aic_metrics needs Level1 or Level2"),
        ({"mstx_domain_include": ["a"]}, "domains of marks need mstx=True"),
    ):
        with pytest.warns(UserWarning, match=match):
            profiler._ExperimentalConfig(**options)
    assert profiler.supported_profiler_level() == set(profiler.ProfilerLevel)


@pytest.fixture
def watched(tmp_path, monkeypatch):
    """Initialises dynamic_profile; returns a function that changes its file."""
    monkeypatch.setattr(dynamic_profile, "_state", None)
    dynamic_profile.init(tmp_path)
    file = tmp_path / "profiler_config.json"

    def ask(**changes):
        wanted = {"prof_dir": str(tmp_path / "made"), **changes}
        before = file.stat().st_mtime_ns
        file.write_text(json.dumps({**json.loads(file.read_text()), **wanted}))
        # File times may have a resolution of 4 ms or 1 s: set a later time with each change.
        os.utime(file, ns=(0, before + 1_000_000_000))

    return ask


def test_config_file_starts_a_profile_of_running_training(x, tmp_path, watched):
    def train(steps):
        for _ in range(steps):
            x.relu()
            dynamic_profile.step()
        return [
            [event["name"] for event in of(json.loads(file.read_text()), "kernel")]
            for file in sorted((tmp_path / "made").glob("*.json"))
        ]

    assert train(3) == []
    watched(start_step=5, active=2, warmup=1, metadata={"run": 7})
    assert train(1) == []
    assert train(6) == [["Relu", "Relu"]]  # steps 7 and 8
    (file,) = (tmp_path / "made").glob("*.json")
    assert json.loads(file.read_text())["run"] == 7
    watched(start_step=-1, active=1, warmup=0, activities=["NPU"])
    assert train(4) == [["Relu", "Relu"], ["Relu"]]
    watched(start_step=0)
    assert len(train(3)) == 2
    dynamic_profile.start()
    assert len(train(3)) == 3
    with pytest.warns(UserWarning, match="runs already"):
        dynamic_profile.start()
        dynamic_profile.start()
    train(2)


def test_invalid_config_file_is_reported(watched, monkeypatch, tmp_path):
    dynamic_profile.set_state({"cur_step": 9})
    for changes, match in (
        ({"active": 0}, "expected active >= 1, got 0"),
        ({"active": 1, "activities": ["GPU"]}, "expected activities of CPU and NPU"),
        ({"activities": ["CPU"], "start_step": 3}, "expected start_step >= 12, the current step"),
    ):
        watched(**changes)
        with pytest.warns(UserWarning, match=match):
            dynamic_profile.step()
    with pytest.warns(UserWarning, match="init was called before"):
        dynamic_profile.init(tmp_path)
    with pytest.raises(ValueError, match="expected cur_step >= 0, got -1"):
        dynamic_profile.set_state({"cur_step": -1})
    monkeypatch.setattr(dynamic_profile, "_state", None)
    with pytest.raises(RuntimeError, match=r"expected init\(path\) before"):
        dynamic_profile.step()


def test_the_profiler_of_autograd_measures_operators_by_events(x, capfd):
    graph = npu.NPUGraph()
    large = x.repeat(16, 16)  # whole microseconds count
    with torch.autograd.profiler.profile(use_device="npu") as profile:
        large.relu() @ large
        with npu.graph(graph):
            x.exp()
    times = {event.key: event.device_time_total for event in profile.key_averages()}
    assert times["aten::mm"] > 0 and times["aten::relu"] > 0
    assert times["aten::exp"] == 0  # captured, not run
    assert "Exception in RecordFunction callback" not in capfd.readouterr().err


@pytest.mark.parametrize("kineto", [True, False])
def test_tables_are_sorted_by_the_columns_of_npu(x, kineto, capfd):
    if kineto:
        profile = torch.profiler.profile(profile_memory=True)
    else:
        profile = torch.autograd.profiler.profile(use_device="npu", profile_memory=True)
    with profile:
        for _ in range(3):
            (x @ x).relu()
    events = profile.key_averages()
    for column in (
        "npu_time",
        "npu_time_total",
        "self_npu_time_total",
        "npu_memory_usage",
        "self_npu_memory_usage",
    ):
        plain = column.replace("npu", "device")
        assert events.table(sort_by=column) == events.table(sort_by=plain)
        assert [getattr(e, column) for e in events] == [getattr(e, plain) for e in events]
    assert max(event.npu_time_total for event in events) > 0
    assert max(event.self_npu_memory_usage for event in events) > 0
    single = profile.events() if kineto else profile.function_events
    assert {event.npu_time_total_str for event in single} != {"0.000us"}
    capfd.readouterr()


def test_stacks_are_exported_by_the_time_of_npu(x, tmp_path):
    verbose = torch._C._profiler._ExperimentalConfig(verbose=True)  # else torch keeps no stacks
    with torch.profiler.profile(with_stack=True, experimental_config=verbose) as profile:
        x @ x
    path = tmp_path / "stacks"
    profile.export_stacks(str(path), "self_npu_time_total")
    with_cuda = tmp_path / "cuda"
    profile.export_stacks(str(with_cuda), "self_cuda_time_total")
    assert path.read_text() == with_cuda.read_text() != ""
    with pytest.raises(ValueError, match="metric should be one of"):
        profile.export_stacks(str(path), "self_tpu_time_total")
