"""Tasks whose outputs are sequences of symbols, and the settings of their models."""

from __future__ import annotations

import unicodedata
import warnings
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator

from tsallis.errors import InputError
from tsallis.functional import estimate_tau, estimate_tau_from_scores
from tsallis.models.batch import Batch, has_loss
from tsallis.symbols import BOS, EOS, FIRST, UNK
from tsallis.toolkit.config import Alpha, Basis, Density, Depth, Map, Settings, Size
from tsallis.toolkit.data.corpus import Corpus
from tsallis.toolkit.data.vocabulary import split_symbols
from tsallis.toolkit.tasks.base import Task
from tsallis.toolkit.tasks.copying import copied_symbols, with_source_symbols
from tsallis.toolkit.tasks.types import Attention, Data, ModelSection
from tsallis.toolkit.training.run_folder import Run, build_model

LANGUAGE = "<lang:"  # beginning of the symbols for languages
FEATURE = "<tag:"  # beginning of the symbols for features
PEEKED = 10_000  # maximum number of examples that are searched for letters of two Unicode forms


class SequenceModel(ModelSection):
    """Output settings shared by all models that predict sequences."""

    output: Literal["softmax", "sparsemax", "entmax", "alpha_relu"] = "entmax"
    output_alpha: Alpha = 1.5
    # Threshold of alpha_relu. "auto" computes the mean entmax threshold of the first batch; "formula" estimates the
    # threshold from sizes.
    tau: Annotated[float, Field(allow_inf_nan=False)] | Literal["auto", "formula"] = "auto"

    def check(self) -> None:
        """Raise if the assumptions of `tau: formula` do not hold.

        Otherwise, the initial outputs sum to many times 1. The formula is derived for alpha 1.5, a normalised hidden
        state and a Xavier-uniform output matrix (Tezekbayev et al. 2022, lemma 3). An output matrix shared with the
        target embedding is initialised as an embedding instead, and an LSTM does not normalise its state.
        """
        if self.output != "alpha_relu" or self.tau != "formula":
            return
        settings = self.model_dump()
        conflicts = [] if settings["architecture"] == "transformer" else [f"architecture {settings['architecture']}"]
        conflicts += [f"share: {settings['share']}"] if settings["share"] != "none" else []
        conflicts += [f"output_alpha {self.output_alpha:g}"] if self.output_alpha != 1.5 else []
        if conflicts:
            raise InputError(
                "model.tau: formula needs a Transformer with share: none and output_alpha: 1.5, "
                f"found {', '.join(conflicts)}; use tau: auto, which estimates the threshold from the first batch"
            )

    def arguments(self, data: Data, settings: Settings, source: Run | None = None) -> dict[str, Any]:
        arguments = super().arguments(data, settings, source)
        if arguments["share"] == "all" and data.vocabularies.src != data.vocabularies.tgt:
            raise InputError(
                "model.share: all needs the same vocabulary for sources and targets: set data.subwords.joint: true"
            )
        arguments["tau"] = self.tau if isinstance(self.tau, float) else 0.0
        if self.output == "alpha_relu" and self.tau == "formula":
            arguments["tau"] = estimate_tau(arguments["d_model"], arguments["tgt_vocab"])
        if self.output == "alpha_relu" and self.tau == "auto" and source is not None:
            arguments["tau"] = _threshold_of(source)
        elif self.output == "alpha_relu" and self.tau == "auto":
            description = {"class": self.model_dump()["architecture"], "arguments": arguments}
            arguments["tau"] = _first_threshold(description, data.train, settings)
        return arguments


with warnings.catch_warnings():
    warnings.simplefilter("ignore", UserWarning)  # pydantic warns that `copy` hides a deprecated method

    class EncoderDecoderModel(SequenceModel):
        """Settings shared by the models with an encoder of symbols."""

        copy: bool = False  # type: ignore[assignment]  # whether symbols of the source can be copied
        # How the model reads features. joined: like other symbols. separate: an LSTM uses a second encoder and separate
        # attention; in a Transformer, features have a type embedding and position 0.
        features: Literal["joined", "separate"] = "joined"

        def adapt(self, task: Any, data: Data) -> Data:
            return with_source_symbols(task, data) if self.copy else data

        def sizes(self, data: Data) -> dict[str, Any]:
            vocabularies = data.vocabularies
            copied = {"copy": copied_symbols(vocabularies.src, vocabularies.tgt)} if self.copy else {}
            separate = {"features": feature_symbols(vocabularies.src)} if self.features == "separate" else {}
            return {**super().sizes(data), **copied, **separate}


