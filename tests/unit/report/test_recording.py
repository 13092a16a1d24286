"""One call records any model: the page shows the model's weights without padding."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tsallis.analysis.weights import SIDES
from tsallis.nn import MultiheadAttention, sparsify_module
from tsallis.report import show
from tsallis.report.page import Page

TEXTS = [["where", "is", "it", "?"], ["it", "is"]]
PADDED = torch.tensor([[False] * 4, [False, False, True, True]])


def data_of(page: Page) -> Any:
    (run,) = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1])["runs"]
    return run


def layers_of(page: Page) -> list[tuple[str, int, int]]:
    return [(layer["kind"], layer["layer"], layer["heads"]) for layer in data_of(page)["layers"]]


def densities_of(page: Page) -> list[float]:
    return [head["density"] for head in data_of(page)["heads"]]


def encoder() -> nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return nn.TransformerEncoder(layer, 2)


@pytest.mark.parametrize("sparse", [False, True])
def test_show_records_a_padded_encoder_batch(sparse: bool) -> None:
    model = encoder()
    if sparse:
        sparsify_module(model, alpha=2.0)
    x = torch.randn(2, 4, 8)
    page = show(model, {"src": x * (9 if sparse else 1), "src_key_padding_mask": PADDED}, TEXTS, name="mine")
    assert layers_of(page) == [("encoder", 0, 2), ("encoder", 1, 2)] and "<title>mine</title>" in page
    content = data_of(page)
    assert [len(sentence["source"]) for sentence in content["sentences"]] == [4, 2]
    assert all(density < 1 if sparse else density == 1 for density in densities_of(page)[:2])
    assert model.training and torch.backends.mha.get_fastpath_enabled()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_show_accepts_one_text_and_positional_arguments() -> None:
    class Unbatched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = MultiheadAttention(8, 2)

        def forward(self, x: Tensor, scale: float) -> Tensor:
            x = scale * x
            return self.attention(x, x, x, need_weights=False)[0]

    page = show(Unbatched(), (torch.randn(4, 8), 2.0), TEXTS[0])
    assert layers_of(page) == [("encoder", 0, 2)]
    page = show(encoder(), torch.randn(1, 4, 8), TEXTS[0])
    assert len(layers_of(page)) == 2


@pytest.mark.parametrize("grouped", [False, True])
def test_scaled_dot_product_attention_is_recorded(grouped: bool) -> None:
    class Own(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            query = x.view(2, 4, 2, 4).transpose(1, 2)
            key = query[:, :1] if grouped else query
            options = {"is_causal": True} if grouped else {"attn_mask": ~PADDED[:, None, None], "scale": 0.5}
            return nn.functional.scaled_dot_product_attention(query, key, key, enable_gqa=grouped, **options)

    x = torch.randn(2, 4, 8)
    page = show(Own(), x, [TEXTS[0]] * 2 if grouped else TEXTS)
    assert layers_of(page) == [("decoder" if grouped else "encoder", 0, 2)]
    from tsallis.report.recording import _attention_weights

    query, value = x.view(2, 4, 2, 4).transpose(1, 2), torch.eye(4).expand(2, 2, 4, 4)
    for options in ({}, {"is_causal": True}, {"attn_mask": ~PADDED[:, None, None]}, {"attn_mask": torch.randn(4, 4)}):
        output = nn.functional.scaled_dot_product_attention(query, query, value, **options)
        torch.testing.assert_close(_attention_weights(query, query, value, **options), output)


def test_show_records_nn_transformer() -> None:
    model = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)
    inputs = {"src": torch.randn(2, 4, 8), "tgt": torch.randn(2, 3, 8), "tgt_mask": torch.ones(3, 3).triu(1).bool()}
    masks = dict.fromkeys(("src_key_padding_mask", "memory_key_padding_mask"), PADDED)
    page = show(model, inputs | masks, TEXTS, [["<s>", "hier", "."]] * 2)
    assert layers_of(page) == [("encoder", 0, 2), ("decoder", 0, 2), ("cross", 0, 2)]


class Tokenizer:
    """A tokenizer that spells numbers."""

    def get_vocab(self) -> dict[str, int]:
        return {"▁0": 0}

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return [f"▁{number}" for number in ids]


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("name", ["bert", "gpt2", "t5"])
def test_show_records_hugging_face_models(name: str, left: bool) -> None:
    transformers = pytest.importorskip("transformers")
    from tsallis.huggingface import sparsify

    bert = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2, "num_hidden_layers": 2}
    gpt2 = {"n_embd": 8, "n_layer": 2, "n_head": 2, "bos_token_id": 1, "eos_token_id": 2}
    t5 = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0}
    kind, config = {
        "bert": (transformers.BertModel, transformers.BertConfig(vocab_size=20, **bert)),
        "gpt2": (transformers.GPT2LMHeadModel, transformers.GPT2Config(vocab_size=20, **gpt2)),
        "t5": (transformers.T5ForConditionalGeneration, transformers.T5Config(vocab_size=20, **t5)),
    }[name]
    model = kind(config)
    mask = (~PADDED).long().flip(1) if left else (~PADDED).long()
    batch = {"input_ids": torch.arange(4, 12).view(2, 4), "attention_mask": mask}
    if name == "t5":
        batch["decoder_input_ids"] = torch.tensor([[0, 5, 6], [0, 7, 8]])
    implementation = model.config._attn_implementation
    kinds = {"bert": ("encoder",), "gpt2": ("decoder",), "t5": ("encoder", "decoder", "cross")}[name]
    expected = [(kind, layer, 2) for kind in kinds for layer in (0, 1)]
    page = show(model, batch, Tokenizer())
    assert layers_of(page) == expected and densities_of(page) == [1.0] * len(densities_of(page))
    first = data_of(page)["sentences"][1]
    assert first["target" if name == "gpt2" else "source"] == (["▁10", "▁11"] if left else ["▁8", "▁9"])
    assert model.config._attn_implementation == implementation and model.training
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 20
    sparse = show(sparsify(model, alpha=2.0), batch, Tokenizer())
    assert layers_of(sparse) == expected and min(densities_of(sparse)) < 1


@pytest.mark.parametrize("name", ["t5", "bert", "llama"])
def test_padding_may_be_anywhere(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    from tiny_transformers import build
    from tsallis.report import recording

    masks = {"source": torch.tensor([[1, 1, 0, 1, 1], [0, 1, 1, 1, 0]])}
    if name == "t5":
        masks["target"] = torch.tensor([[1, 0, 1, 1], [0, 1, 0, 1]])
    prefixes = {"source": "", "target": "decoder_"}
    ids = {side: torch.arange(4, 4 + mask.numel()).view_as(mask) for side, mask in masks.items()}
    batch = {f"{prefixes[side]}input_ids": x for side, x in ids.items()}
    batch |= {f"{prefixes[side]}attention_mask": x for side, x in masks.items()}
    pages: list[Any] = []
    monkeypatch.setattr(recording, "build_page", pages.append)
    model = build(name)
    show(model, batch, Tokenizer())
    ((summary,),) = pages
    model.set_attn_implementation("eager")
    outputs = model(**batch, output_attentions=True)
    for row, sentence in enumerate(summary.sentences):
        kept = {side: mask[row].bool() for side, mask in masks.items()}
        pieces = {side: tuple(f"▁{number}" for number in x[row][kept[side]].tolist()) for side, x in ids.items()}
        for layer, weights in zip(summary.layers, sentence.weights, strict=True):
            returned = f"{layer.kind}_attentions" if name == "t5" else "attentions"
            queries, keys = SIDES[layer.kind] if name == "t5" else ("source", "source")
            assert sentence.text.sides(layer.kind) == (pieces[queries], pieces[keys])
            expected = getattr(outputs, returned)[layer.layer][row][:, kept[queries]][..., kept[keys]]
            torch.testing.assert_close(torch.from_numpy(weights.dense()).float(), expected)


def test_layers_of_hybrid_models_keep_their_numbers() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1}
    types = ["conv", "full_attention", "conv", "full_attention"]
    config = transformers.Lfm2Config(vocab_size=20, num_hidden_layers=4, layer_types=types, **sizes)
    page = show(transformers.Lfm2Model(config), {"input_ids": torch.arange(4, 8)[None]}, TEXTS[0])
    assert layers_of(page) == [("decoder", 1, 2), ("decoder", 3, 2)]


def test_hugging_face_models_without_returned_attention_raise() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1}
    text, ids = {"vocab_size": 20, "pad_token_id": 0, **sizes}, torch.arange(4, 8)[None]
    decoder = transformers.BertConfig(is_decoder=True, add_cross_attention=True, **text)
    pair = transformers.EncoderDecoderModel(
        encoder=transformers.BertModel(transformers.BertConfig(**text)), decoder=transformers.BertLMHeadModel(decoder)
    )
    with pytest.raises(ValueError, match=r"EncoderDecoderModel returns no encoder_attentions .* summarize_weights"):
        show(pair, {"input_ids": ids, "decoder_input_ids": ids}, TEXTS[0], TEXTS[0])
    vision = {"image_size": 8, "patch_size": 4, **sizes}
    clip = transformers.CLIPModel(transformers.CLIPConfig(text_config=text, vision_config=vision))
    with pytest.raises(ValueError, match=r"CLIPModel returns no attention .*: show .* or model\.vision_model, or pass"):
        show(clip, {"input_ids": ids, "pixel_values": torch.randn(1, 3, 8, 8)}, TEXTS[0])


def test_byte_level_tokenizers_show_characters() -> None:
    pytest.importorskip("transformers")
    from tiny_transformers import build

    class Bytes:
        all_special_tokens = ("Ã©",)

        def get_vocab(self) -> dict[str, int]:
            return {"##": 0, "Ġ": 1, "ĠÃ©": 2}

        def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
            return [{4: "ä½łå¥½", 5: "ä¸ĸçķĮ", 6: "##s"}.get(number, "Ã©") for number in ids]

    page = show(build("llama"), {"input_ids": torch.arange(4, 8)[None]}, Bytes())
    assert data_of(page)["sentences"][0]["target"] == ["你好", "世界", "##s", "Ã©"]


def test_unsupported_models_and_inputs_raise() -> None:
    with pytest.raises(ValueError, match="Linear has no attention"):
        show(nn.Linear(8, 8), torch.randn(1, 4, 8), TEXTS[0])
    with pytest.raises(ValueError, match="mapping with input_ids"):
        show(encoder(), torch.randn(1, 4, 8), Tokenizer())


def test_wrong_numbers_of_tokens_raise() -> None:
    for words in (["where", "is"], [*TEXTS[0], "more"]):
        with pytest.raises(ValueError, match=rf"text 1 of tokens has {len(words)} strings, .* 4 positions"):
            show(encoder(), torch.randn(1, 4, 8), words)
    with pytest.raises(ValueError, match="text 2 of tokens has 2 strings"):  # the padding mask is missing
        show(encoder(), torch.randn(2, 4, 8), TEXTS)
    model = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)
    inputs = torch.randn(1, 4, 8), torch.randn(1, 3, 8)
    with pytest.raises(ValueError, match="pass target_tokens"):
        show(model, inputs, TEXTS[0])
    with pytest.raises(ValueError, match=r"text 1 of target_tokens has 2 strings, .* 3 positions"):
        show(model, inputs, TEXTS[0], ["<s>", "hier"])


def test_tokens_missing_from_a_causal_model_raise() -> None:
    """Causal queries attend to none of the later keys, so the weights alone can't show that a token is missing."""
    pytest.importorskip("transformers")
    from tiny_transformers import build

    ids, mask = torch.tensor([[5, 6, 7, 8], [5, 6, 0, 0]]), torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    inputs = {"input_ids": ids, "attention_mask": mask}
    show(build("llama"), inputs, TEXTS)
    for words in ([TEXTS[0][1:], TEXTS[1]], [TEXTS[0], TEXTS[1][1:]]):
        with pytest.raises(ValueError, match="strings, but the model attends to 4 positions"):
            show(build("llama"), inputs, words)
    with pytest.raises(ValueError, match=r"input_ids and decoder_input_ids if .* got input_ids, attention_mask"):
        show(build("t5"), inputs, Tokenizer())


