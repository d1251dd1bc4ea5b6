"""Exports that fail or are interrupted leave nothing behind, and do not touch what was there."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch
from onnxruntime_npu import exporter
from onnxruntime_npu.cli import main
from onnxruntime_npu.errors import ArgumentError, ExportError
from onnxruntime_npu.exporter import causal_lm, export, export_causal_lm, tracing
from onnxruntime_npu.onnx_models.staging import staged, staged_ranks

from .conftest import tiny_model
from .test_seq2seq import tiny_model as seq2seq_model


def full_disk(*_args, **_kwargs):
    raise OSError(errno.ENOSPC, "No space left on device")


def interrupted(*_args, **_kwargs):
    raise KeyboardInterrupt


FAILURES = [(full_disk, ExportError), (interrupted, KeyboardInterrupt)]


@pytest.mark.parametrize(("fail", "error"), FAILURES)
def test_failed_export_leaves_an_earlier_one_as_it_was(tmp_path, monkeypatch, fail, error):
    out = tmp_path / "out"
    out.mkdir()
    for name in ("model.onnx", "model.onnx.data", "notes.txt"):
        (out / name).write_text("earlier")
    monkeypatch.setattr(causal_lm, "write_sampler", fail)  # after the configuration is written
    with pytest.raises(error) as raised:
        export_causal_lm(tiny_model("llama", num_hidden_layers=1), out)
    if error is ExportError:
        assert str(raised.value) == f"cannot write {out}: No space left on device"
    assert {path.name: path.read_text() for path in out.iterdir()} == {
        "model.onnx": "earlier", "model.onnx.data": "earlier", "notes.txt": "earlier",
    }  # fmt: skip


def test_what_an_earlier_export_wrote_is_gone(tmp_path):
    def write(folder, *names):
        with staged(folder, "model.onnx") as place:
            for name in names:
                (place / name).write_text(name)
            (place / "export_report.json").write_text('{"model": "tiny"}')

    out = tmp_path / "out"
    write(out, "model.onnx", "model.onnx.data", "chat_template.jinja", "genai_config.json")
    write(out / "rank_0", "model.onnx")
    write(out / "rank_1", "model.onnx")
    for mine in (out / "notes.txt", out / "rank_1" / "notes.txt"):
        mine.write_text("mine")
    with staged(out, "other.onnx") as place:  # one file, without a report: nothing is its own
        (place / "other.onnx").write_text("other")
    assert (out / "chat_template.jinja").is_file() and (out / "rank_0" / "model.onnx").is_file()
    write(out, "model.onnx", "tokenizer.json")
    report = json.loads((out / "export_report.json").read_text())
    written = ["export_report.json", "model.onnx", "tokenizer.json"]
    assert report == {"model": "tiny", "written": written}
    assert {str(path.relative_to(out)) for path in out.rglob("*")} == {
        *written, "notes.txt", "other.onnx", "rank_1", "rank_1/notes.txt",
    }  # fmt: skip


def test_what_an_earlier_export_wrote_is_gone_after_one_for_ranks(tmp_path):
    def write(folder, *names):
        for name in names:
            (folder / name).write_text(name)
        (folder / "export_report.json").write_text("{}")

    with staged(tmp_path, "model.onnx") as place:
        write(place, "model.onnx", "genai_config.json")
    with pytest.raises(ExportError), staged_ranks(tmp_path, 3, "model.onnx"):
        full_disk()
    assert (tmp_path / "model.onnx").is_file() and not [*tmp_path.glob("rank_*")]
    (tmp_path / "notes.txt").write_text("mine")
    for ranks in (3, 2):
        with staged_ranks(tmp_path, ranks, "model.onnx") as places:
            for place in places:
                write(place, "model.onnx")
        files = {
            f"rank_{rank}/{name}"
            for rank in range(ranks)
            for name in ("model.onnx", "export_report.json")
        }
        found = {path for path in tmp_path.rglob("*") if path.is_file()}
        assert {str(path.relative_to(tmp_path)) for path in found} == {*files, "notes.txt"}
        assert len([*tmp_path.glob("rank_*")]) == ranks


def test_reports_of_somebody_else_remove_nothing(tmp_path):
    (tmp_path / "kept").write_text("kept")
    given = ("", "[]", '{"written": ["../kept", 5]}', '{"written": 5}', '{"files": {"kept": 1}}')
    for text in given:
        out = tmp_path / "out"
        out.mkdir(exist_ok=True)
        (out / "kept").write_text("kept")
        (out / "export_report.json").write_text(text)
        with staged(out, "model.onnx") as place:
            (place / "export_report.json").write_text("{}")
        assert (out / "kept").is_file() and (tmp_path / "kept").is_file()


@pytest.mark.parametrize(("fail", "error"), FAILURES)
def test_failed_export_makes_no_directory(tmp_path, monkeypatch, fail, error):
    monkeypatch.setattr(tracing, "save", fail)
    with pytest.raises(error):
        export_causal_lm(tiny_model("llama", num_hidden_layers=1), tmp_path / "out")
    with pytest.raises(error):
        export(torch.nn.Linear(2, 2), (torch.ones(1, 2),), tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_disk_that_fills_up_is_an_error(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(ExportError, match=r"^cannot write .*: File too large$"):
            export(torch.nn.Linear(64, 64), (torch.ones(1, 64),), tmp_path / "model.onnx")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "code", "word"),
    [(signal.SIGTERM, 143, "terminated"), (signal.SIGHUP, 129, "its terminal was closed")],
)
def test_terminated_command_leaves_nothing(tmp_path, monkeypatch, capsys, number, code, word):
    def export_and_stop(_model, out, **_options):
        with staged(Path(out), "a") as folder:
            (folder / "b").write_text("half")
            os.kill(os.getpid(), number)
            time.sleep(60)  # the signal ends it

    monkeypatch.setattr(exporter, "export_causal_lm", export_and_stop)
    handler = signal.signal(number, signal.SIG_DFL)
    try:
        assert main(["export", "model", str(tmp_path / "out")]) == code
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, handler)
    assert capsys.readouterr().err == f"onnxruntime-npu: error: {word}\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signal_that_comes_in_a_destructor_ends_the_command(monkeypatch, capsys, number, code):
    """Python lets no exception out of it, so that the command went on as if none had come."""

    class Closing:
        def __del__(self):
            os.kill(os.getpid(), number)

    def export_and_close(_model, _out, **_options):
        Closing()
        time.sleep(60)  # the signal ends it

    monkeypatch.setattr(exporter, "export_causal_lm", export_and_close)
    handlers = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)}
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert main(["export", "model", "out"]) == code
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("step", ["moved", "removed"])
def test_signal_does_not_part_files_that_belong_together(tmp_path, monkeypatch, step):
    """It comes once the first of two files is moved, or while the temporary folder is removed."""
    owner, name = (Path, "replace") if step == "moved" else (shutil, "rmtree")
    original = getattr(owner, name)

    def and_signal(*args, **kwargs):
        os.kill(os.getpid(), signal.SIGINT)
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, and_signal)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), staged(tmp_path / "out", "a") as folder:
            for file in ("a", "b"):
                (folder / file).write_text("new")
            if step == "removed":
                raise ExportError
    finally:
        signal.signal(signal.SIGINT, handler)
    files = [] if step == "removed" else ["out", "out/a", "out/b"]
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == files


def test_signals_that_are_ignored_stay_so(monkeypatch):
    """As nohup leaves SIGHUP."""

    def hang_up(*_arguments, **_options):
        os.kill(os.getpid(), signal.SIGHUP)
        raise KeyboardInterrupt

    monkeypatch.setattr(exporter, "export_causal_lm", hang_up)
    handler = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert main(["export", "model", "out"]) == 130
    finally:
        signal.signal(signal.SIGHUP, handler)


@pytest.mark.slow
@pytest.mark.parametrize("failure", ["interrupted", "the disk is full"])
def test_export_of_several_files_leaves_none_of_them(tmp_path, monkeypatch, capsys, failure):
    """It is stopped, or the disk is full, once the first of two models is written."""
    seq2seq_model("t5", num_layers=1).save_pretrained(tmp_path / "in")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "in"))
    capsys.readouterr()
    before = sorted(tmp_path.rglob("*"))
    write, limits, written = tracing.save, resource.getrlimit(resource.RLIMIT_FSIZE), []

    def stop(model, path, data):
        if written and failure == "interrupted":
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(60)  # the signal ends it
        if written:
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
        written.append(path)
        write(model, path, data)

    monkeypatch.setattr(tracing, "save", stop)
    out = tmp_path / "new" / "out"
    # A shell that starts the tests in the background makes them ignore SIGINT.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code = main(["export-seq2seq", str(tmp_path / "in"), str(out), "--cache", "static"])
    finally:
        signal.signal(signal.SIGINT, handler)
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if line.startswith("onnxruntime-npu: error: ")] == [
        "onnxruntime-npu: error: " + (
            "interrupted" if failure == "interrupted" else f"cannot write {out}: File too large"
        )
    ]  # fmt: skip
    assert code == (130 if failure == "interrupted" else 1)
    assert "Traceback" not in "".join(lines) and written[0].name == "encoder_model.onnx"
    assert sorted(tmp_path.rglob("*")) == before


def test_model_file_is_moved_last_and_others_stay(tmp_path):
    out = tmp_path / "new" / "out"
    with staged(out, "a") as folder:
        for name in ("a", "b"):
            (folder / name).write_text("new")
        assert not out.exists()
    (out / "c").write_text("other")
    with staged(out, "a") as folder:
        (folder / "a").write_text("newer")
    assert {path.name: path.read_text() for path in out.iterdir()} == {
        "a": "newer", "b": "new", "c": "other",
    }  # fmt: skip


def test_folder_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    refused = pytest.raises(ExportError, match=r"cannot write .*out: (File exists|Not a directory)")
    with refused, staged(tmp_path / "file" / "out", "a"):
        pass


def test_place_that_cannot_be_written_to_is_found_before_the_model_is_read(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        ArgumentError, match=r"expected a directory to write to, got the file .*fil"
    ):
        export_causal_lm("nowhere", tmp_path / "file" / "new" / "out")
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)  # which root always may
    with pytest.raises(ExportError, match=r"^cannot write .*new.out: .* is not writable$"):
        export_causal_lm("nowhere", tmp_path / "new" / "out")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "name",
    ["export_causal_lm", "export_encoder", "export_seq2seq", "export_image_text_to_text"],
)
def test_directory_of_the_model_is_not_written_to(tmp_path, name):
    """The configuration of what is exported says less: a quantised model could not be read."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "link").symlink_to(tmp_path / "model")
    with pytest.raises(ArgumentError, match="expected another directory to write to than the mod"):
        getattr(exporter, name)(tmp_path / "model", tmp_path / "link")
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["config.json"]
