"""Training into a folder: a run is bound to its data and settings, and outputs are never replaced unasked."""

import json
import random
import shutil
import threading
from dataclasses import replace

import pytest

from glassformer.checkpoint import OutputExistsError, load_model
from glassformer.checkpoint.output_folder import FolderInUseError, lock_folder
from glassformer.checkpoint.safe_files import CorruptFolderError
from glassformer.models import build_model, preset
from glassformer.tasks import train_task
from glassformer.tasks.classification import Classification, ClassificationConfig, LabeledData
from glassformer.tasks.language import DocumentData, Language, LanguageConfig
from glassformer.tasks.pretraining import TextData
from glassformer.tasks.task_registry import task_named
from glassformer.tasks.translation import Translation
from glassformer.text import Tokenizer
from glassformer.training.run_folder import RECORD, RunFolder, RunMismatchError, open_run
from tasks.tiny_tasks import WORDS, encoder_config, files_of, translation, write_pairs


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    write_pairs(folder)
    Translation(translation(folder)).train(folder / "m")
    return folder


@pytest.fixture
def trained(tmp_path, trained_once):
    """The folder of a finished run, with its data: a copy for each test."""
    return shutil.copytree(trained_once, tmp_path, dirs_exist_ok=True)


def record_of(folder):
    return json.loads((folder / "m.run" / RECORD).read_text(encoding="utf-8"))


def test_the_same_command_resumes_without_training_a_tokenizer_or_tokenizing(trained, monkeypatch):
    before = files_of(trained / "m")

    def refuse(*arguments, **options):
        raise AssertionError("the run keeps its tokenizer and its token files")

    monkeypatch.setattr(Tokenizer, "train", refuse)
    monkeypatch.setattr("glassformer.tasks.seq2seq_task.write_token_files", refuse)
    Translation(translation(trained)).train(trained / "m")
    after = files_of(trained / "m")
    assert after["model.safetensors"] == before["model.safetensors"]
    assert after["tokenizer.json"] == before["tokenizer.json"]


def test_changed_data_is_refused_and_the_model_stays(trained):
    """A former bug: changed data retrained the tokenizer, and old weights overwrote a finished model."""
    before = files_of(trained / "m")
    write_pairs(trained, seed=1)
    with pytest.raises(
        RunMismatchError, match=r"other data \(data.source\[0\], data.target\[0\]\).*--continue.*--restart"
    ):
        Translation(translation(trained)).train(trained / "m")
    assert files_of(trained / "m") == before


def test_moved_data_with_the_same_content_resumes(trained):
    moved = trained / "elsewhere"
    moved.mkdir()
    for name in ("a.en", "a.de"):
        (trained / name).rename(moved / name)
    Translation(translation(moved)).train(trained / "m")


def test_continue_accepts_changed_data_with_the_tokenizer_of_the_run(trained):
    tokenizer = (trained / "m" / "tokenizer.json").read_text(encoding="utf-8")
    write_pairs(trained, seed=1, count=200)
    Translation(translation(trained, updates=6)).train(trained / "m", accept_changes=True)
    record = record_of(trained)
    assert (trained / "m" / "tokenizer.json").read_text(encoding="utf-8") == tokenizer
    assert record["plan"]["updates"] == 6
    assert record["plan"]["start"] == 4
    (change,) = record["changes"]
    assert change["position"] == 4
    assert change["inputs"] == ["data.source[0]", "data.target[0]"]
    assert change["settings"] == {"train.updates": [4, 6]}
    Translation(translation(trained, updates=6)).train(trained / "m")
    assert len([*(trained / "m.run" / "tokens").iterdir()]) == 1


def test_restart_discards_the_run_and_may_replace_its_model(trained):
    before = files_of(trained / "m")
    write_pairs(trained, seed=1)
    Translation(translation(trained, updates=2)).train(trained / "m", restart=True)
    assert record_of(trained)["changes"] == []
    assert files_of(trained / "m")["model.safetensors"] != before["model.safetensors"]
    assert [file.name for file in (trained / "m.run" / "checkpoints").iterdir()] == ["step-00000002"]


