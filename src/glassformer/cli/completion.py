"""`glassformer completion SHELL`: a script that completes commands, tasks and options. Imports no torch."""

from collections.abc import Mapping
from typing import Literal, get_args

from glassformer.base.dataclass_flags import Option
from glassformer.cli.flag_parser import HELP_ALL, function_options
from glassformer.cli.verbs import VERBS

Shell = Literal["bash", "zsh", "fish"]
SCRIPTS: dict[Shell, str] = {
    "bash": """\
# Put this line into ~/.bashrc: source <(glassformer completion bash)
_glassformer() {{
    local IFS=' ' word="${{COMP_WORDS[COMP_CWORD]}}" found='' one
    case "${{COMP_WORDS[*]:1:COMP_CWORD-1}}" in
{cases}
    esac
    COMPREPLY=()
    for one in $found; do
        if [[ "$one" == "$word"* && ( "$one" != -* || "$word" == -* ) ]]; then COMPREPLY+=("$one"); fi
    done
}}
complete -o default -F _glassformer glassformer
""",
    "zsh": """\
# Put this line into ~/.zshrc, after compinit: source <(glassformer completion zsh)
_glassformer() {{
    local found=''
    case "${{(j: :)words[2,CURRENT-1]}}" in
{cases}
    esac
    if [[ "$PREFIX" == -* ]]; then compadd -- ${{=found}}; else compadd -- ${{${{=found}}:#-*}}; _files; fi
}}
compdef _glassformer glassformer
""",
    "fish": """\
# Run this once: glassformer completion fish > ~/.config/fish/completions/glassformer.fish
function __glassformer_words
    set -l typed (commandline -opc)
    switch "$typed[2..-1]"
{cases}
    end
end
complete -c glassformer -a '(__glassformer_words)'
""",
}
"""The completion script of each shell. A script looks up the words before the cursor in a table of commands. It offers
flags after a hyphen, and the shell's own completion of files elsewhere."""


def completion(shell: Shell) -> None:
    """Print a script that completes commands, tasks and options in a shell. Its first line says how to install it.

    Args:
        shell: The shell that reads the script: bash, zsh or fish.
    """
    words = completion_words()
    longest_first = sorted(
        words, key=lambda command: -len(command.split())
    )  # shells use the first pattern that matches
    cases = "\n".join(_case(shell, command, words[command]) for command in longest_first)
    print(SCRIPTS[shell].format(cases=cases), end="")


def completion_words() -> dict[str, list[str]]:
    """Return the words that can follow each command, such as tasks after "train" and flags after "train tagging".

    They come from the same tables that the command line is parsed with.
    """
    from glassformer.base.dataclass_flags import options_of
    from glassformer.cli.bench import bench
    from glassformer.cli.convert import convert
    from glassformer.cli.demo import DEFAULT_TASK, demo_function
    from glassformer.cli.evaluate import eval_options
    from glassformer.cli.evaluate_pretrained import evaluate_pretrained
    from glassformer.cli.explain import explain
    from glassformer.cli.info import info
    from glassformer.cli.plan import plan
    from glassformer.cli.prepare import prepare_flags
    from glassformer.cli.rate import rate
    from glassformer.cli.run import run
    from glassformer.cli.serve import serve
    from glassformer.cli.terminal_chat import chat
    from glassformer.cli.tokenizer_tools import ACTIONS
    from glassformer.cli.train import run_options
    from glassformer.pipelines.pipeline_registry import demo_tasks
    from glassformer.tasks.prepare_units import PREPARED_TASKS
    from glassformer.tasks.task_registry import TASKS, config_named, data_named

    found = {"": [*VERBS, "help", "--help", "--version"], "help": list(VERBS), "completion": [*get_args(Shell)]}
    for verb, function in (
        ("plan", plan),
        ("run", run),
        ("chat", chat),
        ("serve", serve),
        ("rate", rate),
        ("info", info),
        ("explain", explain),
        ("convert", convert),
        ("bench", bench),
    ):
        found[verb] = _flags(function_options(function)[2])
    of_all_tasks: dict[str, Option] = {}
    for task in TASKS:
        found[f"train {task}"] = [*_flags({**run_options(), **options_of(config_named(task))}), HELP_ALL]
        if TASKS[task].has_demo:
            found[f"demo {task}"] = _flags(function_options(demo_function(task))[2])
        of_all_tasks |= eval_options(task, data_named(task)())
    of_all_tasks |= function_options(evaluate_pretrained)[2]
    found["eval"] = [*_flags(of_all_tasks), "--task"]  # which of them apply depends on the task of the model
    for action, tool in ACTIONS.items():
        found[f"tokenizer {action}"] = _flags(function_options(tool)[2])
    found["tokenizer"] = found["help tokenizer"] = list(ACTIONS)
    found["train"] = found["help train"] = list(TASKS)
    found["help demo"] = list(demo_tasks())
    for task in PREPARED_TASKS:
        found[f"prepare {task}"] = _flags(prepare_flags(task))
    found["prepare"] = found["help prepare"] = list(PREPARED_TASKS)
    found["demo"] = [*demo_tasks(), *found[f"demo {DEFAULT_TASK}"]]
    return found


def _flags(options: Mapping[str, Option]) -> list[str]:
    """Return the flags of these options, `--no-NAME` for each option that is on by default, and `--help`."""
    off = [f"--no-{option.flag[2:]}" for option in options.values() if option.default is True]
    return [*(option.flag for option in options.values()), *off, "--help"]


def _case(shell: Shell, command: str, words: list[str]) -> str:
    """Return the branch of a completion script that offers `words` for a command line that begins with `command`.

    For the empty command, the line must be empty.
    """
    if shell == "fish":
        patterns = f"'{command}' '{command} *'" if command else "''"
        return f"        case {patterns}\n            printf '%s\\n' {' '.join(words)}"
    patterns = f"'{command}' | '{command} '*" if command else "''"
    return f"        {patterns}) found='{' '.join(words)}' ;;"
