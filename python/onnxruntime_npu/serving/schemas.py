"""Bodies of requests. What cannot be done is refused, never ignored."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from .api_errors import ApiError, bad_request
from .generation_body import (
    TEXT_ONLY,
    Alternatives,
    Count,
    Generation,
    StreamOptions,
    TemplateArguments,
    Unavailable,
)
from .messages import Message, TopBody
from .response_format import ResponseFormat
from .texts import FIRST_ERROR, Texts, Tokens, each_text
from .tools import Tool, ToolChoice

_OLD_TOOLS = "use tools and tool_choice, which have replaced it"
_UNAVAILABLE: Unavailable = {
    "audio": ((None,), TEXT_ONLY),
    "best_of": ((None, 1), "ask for n answers with logprobs and choose among them"),
    "function_call": ((None, "none"), _OLD_TOOLS),
    "functions": ((None, []), _OLD_TOOLS),
    "modalities": ((None, ["text"]), TEXT_ONLY),
    "moderation": ((None,), "texts are not judged here"),
    "prediction": ((None,), "no text is taken for the answer before the model has written it"),
    "reasoning_effort": (
        (None,),
        "how much a model reasons is up to its chat template: see chat_template_kwargs",
    ),
    "suffix": (
        (None,),
        "a model's marks for text to be filled in are not known: write them in prompt",
    ),
    "verbosity": ((None,), "say it in a message"),
    "web_search_options": ((None,), "nothing is searched here"),
}


class ChoicesStreamOptions(StreamOptions):
    """And of one whose last event may have the numbers of tokens."""

    include_usage: bool | None = None


class ChoicesRequest(Generation):
    """What completions and chat have in common."""

    unavailable: ClassVar[Unavailable] = _UNAVAILABLE

    n: Annotated[int, Field(ge=1, le=128)] = 1
    max_tokens: Count | None = None
    stream_options: ChoicesStreamOptions | None = None
    response_format: ResponseFormat | None = None

    @property
    def wants_usage(self) -> bool:
        """Whether a streamed answer ends with the numbers of tokens."""
        return bool(self.stream_options and self.stream_options.include_usage)


class CompletionRequest(ChoicesRequest):
    """Body of /v1/completions; a prompt is text or tokens."""

    prompt_name: ClassVar[str] = "prompt"

    prompt: Texts
    max_tokens: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None  # 0: the prompt alone
    echo: bool | None = None  # begin the answer with the prompt
    logprobs: Alternatives | Literal[False] | None = None  # 0: of the answer's tokens alone

    @property
    def scores(self) -> int | None:
        """How many tokens are wanted beside each one, with log-probabilities; None: no scores."""
        return None if self.logprobs is False else self.logprobs

    @property
    def echoes(self) -> bool:
        """Whether an answer begins with the prompt."""
        return bool(self.echo)

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """The prompts, also if one is given alone."""
        return each_text(self.prompt)


class ChatRequest(ChoicesRequest):
    """Body of /v1/chat/completions."""

    prompt_name: ClassVar[str] = "messages"

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: Count | None = None
    tools: Annotated[list[Tool], FIRST_ERROR] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Alternatives | None = None
    chat_template_kwargs: TemplateArguments

    @model_validator(mode="after")
    def _check_scores(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            message = "top_logprobs goes with logprobs: set it to true, too"
            raise bad_request(message, param="top_logprobs")
        return self

    @property
    def scores(self) -> int | None:
        """How many tokens are wanted beside each one, with log-probabilities; None: no scores."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def limit(self) -> int | None:
        """Max number of tokens to generate, under its new or its old name."""
        given = self.max_completion_tokens
        return self.max_tokens if given is None else given


class DetokenizeRequest(TopBody):
    """Body of /detokenize."""

    model: str | None = None
    tokens: Tokens


class TokenizeRequest(TopBody):
    """Body of /tokenize: a text or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)] | None = None
    add_special_tokens: bool = True
    chat_template_kwargs: TemplateArguments

    @model_validator(mode="after")
    def _check(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise ApiError(400, "invalid_value", "expected either prompt or messages")
        return self
