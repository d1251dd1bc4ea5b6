"""The process that listens: ``onnxruntime-npu serve``."""

from __future__ import annotations

import errno
import logging
import resource
import signal
import socket
import ssl
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from ..errors import ArgumentError, ServingError
from .app import service_app
from .connection import impatient_protocol
from .log_format import begin_log
from .service import open_service
from .settings import Settings

_LOG = logging.getLogger("onnxruntime_npu.serving")
# Clients drop idle connections sooner, OpenAI's after 5 s: a request that is sent while the server
# closes its connection would be lost.
_KEEP_ALIVE_SECONDS = 75


class _Server(uvicorn.Server):
    """The first SIGTERM or SIGINT lets running requests end, the second stops at once.

    Both are an orderly end, so that neither is raised again afterwards, as uvicorn would.
    """

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True
        if self.force_exit:  # each request that is cancelled would be a fault of the application
            logging.getLogger("uvicorn.error").disabled = True
        _LOG.info(
            "%s: %s",
            signal.Signals(sig).name,
            "stopping" if self.force_exit else "running requests end, no new ones are taken",
        )


def serve(directory: str | Path, settings: Settings) -> None:
    """Serve an exported directory until a signal ends it.

    Raises ArgumentError for a directory or a certificate that cannot be used, OSError for an
    address that cannot be listened on, ServingError when the engine does not start.
    """
    begin_log(settings.log_format)
    unusable: list[str] = []

    def give_up(reason: str) -> None:
        unusable.append(reason)
        server.should_exit = True

    service = open_service(directory, settings, give_up)
    app = service_app(service)
    _check_certificate(settings.ssl_certfile, settings.ssl_keyfile)
    config = uvicorn.Config(
        app,
        http=impatient_protocol(settings.patience),
        ws="none",  # else whichever library is installed would take connections over
        access_log=False,
        log_config=None,
        log_level="warning",
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        ssl_certfile=settings.ssl_certfile,
        ssl_keyfile=settings.ssl_keyfile,
    )
    server = _Server(config)
    _allow_many_connections()
    with listen(settings.host, settings.port, settings.deadline) as listening:
        host, port = listening.getsockname()[:2]
        place = f"[{host}]" if ":" in host else host
        names = " and ".join(each.name for each in service.directories)
        scheme = "http" if settings.ssl_certfile is None else "https"
        print(f"serving {names} at {scheme}://{place}:{port}", flush=True)
        server.run([listening])
    if unusable:
        raise ServingError(unusable[0])


def _check_certificate(certificate: str | None, key: str | None) -> None:
    """Raise ArgumentError for files of which TLS cannot be spoken."""
    if certificate is None:
        if key is not None:
            raise ArgumentError("--ssl-keyfile expected --ssl-certfile, too")
        return
    for path in (certificate, key):
        if path is not None and not Path(path).is_file():
            raise ArgumentError(f"no such file: {path}")

    def refuse() -> str:  # instead of a question on the terminal
        raise ArgumentError(f"expected a private key without a passphrase in {key or certificate}")

    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
            certificate, key, password=refuse
        )
    except ssl.SSLError as error:
        raise ArgumentError(
            f"expected a certificate in {certificate} and its private key in "
            f"{key or 'the same file'}, as PEM: {error.reason or error}"
        ) from None


def _allow_many_connections() -> None:
    """Raise the limit of open files, which is often 1024, to the one that the system allows."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def listen(host: str, port: int, deadline: float) -> socket.socket:
    """Return a socket that listens; ``deadline``: seconds that an answer may wait to be taken.

    Raises ArgumentError for a port that is none, OSError for an address that cannot be had.
    """
    if not 0 <= port < 2**16:
        raise ArgumentError(f"expected a port from 0 to {2**16 - 1}, got {port}")
    try:
        found: Any = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        family, *_, address = found
        # All addresses of IPv6 stand for those of IPv4, too, as with other servers.
        both = address[0] == "::" and socket.has_dualstack_ipv6()
        listening = socket.create_server(
            (host, port), family=family, backlog=2048, dualstack_ipv6=both
        )
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise OSError(f"port {port} is in use: choose another one with --port") from None
        raise OSError(f"cannot listen on {host}, port {port}: {error}") from None
    # Connections inherit it: one whose client takes nothing for so long is closed, whatever waits
    # to be sent.
    milliseconds = min(max(int(deadline * 1000), 1), 2**31 - 1)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return listening
