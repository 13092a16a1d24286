"""Tiny Transformers models with random weights, one per family, created without network access."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("transformers")  # before the modules that import it

import torch
import transformers as tf
from packaging.version import Version
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from torch import Tensor

from tsallis.huggingface import LearnedAlpha

VOCABULARY = 40
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SMALL = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
TEXT = {"vocab_size": VOCABULARY, "max_position_embeddings": 64, **SPECIAL}
SIDES = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in (("layers", 2), ("attention_heads", 4))}
SEQ2SEQ = {"d_model": 16, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "decoder_start_token_id": 1, **SIDES}
QUERIES = re.compile(r"query|q_proj|Attention\.q\b|c_attn|Wqkv")  # names of the query projections
GROUPED = {**SMALL, **TEXT, "num_key_value_heads": 2}


@dataclass(frozen=True)
class Family:
    """A family of models: a constructor, a number of attention modules, and "encoder", "decoder" or "seq2seq"."""

    name: str
    kind: str
    attentions: int
    make: Callable[[], Any]
    since: str = ""  # first version of Transformers in which its attention can be replaced

    def __str__(self) -> str:
        return self.name


FAMILIES = [
    Family("bert", "encoder", 2, lambda: tf.BertForMaskedLM(tf.BertConfig(**SMALL, **TEXT))),
    Family("roberta", "encoder", 2, lambda: tf.RobertaForMaskedLM(tf.RobertaConfig(**SMALL, **TEXT))),
    Family(
        "modernbert",
        "encoder",
        2,
        lambda: tf.ModernBertForMaskedLM(
            tf.ModernBertConfig(**SMALL, **TEXT, local_attention=4, cls_token_id=1, sep_token_id=2)
        ),
        since="5.8",
    ),
    Family(
        "gpt2",
        "decoder",
        2,
        lambda: tf.GPT2LMHeadModel(
            tf.GPT2Config(n_embd=16, n_head=4, n_layer=2, vocab_size=VOCABULARY, n_positions=64, **SPECIAL)
        ),
    ),
    Family("llama", "decoder", 2, lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**GROUPED))),
    Family("mistral", "decoder", 2, lambda: tf.MistralForCausalLM(tf.MistralConfig(**GROUPED, sliding_window=4))),
    Family(
        "gemma3",
        "decoder",
        2,
        lambda: tf.Gemma3ForCausalLM(tf.Gemma3TextConfig(**GROUPED, head_dim=4, sliding_window=4)),
    ),
    Family("marian", "seq2seq", 6, lambda: tf.MarianMTModel(tf.MarianConfig(**SEQ2SEQ, **TEXT))),
    Family("bart", "seq2seq", 6, lambda: tf.BartForConditionalGeneration(tf.BartConfig(**SEQ2SEQ, **TEXT))),
    Family(
        "t5",
        "seq2seq",
        6,
        lambda: tf.T5ForConditionalGeneration(
            tf.T5Config(
                vocab_size=VOCABULARY,
                d_model=16,
                d_kv=4,
                d_ff=24,
                num_layers=2,
                num_heads=4,
                decoder_start_token_id=1,
                **SPECIAL,
            )
        ),
        since="5.15",
    ),
]
BY_NAME = {family.name: family for family in FAMILIES}
DECODERS = [family for family in FAMILIES if family.kind != "encoder"]


def build(family: Family | str) -> Any:
    """Return a family's model in evaluation mode."""
    family = BY_NAME[family] if isinstance(family, str) else family
    if Version(tf.__version__) < Version(family.since or "0"):
        pytest.skip(f"needs transformers: {family.name} from {family.since} on")
    return fill(family.make)


def fill(make: Callable[[], Any]) -> Any:
    """Create a model in evaluation mode, with queries so large that some keys score far above others."""
    torch.manual_seed(7)
    model = make().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Marian computes its positions and does not save them.
            if parameter.dim() > 1 and "embed_positions" not in name:
                parameter.normal_(std=1.2 if QUERIES.search(name) else 0.3)
    if hasattr(model, "generation_config"):
        model.generation_config.eos_token_id = None  # every sentence reaches the maximum length
    return model


def inputs(family: Family, padding: str = "right") -> dict[str, Tensor]:
    """Return a batch of two sentences, of 7 and 4 tokens."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(3, VOCABULARY, (2, 7), generator=generator)
    mask = torch.ones_like(ids)
    hidden = slice(4, None) if padding == "right" else slice(None, 3)
    ids[1, hidden], mask[1, hidden] = 0, 0
    batch = {"input_ids": ids, "attention_mask": mask}
    if family.kind == "seq2seq":
        batch["decoder_input_ids"] = torch.randint(3, VOCABULARY, (2, 5), generator=generator)
    return batch


def checkpointing_gradients(model: Any, loss: Callable[[], Tensor], parameters: Iterable[Tensor]) -> list[list[Tensor]]:
    """Return the gradients of parameters without and with gradient checkpointing."""
    model.train()
    gradients = []
    for checkpoint in (False, True):
        if checkpoint:
            model.gradient_checkpointing_enable()
        model.zero_grad()
        torch.manual_seed(1)  # same dropout masks in both runs
        loss().backward()
        gradients.append([x.grad.clone() for x in parameters if x.grad is not None])
    return gradients


def alpha_parameters(model: Any) -> list[torch.nn.Parameter]:
    """Return the trainable parameters of learned alphas; an adapter freezes the parameters that it replaces."""
    found = [module.bias for module in model.modules() if isinstance(module, LearnedAlpha)]
    return [parameter for parameter in found if parameter.requires_grad]


def word_tokenizer(names: list[str], **special: str) -> Any:
    """Return a word tokenizer; the second name starts each text, the third ends it, the fourth is the unknown word."""
    words = Tokenizer(WordLevel({name: i for i, name in enumerate(names)}, unk_token=names[3]))
    words.pre_tokenizer = WhitespaceSplit()
    start, end = names[1:3]
    words.post_processor = TemplateProcessing(
        single=f"{start} $A {end}", pair=f"{start} $A {end} $B:1 {end}:1", special_tokens=[(start, 1), (end, 2)]
    )
    return tf.PreTrainedTokenizerFast(tokenizer_object=words, **special)
