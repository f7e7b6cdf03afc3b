"""`glassformer run` and `info`: use a model folder."""

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tyro.conf import Positional

from glassformer.cli.lines import CHUNK, check_stdin, run_lines

if TYPE_CHECKING:
    from glassformer.tasks.generator import Generator


def run(
    path: Positional[Path],
    *,
    prompt: str | None = None,
    chat: bool = False,
    beam: int | None = None,
    max_new_tokens: int = 256,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
    stop: tuple[str, ...] = (),
    embed: bool = False,
    int8: bool = False,
    allow_pickle: bool = False,
    on_bad: Literal["error", "skip"] = "skip",
) -> None:
    """Use a model on stdin: one line out for each line in.

    Input and output are UTF-8 in every locale, and only a line feed ends a line. A line that the model cannot read
    gets an error on stderr and an empty line of output; the exit code is then 1.

    A model that was trained here does its task with each line; blank lines stay blank. T5, BART and Marian in HF's
    folder rewrite each line. A decoder (of language or code, trained here; GPT-2, Llama, Mistral, Qwen, SmolLM as HF's
    folder, GGUF or llama2.c's file) continues each line, or answers it with --chat; line breaks in what it writes
    become \\n. An encoder (BERT and its kin) turns each line into a vector, a JSON list.

    Args:
        path: A model folder, ours or HF's; or a GGUF file, or a .bin file of llama2.c's.
        prompt: For a decoder: continue this instead of stdin, and show the text as it is written.
        chat: For a decoder that was trained for it: answer instead of going on. On a terminal, a conversation.
        beam: Sentences kept at each step of the search; 1 is greedy, and faster. (default: as the model says, or 4)
        max_new_tokens: The longest text a decoder writes.
        temperature: Of a decoder: 0 takes the likeliest token; more draws by chance, 1 as the model itself would.
        top_p: Draw among the likeliest tokens that together have this chance.
        seed: Of the chance; the same seed writes the same text.
        stop: Texts that end a decoder's text where they appear.
        embed: Of an encoder that was trained here: a vector for each line, a JSON list, instead of its task.
        int8: Compute with 8-bit weights: several times as fast on most CPUs, and nearly the same.
        allow_pickle: Open pytorch_model.bin too, by the reader that only knows tensors.
        on_bad: What to do with a line that the model cannot read: skip it (report it on stderr, write an empty line,
            go on, exit with 1 at the end), or stop at it with an error.
    """
    if prompt is None:
        check_stdin()
    else:
        prompt = _as_utf8(prompt)
    stop = tuple(map(_as_utf8, stop))
    # Options are checked here: an error in the middle of the lines is one of its line.
    if beam is not None and beam < 1:
        raise ValueError(f"--beam {beam}: expected at least 1")
    if not temperature >= 0:  # so that NaN is refused too
        raise ValueError(f"--temperature {temperature}: expected 0 or more")
    from glassformer.decoding import GenerationConfig
    from glassformer.tasks.embedder import Embedder
    from glassformer.tasks.encoders import EncoderTool, embed_lines
    from glassformer.tasks.generator import Generator
    from glassformer.tasks.load import load
    from glassformer.tasks.rewriter import Rewriter
    from glassformer.tasks.text_to_text import TextToText

    lines = partial(run_lines, on_bad=on_bad, size=CHUNK)
    model = load(path, allow_pickle=allow_pickle)
    if int8:
        from glassformer.decoding.int8 import quantise
        from glassformer.decoding.packed import pack

        model.model = quantise(pack(model.model))
    if embed and not isinstance(model, Embedder):
        if not isinstance(model, EncoderTool):
            raise ValueError(f"{path} makes no vectors of texts: expected an encoder, for --embed")
        lines(partial(embed_lines, model))
        return
    if not isinstance(model, Generator):
        if chat or prompt is not None:
            raise ValueError(f"{path} does not go on writing: expected a decoder, for --prompt or --chat")
        if isinstance(model, Rewriter | TextToText):
            if beam is not None:
                replace(model.generation, num_beams=beam)  # refuses a beam that the other settings do not allow
            lines(partial(model.run, beam=beam))
        else:
            lines(model.run)
        return
    model.generation = GenerationConfig(
        max_new_tokens=max_new_tokens,
        num_beams=beam or 1,
        do_sample=temperature > 0,
        temperature=temperature or 1.0,
        top_p=top_p if temperature > 0 else 1.0,
        seed=seed,
        stop_strings=stop,
        eos_token_id=() if beam and beam > 1 else model.tokenizer.ends,
    )
    if chat and not model.can_chat:
        model.answer_to([])  # raises the error that explains it
    if prompt is not None:
        _show(model.chat([{"role": "user", "content": prompt}]) if chat else model.stream(prompt))
    elif chat and sys.stdin.isatty():
        _converse(model)
    else:
        lines(partial(model.run, chat=chat), size=16)


def _as_utf8(text: str) -> str:
    """An argument of the command line, read again as UTF-8 where the locale's encoding could not read it."""
    if not any("\ud800" <= character <= "\udfff" for character in text):
        return text
    try:
        return os.fsencode(text).decode("utf-8")
    except UnicodeError as error:
        raise ValueError(f"the argument {text!r} is not valid UTF-8: expected text") from error


def _show(pieces: Iterator[str]) -> str:
    """Print a text as it is written."""
    told = ""
    for piece in pieces:
        print(piece, end="", flush=True)
        told += piece
    print()
    return told


def _converse(model: "Generator") -> None:
    print("Type, and press Enter; an empty line ends it.", file=sys.stderr)
    messages: list[dict[str, str]] = []
    while text := _ask():
        messages.append({"role": "user", "content": text})
        messages.append({"role": "assistant", "content": _show(model.chat(messages))})


def _ask() -> str:
    """A line of the user's; empty at the end of stdin."""
    try:
        return input("> ")
    except EOFError:
        return ""


def info(path: Positional[Path], *, allow_pickle: bool = False) -> None:
    """What a model is: its kind, its size, and every setting that is not the default.

    Args:
        path: A model folder, ours or HF's; or a GGUF file, or a .bin file of llama2.c's.
        allow_pickle: Open pytorch_model.bin too, by the reader that only knows tensors.
    """
    from dataclasses import fields

    from glassformer.checkpoint import load_model
    from glassformer.checkpoint.pretrained import is_foreign, read_foreign
    from glassformer.tasks.registry import read_about
    from glassformer.tasks.task import TASK

    model = load_model(path, allow_pickle=allow_pickle)
    print(f"{path}: {model.kind}, {model.n_parameters():,} parameters")
    if (path / TASK).is_file():
        print(f"  trained for {read_about(path)['task']}")
    if is_foreign(path):
        print(f"  of the family {read_foreign(path, allow_pickle=allow_pickle).config['model_type']}")
    for field in fields(model.config):
        value = getattr(model.config, field.name)
        if value != field.default:
            print(f"  {field.name} = {value!r}")
