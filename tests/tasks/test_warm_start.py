"""Initializing from a trained model: the weights that are taken over, and the folders that are refused."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
import transformers

import glassformer
from glassformer.checkpoint import load_model
from glassformer.checkpoint.model_folder import read_now
from glassformer.checkpoint.unread_weights import reading_later
from glassformer.pipelines.load import load
from glassformer.tasks.classification import Classification, ClassificationConfig, LabeledData
from glassformer.tasks.denoising import Denoising, DenoisingConfig
from glassformer.tasks.masking import Masking, MaskingConfig
from glassformer.tasks.translation import PairData, Translation, TranslationConfig
from glassformer.tasks.warm_start import load_encoder, load_seq2seq
from glassformer.text.pretrained_tokenizers import PretrainedTokenizer
from tasks.pretrained_models import SIDE, hf_logits, hf_pair_logits, save_decoder, save_seq2seq
from tasks.pretraining_models import labeled, quick
from tasks.tiny_tasks import encoder_config, translation, write_pairs
from text.language_tokenizers import KINDS, save_language_model, save_language_tokenizer

TEXT = "the cat <|im_end|> sat, fünf"


def test_a_pretrained_body_is_taken_over_bit_by_bit(masked, tmp_path):
    body = load_model(masked[0])
    model, reader = load_encoder(masked[0], "token_class", {"n_labels": 3})
    own = dict(body.named_parameters())
    for name, parameter in model.named_parameters():
        assert name.startswith("head.") or torch.equal(parameter, own[name])
    assert reader.files["tokenizer.json"] == (masked[0] / "tokenizer.json").read_text(encoding="utf-8")
    files = labeled(tmp_path, 120, 1), labeled(tmp_path, 40, 2)
    config = ClassificationConfig(data=LabeledData(data=files[:1], valid=files[1:]), start_from=masked[0])
    config = quick(config, updates=30)
    scores = Classification(config).train(tmp_path / "all")
    assert scores["accuracy"] > 90
    # With adapters, only the adapted matrices and the head differ from the checkpoint.
    layers = ("v_proj", "out_proj", "up_proj", "down_proj")
    adapted = replace(config, train=replace(config.train, lora_rank=8, lora_layers=layers, lr=0.03, updates=40))
    assert Classification(adapted).train(tmp_path / "adapted")["accuracy"] > 90
    plain = load(tmp_path / "adapted").model
    moved = {name for name, p in plain.named_parameters() if name not in own or not torch.equal(p, own[name])}
    parts = ("self_attn.v_proj", "self_attn.out_proj", "ffn.up_proj", "ffn.down_proj")
    assert {name for name in moved if name.startswith("head.")} == {"head.out_proj.weight", "head.out_proj.bias"}
    assert {name for name in moved if not name.startswith("head.")} == {
        f"encoder.layers.0.{part}.weight" for part in parts
    }
    with pytest.raises(ValueError, match="lora_rank=8 without a model to adapt"):
        Classification(replace(adapted, start_from=None)).train(tmp_path / "none")


def test_a_new_head_is_the_same_if_the_weights_are_read_later(masked):
    torch.manual_seed(3)
    expected, _ = load_encoder(masked[0], "token_class", {"n_labels": 3})
    torch.manual_seed(3)
    with reading_later():
        model, _ = load_encoder(masked[0], "token_class", {"n_labels": 3})
    assert {name.partition(".")[0] for name, one in model.named_parameters() if not one.is_meta} == {"head"}
    read_now(model)
    for (name, one), (_, other) in zip(model.named_parameters(), expected.named_parameters(), strict=True):
        assert torch.equal(one, other), name


def test_a_translator_starts_from_a_denoising_model(denoised, corpus, tmp_path):
    folder = denoised[0]
    model, source, target = load_seq2seq(folder)
    assert source is target
    for name, parameter in load_model(folder).named_parameters():
        assert torch.equal(parameter, dict(model.named_parameters())[name])
    texts = corpus.data[0].read_text(encoding="utf-8").splitlines()[:60]
    (tmp_path / "a.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    (tmp_path / "b.txt").write_text("\n".join(" ".join(text.split()[::-1]) for text in texts) + "\n", encoding="utf-8")
    files = PairData(
        source=(tmp_path / "a.txt",),
        target=(tmp_path / "b.txt",),
        valid_source=(tmp_path / "a.txt",),
        valid_target=(tmp_path / "b.txt",),
    )
    config = quick(TranslationConfig(data=files, start_from=folder), updates=3)
    Translation(config).train(tmp_path / "translator")
    tool = load(tmp_path / "translator")
    assert tool.source_tokenizer.to_json() == source.to_json()
    assert tool.model.config == model.config
    assert len(tool.run(["the old dog barks ."])) == 1


def test_a_model_that_does_not_fit_is_refused_with_a_reason(masked, denoised, corpus, tmp_path):
    targets = [(tmp_path / f"{name}.de",) for name in ("train", "valid")]
    for files, (target,) in zip((corpus.data, corpus.valid), targets, strict=True):
        target.write_bytes(files[0].read_bytes())
    pairs = PairData(source=corpus.data, target=targets[0], valid_source=corpus.valid, valid_target=targets[1])
    with pytest.raises(ValueError, match="is of kind 'encoder': expected 'encoder_decoder'"):
        Translation(quick(TranslationConfig(data=pairs, start_from=masked[0]))).train(tmp_path / "a")
    with pytest.raises(ValueError, match="is of kind 'encoder_decoder': expected 'encoder'"):
        Masking(quick(MaskingConfig(data=corpus, start_from=denoised[0]))).train(tmp_path / "b")
    with pytest.raises(FileNotFoundError, match=r"--from .*nowhere: no such folder"):
        Masking(quick(MaskingConfig(data=corpus, start_from=tmp_path / "nowhere"))).train(tmp_path / "c")
    other = {"spans": "infilling", "infilling": "spans"}[load(denoised[0]).noise]
    with pytest.raises(ValueError, match="expected a model that `glassformer train denoising` wrote"):
        Denoising(quick(DenoisingConfig(data=corpus, start_from=denoised[0], noise=other))).train(tmp_path / "d")
    sizes = {"vocab_size": 30, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "max_position_embeddings": 32}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    theirs = transformers.BartForConditionalGeneration(transformers.BartConfig(**sizes, **heads))
    theirs.save_pretrained(tmp_path / "bart")
    with pytest.raises(ValueError, match="bart holds no tokenizer: expected"):
        Translation(quick(TranslationConfig(data=pairs, start_from=tmp_path / "bart"))).train(tmp_path / "e")


def grown_translation(folder, **model):
    config = translation(folder)
    return replace(config, model=replace(config.model, **model), grow_from=folder / "m")


def test_a_translator_grows_and_resumes_to_the_same_bits(tmp_path):
    write_pairs(tmp_path)
    pre = replace(translation(tmp_path), model=replace(translation(tmp_path).model, norm_placement="pre"))
    Translation(pre).train(tmp_path / "m")
    large = {"norm_placement": "pre", "d_ff": 40, "n_encoder_layers": 3, "n_heads": 3, "head_dim": 8}
    config = grown_translation(tmp_path, **large)
    model = Translation(config).initialize([]).pipeline.model
    small = load_model(tmp_path / "m").eval()
    tokens = torch.arange(4, 12)[None]
    torch.testing.assert_close(model.eval()(tokens, tokens), small(tokens, tokens), rtol=1e-4, atol=1e-5)
    Translation(config).train(tmp_path / "whole")

    def stop(step):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Translation(config).train(tmp_path / "torn", on_step=stop)
    Translation(config).train(tmp_path / "torn")
    whole, torn = (load_model(tmp_path / name).state_dict() for name in ("whole", "torn"))
    assert all(torch.equal(torn[name], value) for name, value in whole.items())
    card = (tmp_path / "whole" / "README.md").read_text(encoding="utf-8")
    assert f"| grown from | `{tmp_path / 'm'}` |" in card
    assert "3 + 1 layers" in card


def test_what_cannot_grow_is_refused_by_name(tmp_path):
    write_pairs(tmp_path)
    Translation(translation(tmp_path)).train(tmp_path / "m")
    post = grown_translation(tmp_path, n_decoder_layers=2, norm_placement="post")
    if load_model(tmp_path / "m").config.norm_placement == "pre":
        with pytest.raises(ValueError, match=r"--grow-from .*m: norm_placement='post': expected 'pre'"):
            Translation(post).train(tmp_path / "n")
    else:
        with pytest.raises(ValueError, match=r"--grow-from .*m: n_decoder_layers=2: .*norm_placement='post'"):
            Translation(post).train(tmp_path / "n")
    both = replace(grown_translation(tmp_path), start_from=tmp_path / "m")
    with pytest.raises(ValueError, match=r"--from .* and --grow-from .*: expected one of them"):
        Translation(both).train(tmp_path / "n")
    with pytest.raises(ValueError, match="is the model that --grow-from names"):
        Translation(grown_translation(tmp_path)).train(tmp_path / "m")
    missing = replace(translation(tmp_path), grow_from=tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"--grow-from .*nowhere: no such folder"):
        Translation(missing).train(tmp_path / "n")


def test_a_classifier_grows_with_its_head_if_the_labels_are_the_same(tmp_path):
    _, config = encoder_config(tmp_path, "classification")
    Classification(config).train(tmp_path / "m")
    large = replace(config, grow_from=tmp_path / "m", model=replace(config.model, d_ff=30))
    train = list(config.data.splits().train)
    model, own = Classification(large).initialize(train).pipeline.model, load_model(tmp_path / "m")
    assert torch.equal(model.head.out_proj.weight, own.head.out_proj.weight)
    tokens = torch.arange(4, 12)[None]
    torch.testing.assert_close(model.eval()(tokens), own.eval()(tokens), rtol=1e-4, atol=1e-5)
    other = [replace_label(example) for example in train]
    assert Classification(large).initialize(other).pipeline.labels == ["a", "c"]


@pytest.mark.parametrize("task", ["classification", "tagging", "extraction", "similarity"])
def test_a_model_trained_for_the_same_task_and_labels_keeps_its_head(task, tmp_path):
    """Trained further with a learning rate of almost 0, it has the scores that it had."""
    kind, config = encoder_config(tmp_path, task)
    first = kind(quick(config, updates=30)).train(tmp_path / "m")
    again = kind(replace(config, start_from=tmp_path / "m", train=replace(config.train, lr=1e-12, updates=1)))
    own, train = load_model(tmp_path / "m"), list(config.data.splits().train)
    started = again.initialize(train)
    for (name, one), (_, other) in zip(started.pipeline.model.named_parameters(), own.named_parameters(), strict=True):
        assert torch.equal(one, other), name
    assert all("keeps the head of" in note for note in started.notes)
    assert again.train(tmp_path / "n") == pytest.approx(first, abs=1e-6)


def test_other_labels_get_a_new_head(tmp_path):
    _, config = encoder_config(tmp_path, "classification")
    Classification(config).train(tmp_path / "m")
    task = Classification(replace(config, start_from=tmp_path / "m"))
    started = task.initialize([replace_label(example) for example in config.data.splits().train])
    assert started.pipeline.labels == ["a", "c"]
    assert started.notes == ["the model gets a new head"]


def replace_label(example):
    return example._replace(labels=["c" if label == "b" else label for label in example.labels])


def test_a_masked_language_model_and_a_denoising_model_grow(masked, denoised, corpus):
    masking = quick(MaskingConfig(data=corpus, grow_from=masked[0]))
    denoising = quick(DenoisingConfig(data=corpus, noise=load(denoised[0]).noise, grow_from=denoised[0]))
    for task, config in ((Masking, masking), (Denoising, denoising)):
        small = load_model(config.grow_from).eval()
        model = replace(small.config, d_ff=2 * small.config.d_ff)
        large = task(replace(config, model=model)).initialize([]).pipeline.model.eval()
        assert large.config.d_ff == model.d_ff
        tokens = [torch.arange(4, 12)[None]] * (1 if task is Masking else 2)
        torch.testing.assert_close(large(*tokens), small(*tokens), rtol=1e-4, atol=1e-5)


def test_options_that_are_not_given_are_those_of_the_small_model(tmp_path):
    (tmp_path / "a.txt").write_text("to be or not to be, that is the question. " * 60, encoding="utf-8")
    common = {"data": tmp_path / "a.txt", "device": "cpu", "vocab_size": 270, "size": "tiny"}
    sizes = {"d_model": 16, "n_heads": 2, "n_decoder_layers": 1, "d_ff": 20, "context": 16, "norm": "layer"}
    glassformer.train("language", out=tmp_path / "s", updates=1, **common, **sizes)
    given = {**common, "size": "auto", "updates": 1, "lr": 1e-9}
    glassformer.train("language", out=tmp_path / "l", grow_from=tmp_path / "s", n_decoder_layers=2, **given)
    small, large = load_model(tmp_path / "s"), load_model(tmp_path / "l")
    changed = {name for name, value in small.config.to_dict().items() if large.config.to_dict()[name] != value}
    assert changed - {"dropout", "embedding_dropout", "init", "init_std"} == {"n_decoder_layers"}
    tokens = torch.arange(4, 12)[None]
    torch.testing.assert_close(large.eval()(tokens), small.eval()(tokens), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("kind", "begin"), [("Llama", "<s>"), ("GPT2", None)])
def test_a_decoder_of_another_library_is_fine_tuned_with_its_own_tokenizer(kind, begin, tmp_path):
    save_decoder(tmp_path / "hf", kind, begin=begin)
    lines = (json.dumps({"text": f"the cat sat on mat {i}"}) + "\n" for i in range(40))
    (tmp_path / "t.jsonl").write_text("".join(lines), encoding="utf-8")
    options = {"data": tmp_path / "t.jsonl", "updates": 3, "context": 16, "max_tokens": 64, "device": "cpu"}
    glassformer.train("language", start_from=tmp_path / "hf", out=tmp_path / "m", **options)
    tool = load(tmp_path / "m")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    start = [3] if begin else [2]
    assert tool.read("the cat") == start + tokenizer("the cat", add_special_tokens=False).input_ids
    glassformer.convert(tmp_path / "m", to="hf", out=tmp_path / "again")
    ids = tool.read("the cat sat on")
    with torch.no_grad():
        torch.testing.assert_close(tool.model(torch.tensor([ids]))[0], hf_logits(tmp_path / "again", ids))
    assert tokenizer(TEXT).input_ids == transformers.AutoTokenizer.from_pretrained(tmp_path / "again")(TEXT).input_ids
    # The result can be fine-tuned again, for another task.
    with pytest.raises(ValueError, match=r"fim=0\.5: the tokenizer of --from .* expected --fim 0"):
        glassformer.train("code", start_from=tmp_path / "m", out=tmp_path / "c", **options)
    glassformer.train("code", start_from=tmp_path / "m", out=tmp_path / "c", restart=True, fim=0.0, **options)
    with pytest.raises(ValueError, match="the model has no tokens to mark a gap"):
        load(tmp_path / "c").infill("a", "b")
    with pytest.raises(ValueError, match=r"context=1000: expected at most \d+, the limit of the model"):
        glassformer.train("language", start_from=tmp_path / "hf", out=tmp_path / "d", **{**options, "context": 1000})
    with pytest.raises(ValueError, match=r"word_dropout=0\.1: expected 0"):
        glassformer.train("language", start_from=tmp_path / "hf", out=tmp_path / "e", word_dropout=0.1, **options)


def test_a_decoder_classifies_by_its_last_token(reviews, tmp_path):
    save_decoder(tmp_path / "hf")
    options = {"updates": 60, "lr": 3e-3, "device": "cpu", "max_tokens": 1024, "eval_every": 60}
    scores = glassformer.train(
        "classification", data=reviews, start_from=tmp_path / "hf", out=tmp_path / "m", **options
    )
    assert scores["accuracy"] == 100
    tool = load(tmp_path / "m")
    assert tool.model.kind == "decoder"
    assert tool.model.config.pooling == "last"
    assert tool.run(["it is good 3", "it is bad 7"]) == ["good", "bad"]
    assert tool.embed(["it is good"]).shape == (1, 16)
    # Text after the end of a sequence has no effect: padding is not the last token.
    together = tool.probabilities(["it is good", "it is bad and this one is much longer"])
    torch.testing.assert_close(together[0], tool.probabilities("it is good"))


def test_a_pickled_model_is_trained_from_a_converted_copy(tmp_path):
    model = save_decoder(tmp_path / "hf")
    (tmp_path / "hf" / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "hf" / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    (tmp_path / "a.txt").write_text("one two three\n" * 60, encoding="utf-8")
    options = {"data": tmp_path / "a.txt", "updates": 1, "context": 16, "device": "cpu"}
    with pytest.raises(ValueError, match=r"is a pickle.* convert --to hf --allow-pickle writes a copy"):
        glassformer.train("language", start_from=tmp_path / "hf", out=tmp_path / "no", **options)
    glassformer.convert(tmp_path / "hf", to="hf", out=tmp_path / "copy", allow_pickle=True)
    glassformer.train("language", start_from=tmp_path / "copy", out=tmp_path / "m", **options)
    assert load(tmp_path / "m").model.kind == "decoder"


@pytest.mark.parametrize("kind", ["T5", "Bart", "Marian"])
def test_an_encoder_decoder_goes_to_another_library_and_back(kind, tmp_path):
    """Fine-tune here, export, fine-tune there, load back: the same logits after each step."""
    save_seq2seq(tmp_path / "hf", kind)
    write_pairs(tmp_path)
    files = {"source": tmp_path / "a.en", "target": tmp_path / "a.de"}
    options = {"updates": 3, "max_tokens": 256, "device": "cpu", "eval_every": 3}
    glassformer.train("translation", start_from=tmp_path / "hf", out=tmp_path / "one", **files, **options)
    one = load(tmp_path / "one")
    assert one.source_tokenizer.encode(TEXT) == hf_ids(tmp_path / "hf", TEXT)
    source, target = hf_ids(tmp_path / "hf", "one two three"), hf_ids(tmp_path / "hf", "eins zwei drei")
    glassformer.convert(tmp_path / "one", to="hf", out=tmp_path / "there")
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "there", dtype=torch.float32).eval()
    torch.testing.assert_close(own_logits(one, source, target), hf_pair_logits(model, source, target))
    assert model.generation_config.num_beams == one.generation.num_beams
    written = model.generate(torch.tensor([source]), suppress_tokens=[0], max_new_tokens=6)[0, 1:].tolist()
    (text,) = one.candidates(["one two three"], replace(one.generation, max_new_tokens=6))[0]
    assert text.text == one.target_tokenizer.decode(written[: written.index(2)] if 2 in written else written)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(2):
        model(input_ids=torch.tensor([source]), labels=torch.tensor([target])).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval().save_pretrained(tmp_path / "tuned")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tmp_path / "there" / name, tmp_path / "tuned")
    back = load(tmp_path / "tuned")
    logits = own_logits(back, source, target)
    torch.testing.assert_close(logits, hf_pair_logits(model, source, target), atol=1e-5, rtol=1e-5)
    assert (logits - own_logits(one, source, target)).abs().max() > 1e-3
    glassformer.train("translation", start_from=tmp_path / "tuned", out=tmp_path / "two", **files, **options)
    assert len(load(tmp_path / "two").run(["one two"])) == 1
    with pytest.raises(ValueError, match=r"bpe_dropout=0\.1: expected 0"):
        glassformer.train(
            "translation", start_from=tmp_path / "hf", out=tmp_path / "no", bpe_dropout=0.1, **files, **options
        )


def hf_ids(folder, text):
    return PretrainedTokenizer.from_folder(folder).encode(text)


def own_logits(tool, source, target):
    with torch.no_grad():
        return tool.model(torch.tensor([source]), torch.tensor([[tool.begin, *target[:-1]]]))[0]


@pytest.mark.parametrize("kind", KINDS)
def test_languages_of_a_multilingual_translator_have_their_codes(kind, tmp_path):
    theirs, source, target = save_language_tokenizer(tmp_path / "hf", kind)
    sides = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in SIDE.items()}
    sizes = {"d_model": 16, "max_position_embeddings": 64, "dropout": 0.0, "vocab_size": len(theirs), **sides}
    ids = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2}
    family = "M2M100" if kind == "nllb" else "MBart"
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**sizes, **ids, forced_eos_token_id=None)
    transformers.AutoModelForSeq2SeqLM.from_config(config).save_pretrained(tmp_path / "hf")
    pairs = [("one two", "eins zwei"), ("three", "drei"), ("four one", "vier eins")] * 20
    for name, side in (("a.x", 0), ("a.y", 1)):
        text = "".join(f"{pair[side]} {number % 7 * 'one '}\n" for number, pair in enumerate(pairs))
        (tmp_path / name).write_text(text, encoding="utf-8")
    options = {"source": tmp_path / "a.x", "target": tmp_path / "a.y", "updates": 1, "device": "cpu"}
    with pytest.raises(ValueError, match="--source-language '': the model has codes of languages"):
        glassformer.train("translation", start_from=tmp_path / "hf", out=tmp_path / "no", **options)
    options |= {"source_language": source, "target_language": target}
    glassformer.train("translation", start_from=tmp_path / "hf", out=tmp_path / "m", **options)
    tool = glassformer.load(tmp_path / "m")
    read, written = theirs("one two")["input_ids"], theirs(text_target="eins")["input_ids"]
    assert tool.source_tokenizer.encode("one two") == read
    assert tool.target_tokenizer.encode("eins") == written
    code = theirs.convert_tokens_to_ids(target)
    assert (tool.begin, tool.generation.prefix) == ((code, ()) if kind == "mbart" else (2, (code,)))
    glassformer.convert(tmp_path / "m", to="hf", out=tmp_path / "again")
    again = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "again").eval()
    expected = hf_pair_logits(again, read, written)  # which puts the start before the target by itself
    with torch.no_grad():
        found = tool.model(torch.tensor([read]), torch.tensor([[tool.begin, *written[:-1]]]))[0]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    hf = glassformer.load(tmp_path / "again")
    assert (hf.begin, hf.generation.prefix) == (tool.begin, tool.generation.prefix)
    glassformer.train(
        "translation",
        start_from=tmp_path / "m",
        out=tmp_path / "more",
        **{**options, "source_language": "", "target_language": ""},
    )
    assert glassformer.load(tmp_path / "more").generation.prefix == tool.generation.prefix


@pytest.mark.parametrize(
    ("task", "kind"),
    [
        pytest.param(task, kind, marks=[] if (task, kind) == ("summarization", KINDS[0]) else pytest.mark.full)
        for task in ("summarization", "answering")
        for kind in KINDS
    ],
)
def test_a_multilingual_model_summarizes_and_answers_in_one_language(task, kind, tmp_path):
    _, words, _, target = save_language_model(tmp_path / "hf", kind)
    cells = {"summarization": "source\ttarget", "answering": "question\tcontext\tanswer"}[task]
    rows = [f"{'one ' * (n % 7 + 1)}\t" * (cells.count("\t")) + "zwei" for n in range(60)]
    (tmp_path / "a.tsv").write_text("\n".join([cells, *rows]) + "\n", encoding="utf-8")
    options = {"data": tmp_path / "a.tsv", "updates": 1, "device": "cpu"}
    with pytest.raises(ValueError, match="--language '': the model has codes of languages"):
        glassformer.train(task, start_from=tmp_path / "hf", out=tmp_path / "no", **options)
    glassformer.train(task, start_from=tmp_path / "hf", out=tmp_path / "m", language=target, **options)
    tool, code = load(tmp_path / "m"), words.convert_tokens_to_ids(target)
    words.src_lang = target
    assert tool.source_tokenizer.encode("one two") == words("one two")["input_ids"]
    assert tool.target_tokenizer.encode("zwei") == words(text_target="zwei")["input_ids"]
    assert (tool.begin, tool.generation.prefix) == ((code, ()) if kind == "mbart" else (2, (code,)))
    glassformer.train(task, start_from=tmp_path / "m", out=tmp_path / "again", **options)
    assert load(tmp_path / "again").source_tokenizer.encode("one two") == tool.source_tokenizer.encode("one two")
    with pytest.raises(ValueError, match="--language de has no effect without --from"):
        glassformer.train(task, out=tmp_path / "no", language="de", **options)
    save_seq2seq(tmp_path / "t5", "T5")
    with pytest.raises(ValueError, match="--language de: expected none"):
        glassformer.train(task, start_from=tmp_path / "t5", out=tmp_path / "no", language="de", **options)
