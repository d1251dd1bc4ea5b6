"""``generate``: text from an exported model."""

from __future__ import annotations

import argparse
import io
import secrets
import sys
from pathlib import Path
from typing import Any

from ..errors import ArgumentError
from .arguments import PROVIDERS, RANKS, Commands, choice, number_of_ranks, path

# For models whose generation_config.json has no sampling parameters.
_TEMPERATURE, _TOP_K, _TOP_P = 0.7, 50, 0.95


def add_command(commands: Commands) -> None:
    """Add the command to the parser."""
    generate = commands.add_parser(
        "generate",
        help="text from an exported model, streamed",
        description="Generate text with an exported model. Without --greedy the next token is "
        "sampled as the model's generation_config.json says, else with temperature "
        f"{_TEMPERATURE}, top-k {_TOP_K}, top-p {_TOP_P}.",
    )
    generate.add_argument(
        "model_dir",
        type=path,
        metavar="OUT_DIR",
        help="what `export`, or another export command, wrote",
    )
    generate.add_argument("--prompt", required=True, help="text to answer, continue or translate")
    generate.add_argument(
        "--image",
        action="append",
        default=[],
        metavar="FILE",
        help="an image that the prompt is about; may be given several times",
    )
    generate.add_argument(
        "--max-new-tokens", type=int, default=256, metavar="N", help="default 256"
    )
    generate.add_argument("--greedy", action="store_true", help="take the most likely token")
    generate.add_argument("--temperature", type=float, help="0 is greedy")
    generate.add_argument("--top-k", type=int, help="sample among the K most likely; 0: all")
    generate.add_argument("--top-p", type=float, help="sample within the most likely mass P")
    generate.add_argument("--seed", type=int, help="makes sampling repeatable")
    generate.add_argument("--adapter", metavar="NAME", help="LoRA adapter exported with the model")
    generate.add_argument("--raw", action="store_true", help="no chat template")
    choice(generate, "--provider", tuple(PROVIDERS), "execution provider")
    number_of_ranks(generate, "--ranks", RANKS)
    generate.add_argument("--stats", action="store_true", help="print speed to stderr")
    generate.set_defaults(run=_generate)


def _generate(arguments: argparse.Namespace) -> int | None:
    from ..generation import ranks

    if arguments.greedy:
        drawn = ("temperature", "top_k", "top_p")
        if given := [name for name in drawn if getattr(arguments, name) is not None]:
            flag = "--" + given[0].replace("_", "-")
            raise ArgumentError(f"expected --greedy or {flag}, got both: leave one out")
    rank = ranks.rank_of_process()
    if arguments.ranks > 1 and rank is None:
        ranks.parts_for(Path(arguments.model_dir), arguments.ranks)
        # All ranks have to draw the same tokens.
        seed = [] if arguments.seed is not None else ["--seed", str(secrets.randbits(31))]
        return ranks.run_ranks(arguments.ranks, [*arguments.argv, *seed])
    speaks = not rank  # of several ranks, the first one
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a model may write what a terminal has not
    provider = PROVIDERS[arguments.provider]
    model, options = _model(arguments, provider)
    with _Line() as line:
        result = model.generate(
            arguments.prompt,
            max_new_tokens=arguments.max_new_tokens,
            sampler=_sampler(arguments, model.generation_config),
            on_text=line.write if speaks else None,
            **options,
        )
    if speaks and not line.begun:  # an answer without text
        print()
    if speaks and arguments.stats:
        print(
            f"{result.prompt_tokens} prompt tokens in {result.prefill_seconds:.3f} s, "
            f"{len(result.tokens[0])} new tokens at {result.tokens_per_second:.1f} tokens/s",
            file=sys.stderr,
        )
    return None


class _Line:
    """Streamed text, whose line ends with the block, so that an error begins on the next one."""

    begun = False

    def __enter__(self) -> _Line:
        return self

    def __exit__(self, *_failure: object) -> None:
        if self.begun:
            print()

    def write(self, text: str) -> None:
        """Print a piece."""
        self.begun = True
        print(text, end="", flush=True)


def _model(arguments: argparse.Namespace, provider: Any) -> tuple[Any, dict[str, Any]]:
    """Open the model; return it and the options that only models of its kind take."""
    from ..generation import CausalLM, ImageTextLM, Seq2SeqLM

    directory = Path(arguments.model_dir)
    chat = {"chat": not arguments.raw}
    kind: Any
    taken: dict[str, Any]
    if (directory / "decoder_model.onnx").is_file():
        kind, name, taken = Seq2SeqLM, "an encoder-decoder", {}
    elif (directory / "text.onnx").is_file():
        kind, name, taken = ImageTextLM, "one of images", {**chat, "images": arguments.image}
    else:
        kind, name, taken = CausalLM, "one of text", {**chat, "adapter": arguments.adapter}
    if arguments.adapter is not None and "adapter" not in taken:
        raise ArgumentError(f"--adapter expected a causal model, got {name}")
    if arguments.image and "images" not in taken:
        raise ArgumentError(f"--image expected a model of images and text, got {name}")
    model = kind(directory, providers=[provider])
    if kind is CausalLM:  # which takes nothing from generation_config.json if it has a sampler
        taken["repetition_penalty"] = model.generation_config.get("repetition_penalty")
    return model, taken


def _sampler(arguments: argparse.Namespace, config: dict[str, Any]) -> Any:
    from ..sampling import Sampler

    def setting(name: str, default: float) -> Any:
        given = getattr(arguments, name)
        if given is not None:
            return given
        configured = config.get(name)
        return default if configured is None else configured

    if arguments.greedy:
        return Sampler()
    return Sampler(
        temperature=setting("temperature", _TEMPERATURE),
        top_k=setting("top_k", _TOP_K),
        top_p=setting("top_p", _TOP_P),
        min_p=config.get("min_p") or 0.0,
        seed=arguments.seed,
    )