def test_a_restart_that_cannot_read_its_data_discards_nothing(trained):
    config = translation(trained)
    broken = replace(config, data=replace(config.data, target=(trained / "none",)))
    with pytest.raises(FileNotFoundError):
        Translation(broken).train(trained / "m", restart=True)
    Translation(config).train(trained / "m")


@pytest.mark.parametrize(
    "changes", [{"lr": 1e-3}, {"updates": 9}, {"minutes": 1.0}, {"seed": 1}, {"label_smoothing": 0.0}]
)
def test_other_settings_are_refused_by_name_and_value(trained, changes):
    ((name, value),) = changes.items()
    with pytest.raises(RunMismatchError, match=rf"m.run was started with {name} .* \(now {value}\). Use --continue"):
        Translation(translation(trained, **changes)).train(trained / "m")


def test_settings_that_change_no_update_may_differ(trained):
    Translation(translation(trained, patience=3, keep_last=5, eval_every=1, metric="loss")).train(trained / "m")


def test_a_lower_learning_rate_continues_at_once(trained):
    config = translation(trained, updates=8, lr=1e-5)
    Translation(config).train(trained / "m", accept_changes=True)
    lines = [json.loads(line) for line in (trained / "m.run" / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    rates = [line["lr"] for line in lines if line["kind"] == "update" and line["update"] > 4]
    assert len(rates) == 4
    assert max(rates) <= 1e-5


def test_continue_refuses_what_the_weights_depend_on(trained):
    config = translation(trained)
    wider = replace(config, model=replace(config.model, d_ff=32))
    with pytest.raises(RunMismatchError, match=r"d_ff 16 \(now 32\), which its weights depend on"):
        Translation(wider).train(trained / "m", accept_changes=True)
    dropped = replace(config, model=replace(config.model, dropout=0.5), train=replace(config.train, updates=5))
    Translation(dropped).train(trained / "m", accept_changes=True)


def test_data_that_cannot_be_read_binds_no_run_to_its_settings(tmp_path):
    write_pairs(tmp_path)
    with (tmp_path / "a.en").open("a", encoding="utf-8") as stream:
        stream.write("one more line than the other side\n")
    config = translation(tmp_path)
    with pytest.raises(ValueError, match=r"a\.en|a\.de"):
        Translation(config).train(tmp_path / "m")
    write_pairs(tmp_path)
    Translation(translation(tmp_path, lr=1e-3)).train(tmp_path / "m")


def test_a_model_of_another_run_needs_overwrite_and_other_files_stay(trained):
    (trained / "m.run").rename(trained / "old.run")
    with pytest.raises(OutputExistsError, match="--overwrite"):
        Translation(translation(trained)).train(trained / "m")
    Translation(translation(trained, seed=3)).train(trained / "m", overwrite=True)
    (trained / "m" / "thesis.txt").write_text("years of work", encoding="utf-8")
    with pytest.raises(OutputExistsError, match=r"thesis\.txt"):
        Translation(translation(trained, seed=3)).train(trained / "m", overwrite=True)
    assert (trained / "m" / "thesis.txt").read_text(encoding="utf-8") == "years of work"


def test_an_output_that_may_not_be_written_is_refused_before_the_data_is_read(tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "thesis.txt").write_text("years of work", encoding="utf-8")
    with pytest.raises(OutputExistsError, match=r"thesis\.txt"):
        Translation(translation(tmp_path / "missing")).train(tmp_path / "m")
    (tmp_path / "f").write_text("a file", encoding="utf-8")
    with pytest.raises(OutputExistsError, match="is a file"):
        Translation(translation(tmp_path / "missing")).train(tmp_path / "f")
    assert (tmp_path / "f").read_text(encoding="utf-8") == "a file"
    with pytest.raises(FileNotFoundError):
        Translation(translation(tmp_path / "missing")).train(tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f", "m"], "a run that never began leaves no folder"


def test_files_put_into_the_output_while_training_lose_neither_them_nor_the_model(tmp_path, monkeypatch):
    write_pairs(tmp_path)
    plain = train_task.make_card

    def card(*arguments):
        (tmp_path / "m").mkdir()
        (tmp_path / "m" / "notes.txt").write_text("mine", encoding="utf-8")
        return plain(*arguments)

    monkeypatch.setattr(train_task, "make_card", card)
    with pytest.raises(OutputExistsError, match=r"notes.txt.*The trained model is in .*m\.run/model"):
        Translation(translation(tmp_path)).train(tmp_path / "m")
    assert (tmp_path / "m" / "notes.txt").read_text(encoding="utf-8") == "mine"
    load_model(tmp_path / "m.run" / "model")


def test_two_processes_cannot_train_into_one_folder(tmp_path):
    write_pairs(tmp_path)
    (tmp_path / "m.run").mkdir()
    with lock_folder(tmp_path / "m.run"), pytest.raises(FolderInUseError, match="in use by process"):
        Translation(translation(tmp_path)).train(tmp_path / "m")
    Translation(translation(tmp_path)).train(tmp_path / "m")


def test_a_run_of_an_older_version_is_refused_with_a_sentence(tmp_path):
    write_pairs(tmp_path)
    (tmp_path / "m.run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "m.run" / "config.json").write_text("{}", encoding="utf-8")
    for restart in (False, True):
        with pytest.raises(ValueError, match=r"older version .*another --out"):
            Translation(translation(tmp_path)).train(tmp_path / "m", restart=restart)
    assert (tmp_path / "m.run" / "config.json").is_file()


def test_a_run_with_another_format_of_its_record_is_refused_but_can_be_restarted(trained):
    file = trained / "m.run" / "run.json"
    record = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**record, "format": 2}), encoding="utf-8")
    with pytest.raises(ValueError, match=r"another version of Glassformer.* has format 2, expected 3.*--restart"):
        Translation(translation(trained)).train(trained / "m")
    Translation(translation(trained)).train(trained / "m", restart=True, overwrite=True)


@pytest.mark.parametrize("name", ["thesis.txt", "checkpoints/best.pt", "kept/notes.txt", "tokens/mine/x", "log.jsonl"])
def test_a_folder_that_is_no_run_is_refused_and_stays(tmp_path, name):
    write_pairs(tmp_path)
    file = tmp_path / "m.run" / name
    file.parent.mkdir(parents=True)
    file.write_text("mine", encoding="utf-8")
    for restart in (False, True):
        with pytest.raises(ValueError, match="is not part of a run: expected a run folder"):
            Translation(translation(tmp_path)).train(tmp_path / "m", restart=restart)
    assert file.read_text(encoding="utf-8") == "mine"


def test_a_model_with_the_name_of_a_run_folder_stays(tmp_path):
    write_pairs(tmp_path)
    Translation(translation(tmp_path)).train(tmp_path / "m.run")
    before = files_of(tmp_path / "m.run")
    for restart in (False, True):
        with pytest.raises(ValueError, match="is not part of a run"):
            Translation(translation(tmp_path)).train(tmp_path / "m", restart=restart)
    assert files_of(tmp_path / "m.run") == before


def test_files_of_the_user_in_a_run_folder_survive_a_restart(trained):
    mine = [trained / "m.run" / name for name in ("notes.txt", "checkpoints/best.pt", "kept/mine", "tokens/mine")]
    for file in mine:
        file.write_text("mine", encoding="utf-8")
    Translation(translation(trained)).train(trained / "m", restart=True)
    assert [file.read_text(encoding="utf-8") for file in mine] == ["mine"] * 4


def test_a_file_of_the_model_that_the_user_changed_is_not_replaced(trained):
    with (trained / "m" / "README.md").open("a") as stream:
        stream.write("my notes")
    with pytest.raises(OutputExistsError, match=r"README\.md has changed since it was written"):
        Translation(translation(trained)).train(trained / "m")
    Translation(translation(trained)).train(trained / "m", overwrite=True)


def test_an_output_that_is_part_of_the_input_is_refused(trained):
    texts = trained / "texts"
    texts.mkdir()
    (texts / "a.txt").write_text("one two three four", encoding="utf-8")
    with pytest.raises(ValueError, match=r"is inside the data folder .* Choose a folder outside it"):
        Language(LanguageConfig(data=DocumentData(data=(texts,)))).train(texts / "m")
    begun = replace(translation(trained), start_from=trained / "m")
    with pytest.raises(ValueError, match="is the model that --from names"):
        Translation(begun).train(trained / "m")


@pytest.mark.parametrize("how", ["zeros", "truncated", "no counts"])
def test_damaged_token_files_are_written_again(trained, how):
    (folder,) = (trained / "m.run" / "tokens").iterdir()
    file = folder / "train-0" / "source.bin"
    right = file.read_bytes()
    if how == "no counts":
        (folder / "train-0" / "counts.json").unlink()
    else:
        file.write_bytes(bytes(len(right)) if how == "zeros" else right[:100])
    Translation(translation(trained)).train(trained / "m")
    assert file.read_bytes() == right
    assert (folder / "train-0" / "counts.json").is_file()


def test_the_suffix_and_every_file_of_a_folder_count_as_content(tmp_path):
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "a.txt").write_text("one", encoding="utf-8")
    (texts / "manifest.json").write_text("{}", encoding="utf-8")
    task = Language(LanguageConfig(data=DocumentData(data=(texts,))))
    before = task.inputs()
    (texts / "a.txt").write_text("two", encoding="utf-8")
    assert task.inputs() != before, "a manifest in a data folder says nothing"
    same = [tmp_path / name for name in ("a.txt", "a.tsv")]
    for path in same:
        path.write_text("text\tlabel\n", encoding="utf-8")
    one, other = (Language(LanguageConfig(data=DocumentData(data=(path,)))).inputs() for path in same)
    assert one != other, "the suffix says how a file is read"