def feature_symbols(src: Any) -> list[int]:
    """Return the numbers of the features and languages in a source vocabulary.

    Raises:
        InputError: If there are none.
    """
    symbols = [number for number in range(FIRST, len(src)) if src.name(number).startswith((LANGUAGE, FEATURE))]
    if not symbols:
        raise InputError("model.features: separate needs data with features (data.columns), found none")
    return symbols


class RNNConfig(EncoderDecoderModel):
    """Arguments of `tsallis.models.RNNSeq2Seq`."""

    architecture: Literal["rnn"] = "rnn"
    d_model: Size = Field(300, multiple_of=2)
    layers: Depth = 2
    dropout: float = Field(0.3, ge=0, lt=1)
    attention: Map = "entmax"
    attention_alpha: Alpha = 1.5
    input_feeding: bool = True
    # State of the decoder before the first symbol: the encoder's last states, or zeros.
    initial_state: Literal["encoder", "zeros"] = "encoder"
    share: Literal["none", "target"] = "none"
    # Order of hard monotonic attention: each symbol is aligned to one position, which never decreases; this needs
    # input_feeding: false. null: soft attention.
    monotonic: Literal[0, 1] | None = None
    cell: Literal["lstm", "gru"] = "lstm"
    scorer: Literal["bilinear", "additive"] = "bilinear"
    d_embedding: Size | None = None  # default: the value of `d_model`
    # Density of continuous attention; the discrete attention determines the moments of the density.
    density: Density | Alpha | None = None
    combine: bool = True
    num_basis: Basis = Field(30, multiple_of=3)
    matching: Literal["scale", "covariance"] = "covariance"

    @model_validator(mode="after")
    def _check_conflicts(self) -> RNNConfig:
        if self.share != "none" and self.d_embedding not in (None, self.d_model):
            raise ValueError(
                f"d_embedding must equal d_model {self.d_model} with share: {self.share}, found {self.d_embedding}"
            )
        if self.copy and self.density is not None:
            raise ValueError(f"copy: true needs discrete attention, found density: {self.density}; leave density out")
        if self.features != "joined" and self.density is not None:
            raise ValueError(
                f"features: separate needs discrete attention, found density: {self.density}; leave density out"
            )
        if self.monotonic is not None and self.input_feeding:
            raise ValueError(f"monotonic: {self.monotonic} needs input_feeding: false, found input_feeding: true")
        if self.monotonic is not None and (self.copy or self.features != "joined" or self.density is not None):
            raise ValueError(f"monotonic: {self.monotonic} can't be used with copy, density or features: separate")
        return self


class TransformerConfig(EncoderDecoderModel):
    """Arguments of `tsallis.models.TransformerSeq2Seq`."""

    architecture: Literal["transformer"]
    d_model: Size = 512
    heads: Size = 8
    encoder_layers: Depth = 6  # number of encoder layers
    decoder_layers: Depth = 6  # number of decoder layers
    d_ff: Size = 2048
    dropout: float = Field(0.1, ge=0, lt=1)
    attention_dropout: float = Field(0.0, ge=0, lt=1)  # dropout on attention weights
    norm: Literal["post", "pre"] = "post"
    activation: Literal["relu", "gelu"] = "relu"
    attention: Map | Literal["learned"] = "entmax"
    attention_alpha: Alpha = 1.5
    encoder_attention: Map | Literal["learned"] | None = None  # attention of the encoder; null: `attention`
    decoder_attention: Map | Literal["learned"] | None = None  # attention of the decoder to itself; null: `attention`
    cross_attention: Map | Literal["learned"] | None = None  # attention of the decoder to the source; null: `attention`
    tie_alphas: Literal["none", "layer", "kind", "global"] = "none"  # scope in which heads share a learned alpha
    share: Literal["none", "target", "all"] = "none"
    checkpoint_activations: bool = False
    positions: Literal["sinusoids", "rope", "alibi", "nape", "none"] = "sinusoids"  # kind of position information
    length_scale: Literal["input", "head", "ssmax"] | None = None  # scaling of scores by the number of keys

    @model_validator(mode="after")
    def _check_positions(self) -> TransformerConfig:
        if self.features != "joined" and self.positions != "sinusoids":
            raise ValueError(f"features: separate needs positions: sinusoids, found {self.positions}")
        return self


