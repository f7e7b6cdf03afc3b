"""A run folder binds a run to its settings and inputs, and only its own files are ever removed."""

import json
from dataclasses import dataclass, field

import pytest

from glassformer.checkpoint import CorruptFolderError
from glassformer.checkpoint.output_folder import FolderInUseError
from glassformer.training.run_folder import RECORD, RunMismatchError, flatten, open_run
from glassformer.training.schedules import Plan

PLAN = Plan(updates=10, warmup=2)


@dataclass
class Part:
    lr: float = 0.1
    save_every: int = 5
    optimizer: str = "adam"
    clip: float = 1.0


@dataclass
class Config:
    train: Part = field(default_factory=Part)


def bind(run, *, accept_changes=False, data="a", **changes):
    run.bind("toy", Config(Part(**changes)), {"data.train": data}, accept_changes=accept_changes)


def begin(out):
    with open_run(out) as run:
        bind(run)
        run.keep("tokenizer.json", lambda: "the tokenizer")
        run.begin(PLAN, 0)
    return run


def test_a_run_is_resumed_with_its_plan_and_its_kept_files(tmp_path):
    first = begin(tmp_path / "m")
    with open_run(tmp_path / "m") as run:
        bind(run)
        assert run.id == first.id
        assert run.plan() == PLAN
        assert run.keep("tokenizer.json", lambda: pytest.fail("it was made again")) == "the tokenizer"
        run.correct_plan(Plan(updates=20, warmup=2))
    with open_run(tmp_path / "m") as run:
        assert run.plan().updates == 20


def test_a_changed_setting_or_input_is_refused_unless_it_changes_no_update(tmp_path):
    begin(tmp_path / "m")
    with open_run(tmp_path / "m") as run:
        bind(run, save_every=7)
        with pytest.raises(RunMismatchError, match=r"was started with lr 0\.1 \(now 0\.2\)\. Use --continue"):
            bind(run, lr=0.2)
        with pytest.raises(RunMismatchError, match=r"was started with other data \(data\.train\)"):
            bind(run, data="b")
        with pytest.raises(RunMismatchError, match="was started for the task toy"):
            run.bind("other", Config(), {})


def test_continue_records_a_change_but_never_one_that_the_weights_depend_on(tmp_path):
    begin(tmp_path / "m")
    with open_run(tmp_path / "m") as run:
        with pytest.raises(RunMismatchError, match=r"optimizer adam .*which its weights depend on"):
            bind(run, accept_changes=True, optimizer="muon")
        bind(run, accept_changes=True, lr=0.2)
        run.begin(PLAN, 4)
    record = json.loads((tmp_path / "m.run" / RECORD).read_text(encoding="utf-8"))
    assert record["changes"] == [{"position": 4, "settings": {"train.lr": [0.1, 0.2]}, "inputs": []}]


@pytest.mark.parametrize(("name", "flag"), [("start_from", "--from"), ("grow_from", "--grow-from")])
def test_a_run_from_another_model_is_refused_even_with_continue(tmp_path, name, flag):
    with open_run(tmp_path / "m") as run:
        run.bind("toy", Config(), {name: "one"})
        run.begin(PLAN, 0)
    with open_run(tmp_path / "m") as run, pytest.raises(RunMismatchError, match=rf"another model \({flag}\)"):
        run.bind("toy", Config(), {name: "other"}, accept_changes=True)


def test_a_run_of_an_older_version_resumes_if_the_options_it_lacks_are_off(tmp_path):
    begin(tmp_path / "m")
    record = json.loads((tmp_path / "m.run" / "run.json").read_text(encoding="utf-8"))
    del record["config"]["train"]["clip"]
    (tmp_path / "m.run" / "run.json").write_text(json.dumps(record), encoding="utf-8")
    with open_run(tmp_path / "m") as run:
        bind(run, clip=0.0)
        with pytest.raises(RunMismatchError, match="clip None"):
            bind(run, clip=1.0)


def test_a_run_that_fails_before_it_begins_leaves_no_folder(tmp_path):
    def fail():
        with open_run(tmp_path / "m") as run:
            bind(run)
            run.tokens.mkdir(parents=True)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_files_of_the_user_is_refused_and_stays(tmp_path):
    (tmp_path / "m.run").mkdir()
    (tmp_path / "m.run" / "thesis.txt").write_text("years of work", encoding="utf-8")
    with pytest.raises(ValueError, match=r"thesis\.txt is not part of a run"), open_run(tmp_path / "m"):
        pass
    assert [file.name for file in (tmp_path / "m.run").iterdir()] == ["thesis.txt"]


def test_a_restart_discards_the_old_run_only_when_the_new_one_begins(tmp_path):
    begin(tmp_path / "m")
    checkpoint = tmp_path / "m.run" / "checkpoints" / "step-00000003"
    checkpoint.mkdir(parents=True)
    with open_run(tmp_path / "m", restart=True) as run:
        assert run.record is None
        bind(run, lr=0.5)
        assert checkpoint.is_dir()
        run.begin(PLAN, 0)
    assert not checkpoint.exists()


def test_a_damaged_record_or_kept_file_is_named(tmp_path):
    begin(tmp_path / "m")
    (tmp_path / "m.run" / "kept" / "tokenizer.json").write_text("edited", encoding="utf-8")
    with open_run(tmp_path / "m") as run, pytest.raises(CorruptFolderError, match=r"tokenizer\.json is missing or has"):
        run.keep("tokenizer.json", lambda: "")
    (tmp_path / "m.run" / RECORD).write_text("{}", encoding="utf-8")
    with pytest.raises(CorruptFolderError, match="Use --restart to discard the run"), open_run(tmp_path / "m"):
        pass
    with open_run(tmp_path / "m", restart=True) as run:
        assert run.record is None


def test_one_run_at_a_time_may_use_the_folder(tmp_path):
    with open_run(tmp_path / "m"), pytest.raises(FolderInUseError, match="is in use by"), open_run(tmp_path / "m"):
        pass


def test_tokens_are_reused_only_if_their_files_are_unchanged(tmp_path):
    with open_run(tmp_path / "m") as run:
        bind(run)
        file = run.tokens / "train" / "ids.bin"
        file.parent.mkdir(parents=True)
        file.write_bytes(b"123")
        assert not run.has_tokens("train"), "a fresh run has no record of them"
        run.begin(PLAN, 0)
    with open_run(tmp_path / "m") as run:
        bind(run)
        assert run.has_tokens("train")
        assert not run.has_tokens("valid")
        file.write_bytes(b"124")
        assert not run.has_tokens("train")


def test_settings_have_dotted_names_without_those_left_out():
    config = {"train": {"lr": 1, "seed": 2}, "data": {"files": ["a"]}, "name": "x"}
    assert flatten(config, {"data.files[0]": ""}) == {"train.lr": 1, "train.seed": 2, "name": "x"}
