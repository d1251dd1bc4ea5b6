"""Questions about images: the processor of an exported model, files of images, the command."""

from __future__ import annotations

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from onnxruntime_npu import cli, export_image_text_to_text
from onnxruntime_npu.errors import ArgumentError
from onnxruntime_npu.generation import ImageTextLM
from PIL import Image

from .conftest import model_kept
from .image_runs import IMAGE_TOKEN, PROVIDERS
from .test_image_text import tiny_model

QUESTION = "w5 w7 w60"
TEMPLATE = (
    "{% for message in messages %}w1 {% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image> {% else %}{{ part['text'] }} {% endif %}"
    "{% endfor %}{% endfor %}{% if add_generation_prompt %}w2{% endif %}"
)


def processor():
    """Return a processor whose words w0 to w95 are tokens, and which takes any image."""
    words = {f"w{i}": i for i in range(IMAGE_TOKEN)} | {"<image>": IMAGE_TOKEN}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=model,
        unk_token="w0",
        pad_token="w0",
        extra_special_tokens={"image_token": "<image>"},
    )
    size = {"height": 16, "width": 16}
    return transformers.LlavaProcessor(
        transformers.CLIPImageProcessor(size=size, crop_size=size),
        tokenizer,
        patch_size=8,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=TEMPLATE,
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return two files of images that are not of the model's size."""
    folder, generator = tmp_path_factory.mktemp("images"), np.random.default_rng(3)
    paths = [folder / "first.png", folder / "second.png"]
    for path, shape in zip(paths, [(30, 20, 3), (9, 40, 3)], strict=True):
        Image.fromarray(generator.integers(0, 255, shape, dtype=np.uint8)).save(path)
    return paths


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Return (model, directory) of LLaVA, exported from a directory with a processor."""
    folder, place = tmp_path_factory.mktemp("in"), tmp_path_factory.mktemp("out")
    model = tiny_model("clip")
    model.generation_config.eos_token_id = None
    model.save_pretrained(folder)
    processor().save_pretrained(folder)
    export_image_text_to_text(folder, place)
    return model, place


def expected_tokens(model, text, files, count):
    """Return the tokens that transformers generates for a text with tokens of images."""
    images = [Image.open(file).convert("RGB") for file in files] or None
    inputs = processor()(text=[text], images=images, return_tensors="pt")
    with model_kept(model), torch.no_grad():
        found = model.generate(
            **inputs, max_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=0
        )
    return found[:, inputs["input_ids"].shape[1] :].tolist()


def words_of(tokens):
    """Return the words of tokens that are not special."""
    return [f"w{token}" for token in tokens if token not in (0, IMAGE_TOKEN)]


@pytest.mark.parametrize("count", [0, 1, 2])
def test_answers_are_those_of_transformers(exported, files, count):
    model, directory = exported
    lm = ImageTextLM(directory, providers=PROVIDERS[1:])
    lm.stop_tokens = frozenset()
    text = f"w1 {'<image> ' * count}{QUESTION} w2"
    pieces = []
    result = lm.generate(QUESTION, files[:count], max_new_tokens=6, on_text=pieces.append)
    assert result.tokens == expected_tokens(model, text, files[:count], 6)
    words = words_of(result.tokens[0])
    assert result.texts[0].split() == words and "".join(pieces) == result.texts[0]


def test_without_a_chat_template_images_come_first_or_where_the_prompt_has_them(exported, files):
    model, directory = exported
    lm = ImageTextLM(directory, providers=PROVIDERS[1:])
    lm.stop_tokens = frozenset()
    image = Image.open(files[0]).convert("RGB")
    for prompt, text in (
        (" w5", "<image> w5"),
        ("w9 <image> w5", "w9 <image> w5"),
    ):
        result = lm.generate(prompt, image, chat=False, max_new_tokens=3)
        assert result.tokens == expected_tokens(model, text, files[:1], 3)


def test_files_without_an_image_are_an_error(exported, tmp_path):
    lm = ImageTextLM(exported[1], providers=PROVIDERS[1:])
    wrong = tmp_path / "wrong.png"
    wrong.write_text("no image")
    for path in (wrong, str(tmp_path / "nowhere.png"), tmp_path):
        with pytest.raises(ArgumentError, match="to be a file of an image: ") as caught:
            lm.generate(QUESTION, [path])
        assert "\n" not in str(caught.value)


def test_directories_without_a_processor_say_so(tmp_path):
    export_image_text_to_text(tiny_model("clip"), tmp_path)
    with pytest.raises(ArgumentError, match="holds no processor: use generate_from with token"):
        ImageTextLM(tmp_path, providers=PROVIDERS[1:]).generate(QUESTION)


def test_the_command_answers_about_files_of_images(exported, files, capsys):
    model, directory = exported
    images = [argument for file in files for argument in ("--image", str(file))]
    command = ["generate", str(directory), "--prompt", QUESTION, "--greedy"]
    assert cli.main([*command, "--max-new-tokens", "4", *images]) == 0
    tokens = expected_tokens(model, f"w1 <image> <image> {QUESTION} w2", files, 4)[0]
    assert capsys.readouterr().out.split() == words_of(tokens)
    assert cli.main([*command, "--adapter", "a"]) == 2
    assert "--adapter expected a causal model, got one of images" in capsys.readouterr().err