def test_fewer_updates_than_were_made_are_refused(trained):
    with pytest.raises(ValueError, match="--updates 2: expected at least 4"):
        Translation(translation(trained, updates=2)).train(trained / "m", accept_changes=True)


def test_another_task_is_refused_by_name(trained):
    path = trained / "a.tsv"
    path.write_text("text\tlabel\na\tb\nc\td\n", encoding="utf-8")
    with pytest.raises(RunMismatchError, match="was started for the task translation"):
        Classification(ClassificationConfig(data=LabeledData(data=(path,)))).train(trained / "m")


def test_a_link_and_its_folder_have_one_run(trained):
    (trained / "link").symlink_to(trained / "m")
    Translation(translation(trained)).train(trained / "link")
    assert not (trained / "link.run").exists()


def test_a_damaged_record_is_named(trained):
    for damage in ("{", "[]", '{"format": 2}', '{"format": 1}', '{"format": 2, "id": 3}', "[" * 10_000):
        (trained / "m.run" / RECORD).write_text(damage, encoding="utf-8")
        with pytest.raises(CorruptFolderError, match=r"run\.json.*--restart"):
            Translation(translation(trained)).train(trained / "m")
    Translation(translation(trained)).train(trained / "m", restart=True, overwrite=True)


def test_a_damaged_tokenizer_of_a_run_is_named(trained):
    with (trained / "m.run" / "kept" / "tokenizer.json").open("a") as stream:
        stream.write(" ")
    with pytest.raises(CorruptFolderError, match=r"kept/tokenizer\.json is missing or has changed.*--restart"):
        Translation(translation(trained)).train(trained / "m")


