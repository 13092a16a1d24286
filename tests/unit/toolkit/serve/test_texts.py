"""A served language model continues prompts, also empty ones, and returns unfinished samples."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from run_seed import SEED
from tsallis.search import SearchOptions, beam_search, generate
from tsallis.search.sampling import line_seed
from tsallis.symbols import BOS
from tsallis.toolkit.cli import app
from tsallis.toolkit.serve.answers import ServedRun
from tsallis.toolkit.serve.limits import Limits
from tsallis.toolkit.serve.requests import AttentionRequest, TranslateRequest
from tsallis.toolkit.tasks.registry import task_of
from tsallis.toolkit.training import load_run

from .conftest import no_check, sources


@pytest.fixture(scope="module")
def speaker(tmp_path_factory: pytest.TempPathFactory) -> ServedRun:
    folder = tmp_path_factory.mktemp("speaker")
    content = {
        "version": 1,
        "data": {"task": "language", "embedded": "german-numbers", "length": 32},
        "model": {"d_model": 16, "heads": 2, "layers": 2, "d_ff": 16, "alpha": "learned"},
        "training": {"epochs": 1, "updates": 20, "max_tokens": 256, "learning_rate": 0.01, "seed": SEED},
    }
    (folder / "config.yaml").write_text(json.dumps(content))
    app(["train", str(folder / "config.yaml"), "--run-dir", str(folder / "run")], standalone_mode=False)
    run = load_run(folder / "run")
    return ServedRun("speaker", run, task_of(run.task), SearchOptions(beam_size=2), Limits())


def translate(served: ServedRun, **request: Any) -> list[dict[str, Any]]:
    (content,) = served.translate([TranslateRequest(**request)], no_check)
    answers: list[dict[str, Any]] = content["answers"]
    return answers


def test_continuations_of_prompts_match_beam_search(speaker: ServedRun) -> None:
    lines = ["drei", "", "a"]
    answers = translate(speaker, sources=lines, n_best=2, max_length=8)
    results = beam_search(*sources(speaker, *lines), beam_size=2, n_best=2, max_length=8)
    for answer, result in zip(answers, results, strict=True):
        assert [h["tokens"] for h in answer["hypotheses"]] == [h.tokens for h in result.hypotheses]
        assert answer["certificate"] == result.certificate.kind


def test_samples_match_generate_and_report_whether_they_ended(speaker: ServedRun) -> None:
    (answer,) = translate(speaker, sources=["drei"], mode="sample", num_samples=6, seed=3, max_length=5)
    (texts,) = generate(*sources(speaker, "drei"), 6, max_length=5, seeds=[line_seed(3, 1)])
    assert [(draw["tokens"], draw["ended"]) for draw in answer["draws"]] == [(x.tokens, x.ended) for x in texts]
    assert any(not text.ended for text in texts)
    assert answer["draws"][0]["text"] == speaker.run.tgt_vocab.decode(texts[0].tokens)


def test_attention_covers_prompt_and_output(speaker: ServedRun) -> None:
    (content,) = speaker.attention([AttentionRequest(source="drei", output="zehn", heads=["decoder.1.2"])], no_check)
    (head,), model = content["heads"], speaker.run.model
    pieces = ("<s>", *"dreizehn")
    assert head["queries"] == pieces and head["keys"] == pieces
    text = torch.tensor([[BOS, *speaker.run.tgt_vocab.encode("dreizehn")]])
    layer = model.layers[0]
    with torch.no_grad():
        x = layer.norm1(model.embedding(text))
        options = {"is_causal": True, "need_weights": True, "average_attn_weights": False}
        _, weights = layer.self_attn(x, x, x, **options)
    for query, row in enumerate(head["rows"]):
        expected = {key: weight for key, weight in enumerate(weights[0, 1, query].tolist()) if weight > 0}
        assert dict(row) == pytest.approx(expected, abs=1e-6)
