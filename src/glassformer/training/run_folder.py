"""The folder of a training run, `OUT.run`: its settings, its checkpoints and everything else needed to resume it.

`run.json`, the run's *record*, holds the settings, a fingerprint of every input, the plan (number of updates and
learning-rate schedule), the digests of the kept files (tokenizers and other choices made at the start) and of the
tokenized data, and each change made with `--continue`. It is written after the data has been read, so that a run that
fails before its first update leaves no record. A lock allows one process at a time.
"""

import hashlib
import json
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from glassformer.base.checks import shown
from glassformer.base.version import __version__
from glassformer.base.write_errors import naming_write_errors
from glassformer.checkpoint.output_folder import discard_folder, lock_folder
from glassformer.checkpoint.safe_files import CorruptFolderError, read_json, sha256, write_text
from glassformer.data.batching.token_files import UNITS
from glassformer.training.schedules import Plan
from glassformer.training.state import checkpoint_path, clean_checkpoints, saved_positions

RECORD, CHECKPOINTS, TOKENS, KEPT = "run.json", "checkpoints", "tokens", "kept"
LOCK, LOG = "lock", "log.jsonl"
TOKEN_FOLDER = "[0-9a-f]{16}"
"""Regular expression of the names of folders inside `tokens`, one per version of the tokenized data."""
KEPT_FILES = frozenset(
    {
        "defaults.json",
        "tokenizer.json",
        "source_tokenizer.json",
        "target_tokenizer.json",
        "head.json",
        "token_types.json",
        "has_documents.json",
        "reference-train.json",
        "reference-valid.json",
    }
)
"""Names that `RunFolder.keep` accepts: files made from the data in a fresh run, and read again when it resumes."""
FORMAT = 3
"""Version of the format of run.json and of the checkpoints. A run of another version cannot be resumed."""
FREE = frozenset(
    {
        "train.device",
        "train.threads",
        "train.compile",
        "train.cuda_graphs",
        "train.gradient_checkpointing",
        "train.parallel",
        "train.offload",
        "train.eval_every",
        "train.save_every",
        "train.async_save",
        "train.keep_last",
        "train.average_last",
        "train.patience",
        "train.metric",
        "data.source_language",
        "data.target_language",
    }
)
"""Settings that may differ when a run resumes, because no update depends on them. (The languages of a corpus are part
of its fingerprint, so that a change of them is noticed there.)"""
FIXED = ("model.", "tokenizer.", "train.optimizer", "train.lora_")
"""Prefixes of settings that the shapes of the weights or of the optimizer state depend on. They cannot change, not even
with `--continue`; settings whose names end in "dropout" can."""


class RunMismatchError(ValueError):
    """Raised if a run would be resumed with other settings or other data than it was started with."""