def test_leftovers_of_a_killed_run_are_removed_at_the_next_start(trained):
    checkpoints = trained / "m.run" / "checkpoints"
    for name in (".step-00000002.removed", ".step-00000004.part-0123abcd"):
        (checkpoints / name).mkdir()
        (checkpoints / name / "model.safetensors").write_text("half", encoding="utf-8")
    (checkpoints / "step-00000004").rename(checkpoints / ".step-00000004.old")
    with open_run(trained / "m"):
        names = {path.name for path in checkpoints.iterdir()}
    assert not any(name.startswith(".") for name in names)
    assert "step-00000004" in names, "a complete checkpoint gets its name back"


def test_training_works_outside_the_main_thread(tmp_path):
    write_pairs(tmp_path)
    scores = []
    thread = threading.Thread(target=lambda: scores.append(Translation(translation(tmp_path)).train(tmp_path / "m")))
    thread.start()
    thread.join()
    assert scores


def test_new_labels_in_continued_data_are_named(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("text\tlabel\n" + "".join(f"text {i}\t{'ab'[i % 2]}\n" for i in range(60)), encoding="utf-8")
    usual = ClassificationConfig(data=LabeledData(data=(path,)))
    train = replace(usual.train, updates=2, warmup=1, max_tokens=256, device="cpu")
    config = replace(usual, train=train, model=replace(usual.model, vocab_size=300, d_model=16, d_ff=16))
    Classification(config).train(tmp_path / "m")
    with path.open("a") as stream:
        stream.write("text 99\tc\n")
    with pytest.raises(
        ValueError,
        match=r"a\.tsv:62: the label 'c' was not learned: expected one of a, b\. .*--restart or another --out",
    ):
        Classification(config).train(tmp_path / "m", accept_changes=True)


@pytest.mark.parametrize("task", ["language", "masking", "denoising"])
def test_tasks_that_learn_from_texts_keep_their_tokenizer_and_tokens(tmp_path, task, monkeypatch):
    text = tmp_path / "a.txt"
    draw = random.Random(0)
    text.write_text("".join(" ".join(draw.choices(list(WORDS), k=6)) + ".\n" for _ in range(80)), encoding="utf-8")
    kind = task_named(task)
    data = DocumentData(data=(text,)) if task == "language" else TextData(data=(text,))
    usual = kind.Config(data=data)
    sizes = {"vocab_size": 300, "d_model": 16, "d_ff": 16, "n_heads": 2}
    train = replace(usual.train, updates=2, warmup=1, max_tokens=256, device="cpu", eval_every=2, save_every=2)
    config = replace(usual, train=train, model=replace(usual.model, **sizes))
    kind(config).train(tmp_path / "m")
    before = files_of(tmp_path / "m")

    def refuse(*arguments, **options):
        raise AssertionError("the run keeps its tokenizer and its token files")

    monkeypatch.setattr(Tokenizer, "train", refuse)
    monkeypatch.setattr("glassformer.data.batching.token_stream.write_stream", refuse)
    monkeypatch.setattr("glassformer.tasks.pretraining.write_text_rows", refuse)
    kind(config).train(tmp_path / "m")
    assert files_of(tmp_path / "m")["model.safetensors"] == before["model.safetensors"]
    text.write_text(text.read_text(encoding="utf-8") + "one two.\n", encoding="utf-8")
    with pytest.raises(RunMismatchError, match="other data"):
        kind(config).train(tmp_path / "m")


def test_a_fresh_run_keeps_nothing_until_it_begins(tmp_path):
    run = RunFolder(tmp_path / "m.run")
    assert run.keep("tokenizer.json", lambda: "text") == "text"
    assert not (tmp_path / "m.run").exists()


def test_an_option_without_effect_on_the_task_is_refused(tmp_path):
    kind, config = encoder_config(tmp_path, "classification", multi_label=True)
    with pytest.raises(ValueError, match=r"r_drop=1.0: it has no effect on classification"):
        kind(replace(config, train=replace(config.train, r_drop=1.0))).train(tmp_path / "model")


def test_an_adapter_on_experts_cannot_be_saved_alone():
    model = build_model(preset("tiny-mixtral"))
    train_task.check_adapter_alone(model, ["decoder.layers.0.self_attn.q_proj"])
    with pytest.raises(ValueError, match=r"lora_save='adapter' with an adapter on decoder.*up_proj: expected 'merged'"):
        train_task.check_adapter_alone(model, ["decoder.layers.0.ffn.experts.0.up_proj"])