class SequenceTask(Task):
    """Base class of tasks whose outputs are sequences, for models with attention to the source."""

    models: ClassVar[Mapping[str, type[ModelSection]]] = {"rnn": RNNConfig, "transformer": TransformerConfig}

    def attention(self, run: Run, batch: Batch) -> dict[str, Attention]:
        arguments = batch.src, batch.src_lengths, batch.tgt_in
        density = run.model.densities(*arguments) if hasattr(run.model, "densities") else None
        return {"source": Attention(run.model(*arguments, need_attention=True).attention, density)}

    def text_symbols(self, title: str, vocabulary: Any) -> list[str]:
        """Return the symbols of the text in a title, without features. The source ends with these symbols."""
        return [*split_symbols(title, vocabulary.separator)]

    def preview(self, data: Data) -> list[str]:
        lines = [f"columns: {self.formats[True]}; as the model sees them:"]
        sides = (data.vocabularies.src, data.train.src), (data.vocabularies.tgt, data.train.tgt)
        for row in range(min(3, len(data.train))):
            source, target = (" ".join(vocab.name(int(symbol)) for symbol in side[row]) for vocab, side in sides)
            lines.append(f"  {source}  ->  {target}")
        for side, (vocab, rows) in zip(("src", "tgt"), sides, strict=True):
            if letter := _letter_of_two_forms(vocab, rows):
                lines.append(f"  {letter} occurs in two Unicode forms: data.{side}_normalization=NFC makes them equal")
        return lines

    def attention_symbols(self, run: Run, source: Sequence[int], target: Sequence[int], title: str) -> dict[str, Any]:
        symbols = super().attention_symbols(run, source, target, title)
        start, end = (run.tgt_vocab.name(symbol) for symbol in (BOS, EOS))
        return {**symbols, "target": [*symbols["target"], end], "read": [start, *symbols["target"]]}


def _letter_of_two_forms(vocabulary: Any, rows: Any) -> str:
    """Return a letter that is one character in some texts, and a letter and a combining character in others."""
    for row in range(min(PEEKED, len(rows))):
        text = vocabulary.decode(map(int, rows[row]))
        composed = set(unicodedata.normalize("NFC", text)).difference(text, " ")
        if found := [letter for letter in sorted(composed) if vocabulary.encode(letter) != [UNK]]:
            return found[0]
    return ""


def _threshold_of(source: Run) -> float:
    """Return the alpha-ReLU threshold of a trained model."""
    arguments = source.model.arguments
    if arguments.get("output") != "alpha_relu":
        raise InputError(
            f"model.tau: auto can't use {source.folder}, because its output is {arguments.get('output')} instead of "
            "alpha_relu: set tau to a number"
        )
    return float(arguments["tau"])


@torch.no_grad()
def _first_threshold(description: dict[str, Any], corpus: Corpus, settings: Settings) -> float:
    """Return the mean entmax threshold of the untrained model on one batch (Tezekbayev et al. 2022, sec. 3)."""
    torch.manual_seed(settings.seed)
    mixtures = ("copy", "monotonic")  # their scores are not those of the map
    arguments = {key: value for key, value in description["arguments"].items() if key not in mixtures}
    model = build_model({**description, "arguments": arguments}).eval()
    batch = corpus.batch(range(min(settings.batch_size, len(corpus))))
    hidden = model(batch.src, batch.src_lengths, batch.tgt_in).hidden[has_loss(batch.tgt_out)]  # [symbols, d_model]
    return float(estimate_tau_from_scores(model.output.scores(hidden), model.output.alpha))


def check_source(
    data: Any,
    names: Sequence[str],
    embedded: str,
    sources: Sequence[str] = ("embedded",),
    needed: Sequence[str] = ("train", "dev"),
) -> None:
    """Raise a ValueError unless the section `data` names either the needed files or one other source."""
    chosen = [name for name in sources if getattr(data, name) is not None]
    files = [name for name in names if getattr(data, name) is not None]
    if chosen and files:
        raise ValueError(
            f"{', '.join(files)} can't be used with {chosen[0]} data: use either files or {chosen[0]} data, not both"
        )
    if not chosen and not set(needed).issubset(files):
        raise ValueError(f"{' and '.join(needed)} must be set (or embedded: {embedded})")
