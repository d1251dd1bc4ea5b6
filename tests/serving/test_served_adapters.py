"""LoRA adapters as models of their own, beside the model that they change."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor

import openai
import peft
import pytest
import torch
from onnxruntime_npu import cli
from onnxruntime_npu.exporter import export_causal_lm
from onnxruntime_npu.generation import CausalLM

from .conftest import byte_tokenizer, reference_model, sized

ADAPTERS = {
    "law": {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj", "down_proj"]},
    "code": {"r": 2, "lora_alpha": 6, "target_modules": "all-linear"},
}
NAMES = {"tiny": None, "code": "code", "law": "law"}
PROMPT = "It was"


@pytest.fixture(scope="module")
def adapted_directory(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapted")
    folders = {}
    for seed, (name, settings) in enumerate(ADAPTERS.items()):
        config = peft.LoraConfig(task_type="CAUSAL_LM", **settings)
        model = peft.get_peft_model(reference_model(), config)
        torch.manual_seed(seed)
        with torch.no_grad():
            for parameter_name, parameter in model.named_parameters():
                if "lora_" in parameter_name:
                    parameter.copy_(torch.randn_like(parameter) / 4)
        folders[name] = folder / name
        model.save_pretrained(folders[name], save_embedding_layers=False)
    directory = folder / "tiny"
    export_causal_lm(
        reference_model(), directory, cache="paged", tokenizer=byte_tokenizer(),
        switched_adapters=folders, check=False,
    )  # fmt: skip
    return sized(directory, num_blocks=64, max_batch_size=16)


def test_an_adapter_answers_under_its_name(serve, adapted_directory):
    broken = adapted_directory / "broken.onnx_adapter"
    broken.write_bytes(b"no adapter")
    server = serve(directory=adapted_directory).wait_until_ready()
    cards = {card.id: card.to_dict() for card in server.client.models.list()}
    assert list(cards) == ["tiny", "broken", "code", "law"]
    assert [card["parent"] for card in cards.values()] == [None, "tiny", "tiny", "tiny"]
    assert cards["law"]["max_model_len"] == cards["tiny"]["max_model_len"]

    library = CausalLM(adapted_directory)
    expected = {
        name: library.generate(PROMPT, max_new_tokens=24, chat=False, adapter=adapter).texts[0]
        for name, adapter in NAMES.items()
    }
    assert len(set(expected.values())) == 3

    def complete(name):
        return server.client.completions.create(
            model=name, prompt=PROMPT, max_tokens=24, temperature=0
        )

    with ThreadPoolExecutor(12) as threads:  # together: each row keeps its adapter
        for name, answer in zip([*NAMES] * 4, threads.map(complete, [*NAMES] * 4), strict=True):
            assert (answer.model, answer.choices[0].text) == (name, expected[name])

    chat = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 8, "temperature": 0}
    answers = {}
    for name in NAMES:
        events = list(server.client.chat.completions.create(model=name, stream=True, **chat))
        assert {event.model for event in events} == {name}
        answers[name] = "".join(event.choices[0].delta.content or "" for event in events)
        response = server.client.responses.create(
            model=name, input=PROMPT, max_output_tokens=8, temperature=0
        )
        assert response.output_text == answers[name]
    assert len(set(answers.values())) == 3

    with pytest.raises(openai.InternalServerError, match=r"broken\.onnx_adapter is no") as error:
        complete("broken")
    assert error.value.code == "generation_failed" and str(adapted_directory) not in str(error)
    broken.unlink()
    with pytest.raises(openai.NotFoundError, match="'tiny' or 'broken' or 'code' or 'law', got"):
        complete("medicine")
    assert complete("law").choices[0].text == expected["law"]
    server.wait_for("npu_cache_blocks_used", 0)


def test_an_adapter_needs_a_name_of_its_own(adapted_directory, tmp_path, capsys):
    directory = shutil.copytree(adapted_directory, tmp_path / "law")
    assert cli.main(["serve", str(directory)]) == 2
    assert "a name for each model, got law twice: use --name" in capsys.readouterr().err