@dataclass
class RunFolder:
    """A training run on disk: `run.json`, checkpoints, tokenized data and kept files.

    `open_run` creates it, `bind` compares it with the settings of this command, and `begin` writes `run.json`.
    """

    path: Path
    record: dict[str, Any] | None = None
    """Contents of run.json; None for a fresh run."""
    id: str = ""
    """Random id, also stored in the model folder, so that the run replaces only a model that it wrote itself."""
    task: str = ""
    """Name of the task."""
    config: dict[str, Any] = field(default_factory=dict)
    """Settings of this command, nested as in the task's config."""
    inputs: dict[str, str] = field(default_factory=dict)
    """Fingerprint of each input, by the name of its setting."""
    changes: list[dict[str, Any]] = field(default_factory=list)
    """Changes of settings and inputs that `begin` will add to run.json."""
    _new: dict[str, str] = field(default_factory=dict)
    """Text of each kept file that is not on disk yet, by file name; `begin` writes them."""

    @property
    def new_files(self) -> dict[str, str]:
        """Text of each kept file that `begin` will write, by file name."""
        return dict(self._new)

    @property
    def checkpoints(self) -> Path:
        """The folder that holds the checkpoints."""
        return self.path / CHECKPOINTS

    @property
    def tokens(self) -> Path:
        """The folder of the tokenized data, named by a hash of the inputs, the seed and all settings but `train.*`."""
        settings = flatten(self.config, self.inputs)
        # The model of --grow-from is one of the inputs. Older runs do not have the setting.
        relevant = {
            name: value for name, value in settings.items() if not name.startswith("train.") and name != "grow_from"
        }
        key = json.dumps([relevant, settings.get("train.seed"), self.inputs], sort_keys=True)
        return self.path / TOKENS / hashlib.sha256(key.encode()).hexdigest()[:16]

    def has_tokens(self, name: str) -> bool:
        """Whether an earlier process of this run stored the tokenized data `name`, and its files are unchanged."""
        if self.record is None:
            return False
        known = self.record["tokens"]
        digests = {file: known[file] for file in known if file.startswith(f"{self.tokens.name}/{name}/")}
        return bool(digests) and digests == self._token_digests(name)

    def _token_digests(self, name: str = "") -> dict[str, str]:
        """Return the SHA-256 of each file of the tokenized data, by path; with `name`, of that subfolder only.

        Files in a folder `UNITS` are left out: a file beside it lists their sizes.
        """
        folder = self.path / TOKENS
        files = sorted(
            file
            for file in (self.tokens / name).rglob("*")
            if file.is_file() and UNITS not in file.relative_to(self.tokens).parts
        )
        return {file.relative_to(folder).as_posix(): sha256(file) for file in files}

    def keep(self, name: str, make: Callable[[], str]) -> str:
        """Return the text of the kept file `name`, such as tokenizer.json.

        If the run has not recorded it, `make` creates the text, and `begin` will write it. Raises CorruptFolderError if
        the recorded file is missing or has changed.
        """
        path = self.path / KEPT / name
        if self.record is not None and name in self.record["kept"]:
            if not path.is_file() or sha256(path) != self.record["kept"][name]:
                raise CorruptFolderError(f"{path} is missing or has changed. Use --restart to discard the run")
            text = path.read_text(encoding="utf-8")
        else:
            assert name in KEPT_FILES, f"{name} is not in KEPT_FILES"
            text = self._new[name] = make()
        return text

    def keep_json(self, name: str, make: Callable[[], Any]) -> Any:
        """Return the value of the kept JSON file `name`, or of `make()` in a fresh run; see `keep`."""
        return json.loads(self.keep(name, lambda: json.dumps(make(), ensure_ascii=False)))

    def bind(self, task: str, config: Any, inputs: Mapping[str, str], *, accept_changes: bool = False) -> None:
        """Set the task, settings and inputs of this run, and compare them with those that it was started with.

        Settings in `FREE` may differ, because they do not affect the weights. Any other difference raises
        RunMismatchError. With `accept_changes` (`--continue`) it is recorded instead; only another task, another
        starting model (`--from`, `--grow-from`) or another value of a setting in `FIXED`, on which the shapes of the
        weights depend, still raises.
        """
        self.task, self.config = task, json.loads(json.dumps(asdict(config), default=str))
        self.inputs = dict(inputs)
        if self.record is None:
            return
        way_out = "Use --restart to discard the run, or another --out"
        if self.record["task"] != task:
            raise RunMismatchError(f"{self.path} was started for the task {self.record['task']}. {way_out}")
        if self.record["inputs"].get("start_from") != self.inputs.get("start_from"):
            raise RunMismatchError(f"{self.path} was started from another model (--from). {way_out}")
        if self.record["inputs"].get("grow_from") != self.inputs.get("grow_from"):
            raise RunMismatchError(f"{self.path} was grown from another model (--grow-from). {way_out}")
        paths = {**self.record["inputs"], **self.inputs}  # known by their content
        before, now = flatten(self.record["config"], paths), flatten(self.config, paths)
        # A version that did not have an option yet behaved as if it were off: empty, 0 or False.
        new_and_off = {name for name in now if name not in before and not now[name]}
        changed = {
            name: [before.get(name), now.get(name)]
            for name in sorted({*before, *now} - new_and_off)
            if before.get(name) != now.get(name)
        }
        bound = {name: values for name, values in changed.items() if name not in FREE}
        data = sorted(
            name
            for name in {*self.record["inputs"], *self.inputs}
            if self.record["inputs"].get(name) != self.inputs.get(name)
        )
        if not accept_changes and (bound or data):
            raise RunMismatchError(self._mismatch(bound, data))
        if fixed := [name for name in bound if name.startswith(FIXED) and not name.endswith("dropout")]:
            raise RunMismatchError(
                f"{self.path} was started with {_change(fixed[0], bound[fixed[0]])}, which its weights depend on. "
                f"{way_out}"
            )
        if changed or data:
            self.changes.append({"settings": changed, "inputs": data})

    def _mismatch(self, bound: Mapping[str, list[Any]], data: list[str]) -> str:
        what = [_change(name, values) for name, values in bound.items()]
        if data:
            what.append(f"other data ({', '.join(data)})")
        return (
            f"{self.path} was started with {', '.join(what)}. Use --continue to resume from its newest checkpoint with "
            "the change, --restart to discard the run, or another --out"
        )

    def plan(self) -> Plan | None:
        """Return the number of updates and the learning-rate schedule from run.json; None for a fresh run."""
        return None if self.record is None else Plan(**self.record["plan"])

    def begin(self, plan: Plan, position: int) -> None:
        """Write run.json and the kept files. From now on the run can be resumed with these settings and inputs only.

        `position` is the number of updates tried before; it is noted with each change. A fresh run discards an earlier
        run in the same folder only here, after its own data has been read without an error.
        """
        before: dict[str, Any] = {"kept": {}, "changes": []} if self.record is None else self.record
        if self.record is None:
            _discard(self.path)
        for name, text in self._new.items():
            with naming_write_errors(self.path / KEPT):
                (self.path / KEPT).mkdir(exist_ok=True)
            write_text(self.path / KEPT / name, text)
        self.record = {
            "format": FORMAT,
            "id": self.id,
            "versions": {"glassformer": __version__, "torch": torch.__version__},
            "task": self.task,
            "config": self.config,
            "inputs": self.inputs,
            "plan": asdict(plan),
            "kept": {**before["kept"], **{name: sha256(self.path / KEPT / name) for name in self._new}},
            "tokens": self._token_digests(),
            "changes": [*before["changes"], *({"position": position, **change} for change in self.changes)],
        }
        self.changes, self._new = [], {}
        write_text(self.path / RECORD, json.dumps(self.record, indent=2, ensure_ascii=False))
        if (self.path / TOKENS).is_dir():
            for folder in (self.path / TOKENS).iterdir():
                if folder != self.tokens and re.fullmatch(TOKEN_FOLDER, folder.name):
                    shutil.rmtree(folder, ignore_errors=True)

    def correct_plan(self, plan: Plan) -> None:
        """Write a corrected plan to run.json. Call this before the first optimizer step that uses the new plan."""
        assert self.record is not None, "a run has a record before its first update"
        self.record["plan"] = asdict(plan)
        write_text(self.path / RECORD, json.dumps(self.record, indent=2, ensure_ascii=False))


