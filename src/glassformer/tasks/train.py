"""`glassformer.train`: training by one call, with the options of the command line."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.tasks.configs.options import given_options, make_config
from glassformer.tasks.recipes import read_recipe
from glassformer.tasks.registry import config_named, task_named

if TYPE_CHECKING:
    from glassformer.metrics.scores import Scores


def train(
    task: str,
    *,
    out: str | Path,
    recipe: str | Path | None = None,
    restart: bool = False,
    accept_changes: bool = False,
    overwrite: bool = False,
    **options: Any,
) -> "Scores":
    """Train a model for a task into the folder `out` and return its scores, as `glassformer train TASK` does.

        scores = glassformer.train("translation", source="train.de", target="train.en", out="m", minutes=5)

    Called again with the same options, it resumes. The scores are those of the test examples, or of the validation
    examples where there are none; `glassformer.tasks.load.load(out)` loads the model.

    Args:
        task: A task, such as "translation" or "classification".
        out: The model folder to write. What the run needs to resume is in `out.run` beside it.
        recipe: A TOML file with options. `options` go before it.
        restart: Discard the run in `out.run` and start anew.
        accept_changes: Continue from the newest checkpoint with other settings or other data. `**{"continue": True}`,
            as the command line spells it, is the same.
        overwrite: Replace a model in `out` that another run wrote. Other files are never replaced.
        options: Any option of the command line with underscores for hyphens: `source`, `minutes`, `d_model`, `lr`, and
            `start_from` for `--from`. Paths may be `str` or `Path`; where the command line takes several values, one
            value or a list.
    """
    kind = config_named(task)
    accept_changes = accept_changes or bool(options.pop("continue", False))
    given = {**(read_recipe(Path(recipe), kind) if recipe is not None else {}), **given_options(kind, options)}
    config = make_config(kind, given)
    return task_named(task)(config).train(out, restart=restart, accept_changes=accept_changes, overwrite=overwrite)
