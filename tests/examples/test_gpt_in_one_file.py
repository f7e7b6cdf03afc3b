"""The GPT in one file: equal to the library's model, causal, able to learn, and usable from the command line."""

import importlib.util
import runpy
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from glassformer import build_model, preset

SCRIPT = Path(__file__).parents[2] / "examples" / "gpt_in_one_file.py"
NAMES = {
    "token_embedding": "embeddings.tokens",
    "position_embedding": "embeddings.positions",
    "blocks": "decoder.layers",
    "attn_norm": "self_attn_sublayer.norm",
    "attn": "self_attn",
    "ffn_norm": "ffn_sublayer.norm",
    "final_norm": "decoder.norm",
}
"""Parts of parameter names that the library calls otherwise."""


def load_script():
    spec = importlib.util.spec_from_file_location("gpt_in_one_file", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


gpt = load_script()


@pytest.fixture
def model():
    torch.manual_seed(0)
    model = gpt.GPT(gpt.GPTConfig(vocab_size=11, context_length=12, d_model=16, n_heads=4, n_layers=2))
    with torch.no_grad():
        for parameter in model.parameters():  # no bias of zero, no norm of one: each parameter counts
            parameter.add_(torch.randn_like(parameter) / 4)
    return model


def library_name(name):
    return ".".join(NAMES.get(part, part) for part in name.split("."))


def library_model(config):
    return build_model(
        preset(
            "gpt2",
            vocab_size=config.vocab_size,
            max_len=config.context_length,
            d_model=config.d_model,
            d_ff=4 * config.d_model,
            n_heads=config.n_heads,
            n_decoder_layers=config.n_layers,
        )
    )


def run_script(monkeypatch, capsys, *arguments):
    """Run the script with these arguments and return its output."""
    monkeypatch.setattr(sys, "argv", [SCRIPT.name, *map(str, arguments)])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    return capsys.readouterr().out


def test_logits_equal_those_of_the_library(model):
    ours = library_model(model.config).eval()
    weights = {library_name(name): parameter for name, parameter in model.state_dict().items()}
    weights["head.out_proj.weight"] = weights["embeddings.tokens.weight"]
    ours.load_state_dict(weights)
    tokens = torch.randint(11, (3, 12))
    torch.testing.assert_close(model(tokens), ours(tokens), rtol=0, atol=1e-5)
    torch.testing.assert_close(model(tokens[:, :5]), ours(tokens[:, :5]), rtol=0, atol=1e-5)


def test_initial_weights_have_the_spread_of_the_library(model):
    fresh, ours = gpt.GPT(model.config).state_dict(), library_model(model.config).state_dict()
    for name, parameter in fresh.items():
        theirs = ours[library_name(name)]
        assert parameter.std().item() == pytest.approx(theirs.std().item(), rel=0.3), name
        assert parameter.mean().item() == pytest.approx(theirs.mean().item(), abs=0.01), name


def test_a_later_token_changes_no_earlier_logits(model):
    tokens = torch.randint(11, (2, 12))
    changed = tokens.clone()
    changed[:, 7] = (tokens[:, 7] + 1) % 11
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :7], after[:, :7])
    assert not torch.isclose(before[:, 7:], after[:, 7:]).all(dim=-1).any()


def test_targets_are_the_inputs_one_token_later():
    tokens = torch.arange(20)
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):  # 16 windows each, so that the first and the last place are drawn
        inputs, targets = gpt.get_batch(tokens, 8, generator)
        assert inputs.shape == (16, 8)
        assert torch.equal(targets, inputs + 1)
    assert {0, 19} <= {
        int(place) for _ in range(20) for place in torch.cat(gpt.get_batch(tokens, 8, generator)).flatten()
    }


def test_the_learning_rate_rises_to_its_peak_and_falls_to_zero():
    rates = [gpt.learning_rate(percent / 100) for percent in range(101)]
    assert rates[0] == 0
    assert rates[10] == max(rates) == 2e-3
    assert rates[:11] == sorted(rates[:11])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[100] == 0


def test_it_learns_a_pattern_that_needs_two_tokens_to_predict_the_next(tmp_path, monkeypatch, capsys):
    """After each letter come two others equally often, so a model that sees one token stays at log 2 nats."""
    monkeypatch.setattr(gpt, "learning_rate", partial(gpt.learning_rate, peak=1e-2))  # for a tiny model, in seconds
    torch.manual_seed(0)
    pattern = "abcacb"
    tokenizer = gpt.CharTokenizer("abc")
    model = gpt.GPT(gpt.GPTConfig(vocab_size=3, context_length=16, d_model=32, n_heads=2, n_layers=1))
    gpt.train(model, tokenizer, pattern * 50, tmp_path / "m.safetensors", minutes=60, max_steps=100)
    losses = [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()]
    assert losses[0] > 1
    assert losses[-1] < 0.2  # not 0: one token is not enough to predict the second of a window
    model, tokenizer = gpt.load(tmp_path / "m.safetensors")
    prompt = tokenizer.encode(pattern)[None]
    assert tokenizer.decode(gpt.generate(model, prompt, n_tokens=30, top_k=1)[0]) == pattern * 6