@contextmanager
def open_run(out: Path, *, restart: bool = False) -> Iterator[RunFolder]:
    """Context manager that opens and locks the run folder `out.run`, which belongs to the model folder `out`.

    It yields the run. With `restart` an earlier run in the folder is ignored, and removed when `begin` is called on the
    new one. If the block raises before run.json exists, the tokenized data in the folder is removed. Raises
    FolderInUseError if another process trains into `out`.
    """
    path = out.with_name(f"{out.name}.run")
    if path.exists() and not path.is_dir():
        raise ValueError(f"{path} is a file: expected a run folder. Choose another --out")
    if path.is_dir():
        _check_own(path)
    with naming_write_errors(path):
        path.mkdir(parents=True, exist_ok=True)
    with lock_folder(path, LOCK):
        clean_checkpoints(path / CHECKPOINTS)
        record = _read_record(path, restart=restart)
        run_id = str(record["id"]) if record is not None else secrets.token_hex(16)
        try:
            yield RunFolder(path, None if restart else record, run_id)
        except BaseException:
            if not (path / RECORD).exists():  # the run never began
                _leave_no_trace(path)
            raise


def _leave_no_trace(path: Path) -> None:
    """Remove the tokenized data of a run that failed before `begin`, and the run folder if only its lock is left."""
    tokens = path / TOKENS
    if tokens.is_dir():
        for folder in tokens.iterdir():
            if re.fullmatch(TOKEN_FOLDER, folder.name):
                shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):
            tokens.rmdir()
    if {file.name for file in path.iterdir()} == {LOCK}:
        (path / LOCK).unlink()
        path.rmdir()


