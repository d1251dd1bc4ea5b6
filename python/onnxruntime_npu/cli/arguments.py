"""Arguments that several commands have."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn, TypeAlias

DTYPES = ("float32", "float16", "bfloat16")
RANKS = "start N processes, for a model exported with --tensor-parallel N or --expert-parallel N"
PROVIDERS = {"npu": "NPUExecutionProvider", "cpu": "CPUExecutionProvider"}


class Parser(argparse.ArgumentParser):
    """Reports errors in one line."""

    def error(self, message: str) -> NoReturn:
        """Print the error in one line instead of the usage."""
        if sys.stderr is not None:  # else the standard output would have it
            print(f"{self.prog}: error: {message}; see {self.prog} --help", file=sys.stderr)
        raise SystemExit(2)


Commands: TypeAlias = "argparse._SubParsersAction[Parser]"


def choice(
    parser: argparse.ArgumentParser, flag: str, choices: tuple[str, ...], meaning: str
) -> None:
    """Add an option of which the first choice is the default."""
    parser.add_argument(
        flag,
        choices=choices,
        default=choices[0],
        help=f"{meaning} (default: {choices[0]})",
    )


def number_of_ranks(parser: argparse.ArgumentParser, flag: str, meaning: str) -> None:
    """Add an option that counts processes."""
    parser.add_argument(flag, type=count, default=1, metavar="N", help=f"{meaning} (default: 1)")


def whole_number(text: str) -> int:
    """Read a number from 0."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"expected a whole number from 0, got {value}")
    return value


def count(text: str) -> int:
    """Read a number from 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {value}")
    return value


def path(text: str) -> str:
    """Read a path; an empty one, as of a shell's variable without a value, would be this folder."""
    if not text:
        raise argparse.ArgumentTypeError("expected a path, got an empty text")
    try:
        text.encode()
    except UnicodeEncodeError:  # neither onnxruntime nor protobuf opens such a file
        encoding = sys.getfilesystemencoding()
        mended = "rename it" if encoding == "utf-8" else f"not {encoding}, set LC_ALL=C.UTF-8"
        raise argparse.ArgumentTypeError(
            f"expected a path in UTF-8, got {text!r}: {mended}"
        ) from None
    return text


def seconds(text: str) -> float:
    """Read a duration."""
    value = float(text)
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"expected a positive number of seconds, got {text}")
    return value
