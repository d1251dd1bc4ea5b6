"""The command line: exit codes, one line per failure, never a traceback."""

from __future__ import annotations

import io
import json
import logging
import os
import shutil
import subprocess
import sys

import onnxruntime_npu
import onnxruntime_npu_command
import pytest
from onnxruntime_npu import cli
from onnxruntime_npu.cli import export_commands
from onnxruntime_npu.generation import CausalLM

from .conftest import tiny_model
from .test_checkpoint import write_gguf


def run(*arguments):
    """Return the exit code of main or of argparse."""
    try:
        return cli.main([str(a) for a in arguments])
    except SystemExit as stop:
        return stop.code


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["export", "nowhere", "out"], "no such model directory: nowhere"),
        (["export", "nowhere"], "required: OUT_DIR"),
        (["export", "a", "b", "--quant", "int3"], "argument --quant: invalid choice: 'int3'"),
        (["export", "a", "b", "--cache", "ring"], "argument --cache: invalid choice: 'ring'"),
        (["export-seq2seq", "a", "b", "--cache", "paged"], "engine has no encoder-decoders"),
        (["export", "a", "b", "--kv-dtype", "fp8"], "argument --kv-dtype: invalid choice: 'fp8'"),
        (["export", "a", "b", "--dtype", "int8"], "argument --dtype: invalid choice: 'int8'"),
        (["export", "a", "b", "--opset", "7"], "expected an opset from 18 to 23, got 7"),
        (["generate", "nowhere", "--prompt", "x"], "nowhere holds no model.onnx"),
        (["generate", "nowhere"], "required: --prompt"),
        (["serve", "out", "--deadline", "0"], "expected a positive number of seconds, got 0"),
        (["serve", "out", "--max-queue", "-1"], "expected a whole number from 0, got -1"),
        (["serve", "out", "--prompt-lookup-num-tokens", "8"], "invalid choice: 8"),
        (["serve", "out", "--max-body", "0"], "expected at least 1, got 0"),
        (["serve", "out", "--cors-origin", "example.com"], "origin such as https://example.com"),
        (["serve", "out", "--cors-origin", "http://a/"], "without a path, or *, got 'http://a/'"),
        (["export", "a", ""], "argument OUT_DIR: expected a path, got an empty text"),
        (["convert", "a.onnx", ""], "argument OUT: expected a path, got an empty text"),
        (["generate", "", "--prompt", "x"], "argument OUT_DIR: expected a path"),
        (["serve", ""], "argument OUT_DIR: expected a path"),
        (["serve", "\udcff"], r"expected a path in UTF-8, got '\udcff': rename it"),
        (["export", "", "b"], "argument MODEL_DIR: expected a path, got an empty text"),
        (["run", "-m", "no_such_module"], "expected a module, got 'no_such_module'"),
        (["run", os.path.dirname(__file__)], "which has no __main__.py"),
        (["run", "-m", "no_such.part"], "expected a module, got 'no_such.part'"),
        (
            ["generate", "out", "--prompt", "x", "--greedy", "--top-k", "3"],
            "expected --greedy or --top-k, got both",
        ),
        (["fly"], "invalid choice: 'fly'"),
        ([], "required: COMMAND"),
    ],
)
def test_bad_arguments_exit_with_2_and_one_line(capsys, arguments, message):
    assert run(*arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert message in output.err
    assert output.err.count("\n") == 1


def test_unreadable_model_exits_with_1(capsys, tmp_path):
    path = write_gguf(tmp_path / "model.gguf")
    path.write_bytes(path.read_bytes()[:100])
    assert run("export", path, tmp_path / "out") == 1
    error = capsys.readouterr().err
    assert "model.gguf is damaged or cut short" in error
    assert error.count("\n") == 1


def test_export_tells_what_is_replaced_and_kept(capsys, tmp_path):
    tiny_model("starcoder2").save_pretrained(tmp_path / "in")
    capsys.readouterr()
    arguments = ("export", tmp_path / "in", tmp_path / "out", "--kv-dtype", "int8", "--no-check")
    assert run(*arguments) == 0
    first, replaced, *kept = capsys.readouterr().out.splitlines()
    assert "Starcoder2ForCausalLM, float32, cache dynamic int8" in first
    assert replaced == (
        "replaced: 4 npu_dynamic_quant, 2 npu_fused_infer_attention_score, 4 npu_rotary_mul"
    )
    assert [line.split(":")[1] for line in kept] == [" norm (5 times)", " mlp (2 times)"]
    assert "norm output: differs by" in kept[0] and "expected 'down_proj'" in kept[1]


def test_calibration_reads_lines_of_text(capsys, tmp_path):
    tiny_model("llama").save_pretrained(tmp_path / "in")
    (tmp_path / "texts").write_text("one line\n\nand another\n")
    arguments = ("export", tmp_path / "in", tmp_path / "out", "--dtype", "bfloat16")
    quantised = ("--quant", "w8a8", "--calibration", tmp_path / "texts")
    assert export_commands._lines(str(tmp_path / "texts")) == ["one line", "and another"]
    assert run(*arguments, *quantised) == 2
    assert "calibration of token ids for a model without a tokenizer" in capsys.readouterr().err
    assert run(*arguments, "--quant", "w8a8", "--calibration", tmp_path / "missing") == 2
    assert f"no such file: {tmp_path / 'missing'}" in capsys.readouterr().err
    (tmp_path / "binary").write_bytes(b"\xee\x00")
    assert run(*arguments, "--quant", "w8a8", "--calibration", tmp_path / "binary") == 2
    assert "expected text in UTF-8, got other bytes in " in capsys.readouterr().err


def test_refusal_is_all_that_is_said(capsys, tmp_path):
    """Not what transformers remarks on the way."""
    tiny_model("roformer").save_pretrained(tmp_path / "in")
    remarks = io.StringIO()
    handler = logging.StreamHandler(remarks)
    logging.getLogger("transformers").addHandler(handler)
    capsys.readouterr()
    try:
        assert run("export", tmp_path / "in", tmp_path / "out", "--cache", "paged") == 1
    finally:
        logging.getLogger("transformers").removeHandler(handler)
    error = capsys.readouterr().err
    assert "pass cache='dynamic'" in error and error.count("\n") == 1
    assert remarks.getvalue() == ""


def test_info(capsys):
    assert run("info") == 0
    text = capsys.readouterr().out
    assert "NPUExecutionProvider" in text
    assert run("info", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["devices"][0]["id"] == 0
    assert "NPURmsNorm" in facts["npu_operators"]


def test_version(capsys):
    assert run("--version") == 0
    assert capsys.readouterr().out == f"onnxruntime-npu {onnxruntime_npu.__version__}\n"


def test_a_missing_level_of_kernels_is_one_line(monkeypatch, capsys):
    def missing():
        raise RuntimeError("no kernel library for ORT_NPU_ISA=avx2: build the package with it")

    monkeypatch.setattr("onnxruntime_npu._C.registered_ops", missing)
    assert run("info") == 1
    error = capsys.readouterr().err
    assert error.startswith("onnxruntime-npu: error: no kernel library for ORT_NPU_ISA=avx2")
    assert error.count("\n") == 1


def test_ops(capsys):
    assert run("ops", "--json") == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    row = rows["npu_rms_norm"]
    assert row["onnx_type"] == "NPURmsNorm" and row["function_body"] is True
    assert run("ops") == 0
    assert f"{len(rows)} operators" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["info", "ops", "export", "generate", "serve"])
def test_every_command_has_help(capsys, command):
    assert run(command, "--help") == 0
    assert capsys.readouterr().out.startswith("usage:")


def test_bad_environment_prints_one_line():
    done = subprocess.run(
        [sys.executable, "-c", "import onnxruntime_npu_command as c; raise SystemExit(c.main())"],
        env={**os.environ, "ORT_NPU_MEMORY_LIMIT": "lots"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and done.stdout == ""
    assert "ORT_NPU_MEMORY_LIMIT: expected a positive number of bytes" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("package", "command"),
    [("torch", "export"), ("transformers", "export"), ("onnx", "inline")],
)
def test_a_missing_package_is_named_with_its_extra(tmp_path, package, command):
    (tmp_path / "config.json").write_text("{}")
    done = subprocess.run(
        [
            *(sys.executable, "-c"),
            f"import sys; sys.modules[{package!r}] = None; from onnxruntime_npu import cli; "
            f"sys.exit(cli.main([{command!r}, {str(tmp_path)!r}, 'out']))",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and done.stdout == ""
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1] == (
        f"onnxruntime-npu: error: this command needs the package {package}: "
        "pip install 'onnxruntime-npu[export]'"
    )


def test_interrupted_start_prints_one_line(monkeypatch, capsys):
    def interrupted(*_arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patches:
        patches.setattr("builtins.__import__", interrupted)
        code = onnxruntime_npu_command.main()
    assert code == 130
    assert capsys.readouterr().err == "onnxruntime-npu: error: interrupted\n"


def test_a_closed_pipe_ends_the_output_in_silence():
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "onnxruntime_npu.cli", "ops"],
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("arguments", ["generate nowhere --prompt x", "generate nowhere"])
def test_an_error_is_never_on_the_standard_output(arguments):
    done = subprocess.run(
        ["sh", "-c", f"exec {sys.executable} -m onnxruntime_npu.cli {arguments} 2>&-"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")


def test_a_command_may_have_no_output_at_all():
    done = subprocess.run(
        ["sh", "-c", f"exec {sys.executable} -m onnxruntime_npu.cli ops >&-"],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_text_is_written_to_terminals_that_have_no_characters_for_it(lettered, monkeypatch):
    monkeypatch.setattr(CausalLM, "generate", lambda *_, on_text, **options: on_text("Köln"))
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    assert run("generate", lettered()[1], "--prompt", "x", "--provider", "cpu") == 0
    assert written.getvalue() == b"K?ln\n"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("generation_config.json", b"\xff{"),
        ("config.json", b"[]"),
        ("tokenizer.json", b"\xff{"),
        ("chat_template.jinja", b"{{ unended"),
    ],
)
def test_a_damaged_file_of_an_export_is_one_line(lettered, tmp_path, capsys, name, content):
    directory = shutil.copytree(lettered()[1], tmp_path / "out")
    (directory / name).write_bytes(content)
    assert run("generate", directory, "--prompt", "x", "--provider", "cpu") == 2
    error = capsys.readouterr().err
    assert error.startswith("onnxruntime-npu: error: expected")
    assert error.count("\n") == 1


def test_an_interruption_ends_the_line_of_streamed_text(lettered, monkeypatch, capsys):
    def interrupted(_model, _prompt, *, on_text, **_options):
        on_text("Half an")
        raise KeyboardInterrupt

    monkeypatch.setattr(CausalLM, "generate", interrupted)
    assert run("generate", lettered()[1], "--prompt", "x", "--provider", "cpu") == 130
    output = capsys.readouterr()
    assert output.out == "Half an\n"
    assert output.err == "onnxruntime-npu: error: interrupted\n"


def test_cli_runs_as_a_process():
    done = subprocess.run(
        [sys.executable, "-m", "onnxruntime_npu.cli", "generate", "nowhere", "--prompt", "x"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
