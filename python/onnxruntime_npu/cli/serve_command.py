"""``serve``: an HTTP service for exported models."""

from __future__ import annotations

import argparse
import re

from ..extras import told_extra
from ..serving.settings import API_KEY, Settings, api_key
from .arguments import (
    PROVIDERS,
    RANKS,
    Commands,
    choice,
    count,
    number_of_ranks,
    path,
    seconds,
    whole_number,
)

_MOST_GUESSED = 7  # with the next token, what a step of the engine guesses for all answers
# As browsers send one: a scheme, a host and perhaps a port.
_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^/?#\s]+")


def add_command(commands: Commands) -> None:
    """Add the command to the parser."""
    serve = commands.add_parser(
        "serve",
        help="an OpenAI-compatible service for exported models",
        description="Serve a model exported with --cache paged (/v1/chat/completions, "
        "/v1/completions, /v1/responses) or an exported encoder (/v1/embeddings), with /v1/models, "
        "/tokenize, /detokenize, /health, /ready and /metrics, and a page to chat at /. With the "
        f"environment variable {API_KEY} set, clients have to send its value as their API key.",
    )
    serve.add_argument(
        "model_dir",
        type=path,
        metavar="OUT_DIR",
        help="what `export --cache paged` or `export-encoder` wrote",
    )
    serve.add_argument(
        "--embeddings", metavar="DIR", help="also serve this exported encoder: /v1/embeddings"
    )
    serve.add_argument("--host", default="127.0.0.1", help="to listen on (default: 127.0.0.1)")
    serve.add_argument("--port", type=int, default=8000, help="default 8000; 0: any free one")
    serve.add_argument("--name", help="the model's name for clients (default: the directory's)")
    serve.add_argument(
        "--max-queue",
        type=whole_number,
        default=256,
        metavar="N",
        help="requests that may wait, beyond those of a full batch (default: 256)",
    )
    serve.add_argument(
        "--prompt-lookup-num-tokens",
        type=int,
        choices=range(_MOST_GUESSED + 1),
        default=0,
        metavar="N",
        help="tokens to guess at once from what followed the last ones earlier in the text, for "
        f"answers that repeat their prompts, at most {_MOST_GUESSED} (default: 0, none)",
    )
    serve.add_argument(
        "--deadline",
        type=seconds,
        default=600,
        metavar="SECONDS",
        help="for a request, from its arrival to its last token (default: 600)",
    )
    serve.add_argument(
        "--max-body",
        type=count,
        default=4 * 2**20,
        metavar="BYTES",
        help="size of a request (default: 4 MiB)",
    )
    serve.add_argument(
        "--ssl-certfile", metavar="PEM", help="certificate, with which the server speaks HTTPS"
    )
    serve.add_argument(
        "--ssl-keyfile",
        metavar="PEM",
        help="its private key, without a passphrase (default: in the certificate's file)",
    )
    serve.add_argument(
        "--cors-origin",
        action="append",
        default=[],
        type=_origin,
        metavar="ORIGIN",
        help="of web pages that may call the service, such as https://example.com; repeat for "
        "several, * for all",
    )
    choice(serve, "--log-format", ("text", "json"), "of the log, on the standard error")
    choice(serve, "--provider", tuple(PROVIDERS), "execution provider")
    serve.add_argument(
        "--device", type=whole_number, default=0, metavar="N", help="index of the NPU (default: 0)"
    )
    number_of_ranks(serve, "--ranks", RANKS)
    serve.set_defaults(run=_serve)


def _origin(text: str) -> str:
    """Read an origin, to which a browser's would be compared letter by letter."""
    if not _ORIGIN.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"expected an origin such as https://example.com, without a path, or *, got {text!r}"
        )
    return text


def _serve(arguments: argparse.Namespace) -> None:
    try:
        from ..serving.server import serve

        settings = Settings(
            host=arguments.host,
            port=arguments.port,
            provider=PROVIDERS[arguments.provider],
            device=arguments.device,
            ranks=arguments.ranks,
            model_name=arguments.name,
            embeddings=arguments.embeddings,
            api_key=api_key(),
            ssl_certfile=arguments.ssl_certfile,
            ssl_keyfile=arguments.ssl_keyfile,
            cors_origins=tuple(arguments.cors_origin),
            max_queue=arguments.max_queue,
            prompt_lookup_num_tokens=arguments.prompt_lookup_num_tokens,
            deadline=arguments.deadline,
            max_body=arguments.max_body,
            log_format=arguments.log_format,
        )
        serve(arguments.model_dir, settings)
    except ModuleNotFoundError as error:
        raise told_extra("serving", error, "serve") from None
