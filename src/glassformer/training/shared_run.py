"""The run folder of several processes: the leader writes it, the other processes only read."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from typing_extensions import override

from glassformer.training.processes import Processes
from glassformer.training.run_folder import KEPT, RunFolder, open_run
from glassformer.training.schedules import Plan


@dataclass
class FollowedRun(RunFolder):
    """A run folder that this process only reads, after the leader has prepared it."""

    kept: dict[str, str] = field(default_factory=dict)
    """Texts of the kept files, by name, from the leader."""

    @override
    def has_tokens(self, name: str) -> bool:
        return (self.tokens / name).is_dir()

    @override
    def keep(self, name: str, make: Callable[[], str]) -> str:
        return self.kept[name]

    @override
    def begin(self, plan: Plan, position: int) -> None:
        """Write nothing."""

    @override
    def correct_plan(self, plan: Plan) -> None:
        """Write nothing."""


@contextmanager
def open_shared_run(out: Path, processes: Processes, *, restart: bool = False) -> Iterator[RunFolder]:
    """Context manager like `open_run`, for the processes of one run. Only the leader locks and changes the folder."""
    with ExitStack() as stack:
        run: RunFolder | None = None
        with processes.together():
            if processes.is_leader:
                run = stack.enter_context(open_run(out, restart=restart))
        path, record, run_id = processes.broadcast((run.path, run.record, run.id) if run else (out, None, ""))
        yield run or FollowedRun(path, record, run_id)


def kept_texts(run: RunFolder) -> dict[str, str]:
    """Return the texts of all kept files of a run, by name, written or not yet written."""
    names = [] if run.record is None else run.record["kept"]
    return {**{name: (run.path / KEPT / name).read_text(encoding="utf-8") for name in names}, **run.new_files}