@pytest.mark.parametrize("implementation", ["eager", "sdpa", "tsallis"])
def test_show_records_wrapped_hugging_face_models(implementation: str) -> None:
    transformers = pytest.importorskip("transformers")
    from tsallis.huggingface import sparsify

    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            sizes = {"num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 8}
            self.bert = transformers.BertModel(transformers.BertConfig(vocab_size=20, hidden_size=8, **sizes))

        def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
            _, pooled = self.bert(ids, attention_mask=mask, return_dict=False)
            return pooled

    model = Wrapper()
    if implementation == "tsallis":
        sparsify(model.bert, alpha=1.5)
    else:
        model.bert.set_attn_implementation(implementation)
    page = show(model, (torch.arange(4, 12).view(2, 4), (~PADDED).long()), TEXTS)
    assert layers_of(page) == [("encoder", 0, 2), ("encoder", 1, 2)] and "<title>Wrapper</title>" in page
    assert model.bert.config._attn_implementation == implementation


def test_show_does_not_add_to_the_cache_of_a_wrapper_twice() -> None:
    transformers = pytest.importorskip("transformers")

    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            sizes = {"vocab_size": 20, "n_embd": 8, "n_layer": 2, "n_head": 2, "bos_token_id": 1, "eos_token_id": 2}
            self.gpt2 = transformers.GPT2Model(transformers.GPT2Config(**sizes))
            self.gpt2.set_attn_implementation("eager")

        def forward(self, ids: Tensor) -> Tensor:
            cache = transformers.DynamicCache()
            return self.gpt2(ids, past_key_values=cache).last_hidden_state

    assert layers_of(show(Wrapper(), torch.arange(4, 8)[None], TEXTS[0])) == [("decoder", 0, 2), ("decoder", 1, 2)]


def test_the_page_is_saved(tmp_path: Path) -> None:
    page = show(encoder(), torch.randn(1, 4, 8), TEXTS[0])
    page.save(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == page and "<iframe" in page._repr_html_()
