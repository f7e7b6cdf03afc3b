"""`glassformer chat`: a conversation in the terminal, with a local model or a server."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from json import dumps
from pathlib import Path
from typing import Any

from glassformer.cli.flag_parser import UsageError
from glassformer.cli.run_options import ComputeOptions, check_ranges, search_of

Messages = list[dict[str, str]]
Answering = Callable[[Messages], Iterator[str]]
HELP = """\
/system TEXT   set the system message; without a text, remove it
/reset         forget the conversation; the system message stays
/save FILE     write the conversation to a new file, as JSON
/help          show this help
/quit          end, as Ctrl-D does
Ctrl-C stops an answer. A line that begins with // is sent with one slash."""
HISTORY = 1000
"""The number of lines that the history keeps."""


def chat(
    model: str,
    *,
    system: str | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    max_new_tokens: int | None = None,
    seed: int | None = None,
    model_name: str = "",
    api_key: str = "",
    compute: ComputeOptions = ComputeOptions(),  # noqa: B008
) -> None:
    """Hold a conversation in the terminal, with a model on this machine or with a server that has OpenAI's API.

    glassformer chat my-chat-model, or glassformer chat http://127.0.0.1:8000

    Answers appear while they are written; Ctrl-C stops one. The arrow keys edit the line and bring back earlier ones.
    /help lists the commands: /system, /reset, /save. Ctrl-D ends.

    Args:
        model: A model with a chat template, or the address of a server, such as http://127.0.0.1:8000.
        system: The system message of the conversation.
        temperature: 0 takes the most likely token. More than 0 samples at random. (default: that of the model or the
            server)
        top_p: Sample only from the most likely tokens whose probabilities add up to this. (default: 1, all tokens)
        max_new_tokens: The most tokens of an answer. (default: that of the model or the server)
        seed: Seed of the random numbers. (default: that of the model or the server)
        model_name: Which model of the server to ask. (default: the first)
        api_key: The server's API key. (default: the environment variable OPENAI_API_KEY)
    """
    settings = {"temperature": temperature, "top_p": top_p, "max_new_tokens": max_new_tokens, "seed": seed}
    given = {name: value for name, value in settings.items() if value is not None}
    check_ranges(given)
    if model.startswith(("http://", "https://")):
        answer, name = _remote(model, model_name, api_key or os.environ.get("OPENAI_API_KEY", ""), given)
    else:
        answer, name = _local(Path(model), given, compute)
    with _line_editing():
        _converse(answer, name, system)


def _remote(address: str, model: str, key: str, given: dict[str, Any]) -> tuple[Answering, str]:
    from glassformer.serve.chat_client import ChatClient

    client = ChatClient(address, model, key)
    settings = {("max_tokens" if name == "max_new_tokens" else name): value for name, value in given.items()}
    return lambda messages: client.answer(messages, settings), client.model


def _local(path: Path, given: dict[str, Any], compute: ComputeOptions) -> tuple[Answering, str]:
    from glassformer.pipelines.generator import Generator, as_messages

    pipeline = compute.load(path)
    if not isinstance(pipeline, Generator) or not pipeline.can_chat:
        raise UsageError(f"{path} has no chat template: expected a model that was trained for conversations")
    pipeline.answer_to(as_messages("Hello"))  # an error in the template is raised once, before the conversation
    search = search_of(pipeline.generation, given)
    return lambda messages: pipeline.chat(messages, search), path.name


def _converse(answer: Answering, name: str, system: str | None) -> None:
    """Read lines, and answer them until the end of the input."""
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        print(f"{name}: write a message and press Enter. /help lists commands, Ctrl-D ends.", file=sys.stderr)
    messages: Messages = []
    while (line := _ask(is_terminal)) is not None:
        if line.startswith("/") and not line.startswith("//"):
            word, _, rest = line.partition(" ")
            if word == "/quit":
                return
            system = _command(word, rest.strip(), messages, system)
        elif line.strip():
            messages.append({"role": "user", "content": line.removeprefix("/") if line.startswith("//") else line})
            first = [] if system is None else [{"role": "system", "content": system}]
            _show_answer(answer, first, messages)


def _show_answer(answer: Answering, first: Messages, messages: Messages) -> None:
    """Print an answer as it comes, and add it to the conversation. Ctrl-C keeps what was written so far."""
    text = ""
    pieces = answer([*first, *messages])
    try:
        for piece in pieces:
            print(piece, end="", flush=True)
            text += piece
        print(flush=True)
    except KeyboardInterrupt:
        print(" [stopped]", flush=True)
    except ValueError as error:  # such as a conversation that is too long, or a server that is gone
        print(f"\nglassformer: {error}", file=sys.stderr)
        messages.pop()
        return
    finally:
        with suppress(AttributeError):
            pieces.close()  # type: ignore[attr-defined]
    messages.append({"role": "assistant", "content": text})


def _command(word: str, rest: str, messages: Messages, system: str | None) -> str | None:
    """Carry out a command, and return the system message from now on."""
    if word == "/system":
        print("the system message is set" if rest else "there is no system message now", file=sys.stderr)
        return rest or None
    if word == "/reset":
        messages.clear()
        print("a new conversation begins", file=sys.stderr)
    elif word == "/save":
        _save(rest, messages, system)
    else:
        if word != "/help":
            print(f"{word} is not a command:", file=sys.stderr)
        print(HELP, file=sys.stderr)
    return system


def _save(name: str, messages: Messages, system: str | None) -> None:
    """Write the conversation to a new file. An existing file is kept."""
    if not name:
        print("/save needs the name of a new file, as in /save talk.json", file=sys.stderr)
        return
    first = [] if system is None else [{"role": "system", "content": system}]
    try:
        with Path(name).expanduser().open("x", encoding="utf-8") as file:
            file.write(dumps([*first, *messages], ensure_ascii=False, indent=2) + "\n")
        print(f"saved to {name}", file=sys.stderr)
    except FileExistsError:
        print(f"{name} exists already: choose another name", file=sys.stderr)
    except OSError as error:
        print(f"{name} cannot be written: {error.strerror}", file=sys.stderr)


def _ask(is_terminal: bool) -> str | None:
    """Return the next line; None at the end of the input, or if Ctrl-C is pressed."""
    try:
        return input("> " if is_terminal else "")
    except (EOFError, KeyboardInterrupt):
        if is_terminal:
            print(file=sys.stderr)
        return None


@contextmanager
def _line_editing() -> Iterator[None]:
    """Context manager with line editing and a history of lines, in which Ctrl-C raises KeyboardInterrupt each time."""
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    history = None
    if sys.stdin.isatty():
        with suppress(ImportError, OSError):
            import readline

            from glassformer.cache_folder import cache_folder

            history = cache_folder() / "chat_history"
            history.parent.mkdir(parents=True, exist_ok=True)
            readline.set_history_length(HISTORY)
            with suppress(FileNotFoundError):
                readline.read_history_file(history)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
        if history is not None:
            with suppress(OSError):
                readline.write_history_file(history)
                history.chmod(0o600)