def test_the_best_model_is_kept_and_not_the_last(model, tmp_path, monkeypatch):
    losses = iter([3.0, 1.0, 2.0])
    kept = []
    monkeypatch.setattr(gpt, "validation_loss", lambda *_: next(losses))
    monkeypatch.setattr(gpt, "save", lambda *_: kept.append(model.final_norm.weight.detach().clone()))
    gpt.train(model, gpt.CharTokenizer("abcdefghijk"), "abcdefghijk" * 20, tmp_path / "m", minutes=60, max_steps=2)
    assert len(kept) == 2
    assert next(losses, None) is None
    assert not torch.equal(kept[-1], model.final_norm.weight)


def test_saving_and_loading_gives_the_same_logits_and_characters(model, tmp_path):
    path = tmp_path / "m.safetensors"
    gpt.save(model, gpt.CharTokenizer("\n\x00 \"'ab𝄞äé語"), path)
    loaded, tokenizer = gpt.load(path)
    tokens = torch.randint(11, (2, 12))
    assert torch.equal(loaded(tokens), model(tokens))
    assert loaded.config == model.config
    assert tokenizer.characters == "\n\x00 \"'ab𝄞äé語"
    assert [file.name for file in tmp_path.iterdir()] == ["m.safetensors"]


def test_sampling_draws_by_probability_from_the_most_likely_tokens(model):
    torch.manual_seed(0)
    prompt = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        logits = model(prompt)[0, -1]
    draws = [gpt.generate(model, prompt, 1, temperature=2.0, top_k=3)[0, -1].item() for _ in range(600)]
    expected = (logits / 2.0).topk(3)
    assert set(draws) == set(expected.indices.tolist())
    for token, probability in zip(expected.indices.tolist(), expected.values.softmax(dim=-1).tolist(), strict=True):
        assert draws.count(token) / 600 == pytest.approx(probability, abs=0.08)


def test_generation_goes_on_beyond_the_context(model):
    tokens = torch.randint(11, (1, 10))
    longer = gpt.generate(model, tokens, 20)
    assert longer.shape == (1, 30)
    assert torch.equal(longer[:, :10], tokens)


def test_the_command_line_trains_samples_and_continues(tmp_path, monkeypatch, capsys):
    text = tmp_path / "input.txt"
    text.write_text("the cat sat on the mat.\n" * 60, encoding="utf-8")
    told = run_script(monkeypatch, capsys, text, "--minutes", 0.01, "--length", 30)
    progress, sample = told.split("100%")
    assert progress.startswith("step      0    0%  validation loss ")
    assert len(sample.split("\n", 1)[1]) == 1 + 30 + 1  # the first character, 30 more, the end of the line
    assert (tmp_path / "input.safetensors").exists()
    told = run_script(monkeypatch, capsys, text, "--sample", "the cat", "--length", 5, "--top-k", 1)
    assert told.startswith("the cat")
    assert len(told) == len("the cat") + 5 + 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.txt"], "No such file"),
        (["short.txt"], "the text has 40 characters: expected at least 650"),
        (["short.txt", "--sample", "a"], "No such file"),
        (["trained.txt"], "trained.safetensors exists: delete it to train again, or continue a text with --sample"),
        (["trained.txt", "--sample", "zebra"], "'erz': expected characters of the training text only"),
    ],
)
def test_mistakes_end_in_a_sentence(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("short.txt").write_text("ab" * 20, encoding="utf-8")
    gpt.save(gpt.GPT(gpt.GPTConfig(vocab_size=2)), gpt.CharTokenizer("ab"), Path("trained.safetensors"))
    before = Path("trained.safetensors").read_bytes()
    with pytest.raises(SystemExit, match=message):
        run_script(monkeypatch, capsys, *arguments)
    assert Path("trained.safetensors").read_bytes() == before


@pytest.mark.parametrize("option", ["--minutes", "--length", "--temperature", "--top-k"])
def test_numbers_must_be_above_zero(option, monkeypatch, capsys):
    with pytest.raises(SystemExit) as stop:
        run_script(monkeypatch, capsys, "input.txt", option, 0)
    assert stop.value.code == 2
    assert "expected numbers above 0" in capsys.readouterr().err


def test_it_is_one_short_file_without_the_library():
    text = SCRIPT.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 250
    assert "glassformer" not in text
