"""Replicas by Ray Serve: the same interface, a device each, and what happens when one is killed."""

from __future__ import annotations

import inspect
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray.serve", reason="needs Ray: pip install 'onnxruntime-npu[ray]'")

from onnxruntime_npu.serving.ray_app import Arguments, build
from pydantic import ValidationError


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({}, "directory"),
        ({"directory": "out", "replicas": 2}, "replicas"),
        ({"directory": "out", "max_replicas": 0}, "max_replicas"),
        ({"directory": "out", "deadline": 0}, "deadline"),
        ({"directory": "out", "target_requests": "many"}, "target_requests"),
        ({"directory": "out", "min_replicas": 3, "max_replicas": 2}, "max_replicas"),
    ],
)
def test_other_arguments_are_refused(arguments, error):
    with pytest.raises(ValidationError, match=error):
        build(Arguments(**arguments))


def test_ray_finds_the_type_of_the_arguments():
    # `serve run` and configuration files pass a dictionary, which Ray converts to this class.
    (parameter,) = inspect.signature(build).parameters.values()
    assert parameter.annotation is Arguments


@pytest.mark.slow
def test_a_replica_is_killed_under_load(served_directory, tmp_path):
    # The trial finds its engines by their directory, which the servers of other tests have, too.
    directory = shutil.copytree(served_directory, tmp_path / "tiny")
    environment = {
        **os.environ,
        "ORT_NPU_DEVICE_COUNT": "2",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",  # no token is written to the home folder
        # On a busy machine Ray's own processes take longer to start than the 5 s it gives them.
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    }
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("ray_trial.py")), str(directory)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["models"] == ["tiny"] and found["refused"] == [404, "model_not_found"]
    # Each replica has a device of its own, the one that replaces the killed one, too.
    assert found["devices"] == [["0", "1"], ["0", "1"]] and found["replaced"]
    assert found["reference"].startswith("text ")
    results = found["results"]
    # Requests that the victim had begun fail by a status or a stream that breaks off; all others
    # get the right answer, and nobody waits for ever.
    failed = {"status 500", "status 503", "broken stream", "broken: RemoteProtocolError"}
    assert found["pending"] > 0 and set(results) <= {"right", *failed}, results
    assert 0 < sum(results.get(kind, 0) for kind in failed) <= 12, results
    assert sum(results.values()) == 48, results