def flatten(config: Mapping[str, Any], leave_out: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a nested config by dotted name, such as "train.lr", without the names in `leave_out`.

    A name such as "data.files[0]" in `leave_out` leaves out "data.files".
    """
    names = {name.partition("[")[0] for name in leave_out}
    found: dict[str, Any] = {}

    def walk(values: Mapping[str, Any], prefix: str) -> None:
        for name, value in values.items():
            if isinstance(value, dict):
                walk(value, f"{prefix}{name}.")
            elif f"{prefix}{name}" not in names:
                found[f"{prefix}{name}"] = value

    walk(config, "")
    return found


def _change(name: str, values: list[Any]) -> str:
    """Return the text for a changed setting, from its old and new value: "lr 0.002 (now 0.003)"."""
    before, now = values
    return f"{name.rpartition('.')[2]} {before} (now {now})"


def _check_own(path: Path) -> None:
    """Raise ValueError unless the folder holds a run, or only the files that a run writes before its `run.json`."""
    present = {file.name for file in path.iterdir()}
    if RECORD in present:
        return
    if {"config.json", CHECKPOINTS} <= present:
        raise ValueError(
            f"{path} was started by an older version of Glassformer, which this one cannot resume. "
            "Choose another --out, or remove the folder"
        )
    prepared = [
        *(path / name for name in present - {LOCK, TOKENS, KEPT}),
        *(file for file in (path / KEPT).glob("*") if file.name.lstrip(".").removesuffix(".part") not in KEPT_FILES),
        *(file for file in (path / TOKENS).glob("*") if not re.fullmatch("[0-9a-f]{16}", file.name)),
    ]
    if prepared:
        raise ValueError(
            f"{min(prepared)} is not part of a run: expected a run folder. Choose another --out, or move it"
        )


def _read_record(path: Path, *, restart: bool) -> dict[str, Any] | None:
    """Return the contents of run.json; None if there is none.

    Raises CorruptFolderError if it is unusable; with `restart` it returns None instead.
    """
    file = path / RECORD
    if not file.is_file():
        return None
    try:
        record = read_json(file)
        if record["format"] != FORMAT:
            raise CorruptFolderError(
                f"{path} was started by another version of Glassformer, which this one cannot resume "
                f"({RECORD} has format {shown(record['format'])}, expected {FORMAT})"
            )
        Plan(**record["plan"])
        tables = [record[name] for name in ("config", "inputs", "kept", "tokens")]
        if not (
            isinstance(record["id"], str)
            and isinstance(record["task"], str)
            and all(isinstance(table, dict) for table in tables)
        ):
            raise CorruptFolderError(f"{file} holds a value of the wrong type")
    except (CorruptFolderError, KeyError, TypeError, AttributeError) as error:
        if restart:
            return None
        reason = str(error) if isinstance(error, CorruptFolderError) else f"{file} is not a run's record ({error!r})"
        raise CorruptFolderError(f"{reason}. Use --restart to discard the run, or another --out") from error
    found: dict[str, Any] = record
    return found


def _discard(path: Path) -> None:
    """Remove the checkpoints, the log and the TensorBoard events of an earlier run. All other files stay."""
    for position in saved_positions(path / CHECKPOINTS):
        discard_folder(checkpoint_path(path / CHECKPOINTS, position))
    (path / LOG).unlink(missing_ok=True)
    for events in path.glob("events.out.tfevents.*"):
        events.unlink()
