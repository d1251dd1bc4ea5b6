"""HTTPS with a certificate of an authority that this test makes."""

from __future__ import annotations

import ssl
import subprocess
import sys

import httpx
import pytest
import trustme
from onnxruntime_npu.errors import ArgumentError
from onnxruntime_npu.serving.server import serve as serve_until_signal
from onnxruntime_npu.serving.settings import Settings


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


@pytest.fixture
def files(authority, tmp_path):
    """A certificate for this machine, and its key."""
    issued = authority.issue_cert("127.0.0.1")
    paths = tmp_path / "cert.pem", tmp_path / "key.pem"
    issued.cert_chain_pems[0].write_to_path(paths[0])
    issued.private_key_pem.write_to_path(paths[1])
    return paths


def test_clients_that_know_the_authority_are_served(serve, authority, files):
    certificate, key = map(str, files)
    server = serve("--ssl-certfile", certificate, "--ssl-keyfile", key)
    assert server.url.startswith("https://127.0.0.1:")
    known = ssl.create_default_context()
    authority.configure_trust(known)
    with httpx.Client(base_url=server.url, verify=known) as client:
        assert client.get("/health").json() == {"status": "alive"}
    with pytest.raises(httpx.ConnectError, match="certificate"):  # does not know it
        server.http.get("/health")
    with pytest.raises(httpx.HTTPError):
        httpx.get(server.url.replace("https", "http") + "/health")
    with httpx.Client(base_url=server.url, verify=known) as client:  # goes on after both
        assert client.get("/health").status_code == 200


def refused(directory, **files):
    given = {name: str(path) for name, path in files.items()}
    with pytest.raises(ArgumentError) as error:
        serve_until_signal(directory, Settings(port=0, **given))
    assert "\n" not in str(error.value)
    return str(error.value)


def test_files_that_are_no_certificate_are_refused(
    served_directory, authority, files, tmp_path, capfd
):
    certificate, key = files
    other = tmp_path / "other.pem"
    authority.issue_cert("127.0.0.1").private_key_pem.write_to_path(other)
    text = tmp_path / "text.pem"
    text.write_text("no certificate")
    locked = tmp_path / "locked.pem"
    locked.write_bytes(with_passphrase(key.read_bytes()))
    none = tmp_path / "none.pem"

    def check(**given):
        return refused(served_directory, **given)

    assert "--ssl-certfile" in check(ssl_keyfile=key)
    assert str(none) in check(ssl_certfile=none)
    assert str(none) in check(ssl_certfile=certificate, ssl_keyfile=none)
    assert str(text) in check(ssl_certfile=text, ssl_keyfile=key)
    assert str(text) in check(ssl_certfile=certificate, ssl_keyfile=text)
    assert "private key" in check(ssl_certfile=certificate)  # holds none
    assert str(other) in check(ssl_certfile=certificate, ssl_keyfile=other)  # of another one
    assert "passphrase" in check(ssl_certfile=certificate, ssl_keyfile=locked)
    assert capfd.readouterr().out == ""


def with_passphrase(key: bytes) -> bytes:
    """Return a private key, encrypted."""
    from cryptography.hazmat.primitives import serialization

    return serialization.load_pem_private_key(key, None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )


def test_the_command_says_so_in_one_line(served_directory, tmp_path):
    command = [sys.executable, "-m", "onnxruntime_npu.cli", "serve", str(served_directory)]
    done = subprocess.run(
        [*command, "--ssl-keyfile", str(tmp_path / "key.pem")],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode != 0 and len(done.stderr.strip().splitlines()) == 1
    assert "--ssl-certfile" in done.stderr
