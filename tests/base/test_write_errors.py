"""Errors of writing name the file, the reason and the next step."""

import errno
import os
import signal
import sys
from contextlib import contextmanager
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch

from glassformer.base.write_errors import WriteError, naming_write_errors
from glassformer.checkpoint import onnx_export as onnx_out
from glassformer.checkpoint import save_model
from glassformer.checkpoint.gguf_export import write_gguf
from glassformer.checkpoint.hf.folder import save_hf_folder
from glassformer.checkpoint.onnx_export import check_weights_beside, export_onnx
from glassformer.checkpoint.safe_files import write_text
from glassformer.data.batching.text_rows import write_text_rows
from glassformer.data.batching.token_files import write_token_files
from glassformer.data.batching.token_stream import write_stream
from glassformer.data.readers.text_files import read_lines
from glassformer.models import build_model, preset
from glassformer.training.journal import Journal
from glassformer.training.state import Evaluation, TrainState, save_checkpoint
from glassformer.training.train_config import TrainConfig

LIMIT = 4096
LONG = "0" * 2 * LIMIT


class Pair(NamedTuple):
    source: str
    target: str


@contextmanager
def small_files():
    """No file may grow beyond LIMIT bytes, as after `ulimit -f 2`."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    writes_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # else Python keeps cut-off modules
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, hard))
    try:
        yield
    finally:
        sys.dont_write_bytecode = writes_bytecode
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)


def ids_of(texts):
    return [[ord(letter) for letter in text] for text in texts]


def checkpoint(folder):
    model = build_model(preset("tiny-llama"))
    save_checkpoint(folder, TrainState(position=1), model, torch.optim.SGD(model.parameters()))


def journal(folder):
    with Journal(folder, TrainConfig()) as log:
        log.say = lambda text: None
        for update in range(200):
            log.evaluation(Evaluation(update, update, {"accuracy": 0.5}))


WRITERS = {
    "write_text": (lambda path: write_text(path, LONG), ""),
    "save_model": (lambda path: save_model(path, build_model(preset("tiny-llama"))), "/model.safetensors"),
    "save_hf_folder": (lambda path: save_hf_folder(path, build_model(preset("tiny-llama"))), "/model.safetensors"),
    "write_gguf": (lambda path: write_gguf(path, build_model(preset("tiny-llama"))), ""),
    "save_checkpoint": (checkpoint, "/step-00000001/model.safetensors"),
    "journal": (journal, "/log.jsonl"),
    "write_token_files": (
        lambda path: write_token_files(path, [Pair(LONG, LONG)], ids_of, ids_of, max_len=10**6),
        "",
    ),
    "write_text_rows": (lambda path: write_text_rows(path, [LONG], ids_of, longest=10**6), ""),
    "write_stream": (lambda path: write_stream(path, [LONG], ids_of, has_documents=False), ""),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_size_limit_error_names_the_file_and_the_next_step(name, tmp_path, monkeypatch):
    monkeypatch.setattr("glassformer.training.journal._tensorboard", lambda folder: None)
    write, file = WRITERS[name]
    place = tmp_path / "model"
    with small_files(), pytest.raises(OSError, match="could not write") as caught:
        write(place)
    said = str(caught.value)
    assert said.startswith(f"could not write {place}{file}: {os.strerror(errno.EFBIG)}. "), said
    assert "ulimit -f" in said
    assert not [path for path in tmp_path.rglob("*") if ".part" in path.name], "a temporary file is left"


def test_a_file_size_limit_error_names_the_onnx_graph(tmp_path, monkeypatch):
    pytest.importorskip("onnxscript")
    graph = SimpleNamespace(write=lambda path: path.write_text(LONG, encoding="utf-8"))
    monkeypatch.setattr(onnx_out, "_graphs", lambda model: {"decoder.onnx": graph})
    with small_files(), pytest.raises(WriteError, match=r"could not write .*/model/decoder\.onnx: .*ulimit -f"):
        export_onnx(build_model(preset("tiny-llama")), tmp_path / "model")


def test_weights_beside_a_graph_that_are_cut_off_are_noticed(tmp_path):
    onnx = pytest.importorskip("onnx")
    weights = onnx.numpy_helper.from_array(np.zeros((50, 50), np.float32), "weights")
    graph = onnx.helper.make_graph([], "graph", [], [], initializer=[weights])
    path = tmp_path / "model.onnx"
    onnx.save(onnx.helper.make_model(graph), path, save_as_external_data=True, location="model.onnx.data")
    check_weights_beside(path)
    with (tmp_path / "model.onnx.data").open("r+b") as stream:
        stream.truncate(9_999)
    with pytest.raises(WriteError, match=r"model\.onnx\.data: it is cut off .*Free some space"):
        check_weights_beside(path)


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "Free some space"),
        (errno.EACCES, "Choose a folder that you may write to"),
        (errno.EROFS, "Choose a folder that you may write to"),
        (errno.EIO, "Choose another folder"),
    ],
)
def test_each_reason_has_its_next_step(number, advice, tmp_path):
    with pytest.raises(WriteError, match=advice) as caught, naming_write_errors(tmp_path / "a"):
        raise OSError(number, os.strerror(number))
    assert caught.value.errno == number
    assert str(tmp_path / "a") in str(caught.value)


def test_errors_show_the_final_name_instead_of_the_temporary_one(tmp_path):
    final, work = tmp_path / "model", tmp_path / ".model.part-01234567"
    with pytest.raises(WriteError) as caught, naming_write_errors(final, work):
        (work / "config.json").write_text("{}", encoding="utf-8")
    assert caught.value.path == final / "config.json"
    assert ".part" not in str(caught.value)


def test_a_gguf_file_may_stand_in_a_new_folder(tmp_path):
    write_gguf(tmp_path / "missing" / "folder" / "model.gguf", build_model(preset("tiny-llama")))
    assert [file.name for file in (tmp_path / "missing" / "folder").iterdir()] == ["model.gguf"]


def test_a_parent_that_is_a_file_is_named(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    for write in (save_model, write_gguf):
        with pytest.raises(WriteError, match=r"could not write .*/file/?.*: .*\. Choose"):
            write(tmp_path / "file" / "model", build_model(preset("tiny-llama")))


def test_an_error_about_another_file_is_not_converted(tmp_path):
    texts = (line.text for line in read_lines(tmp_path / "data.txt"))
    with pytest.raises(FileNotFoundError, match=r"data\.txt") as caught:
        write_text_rows(tmp_path / "rows", texts, ids_of, longest=10)
    assert not isinstance(caught.value, WriteError)


def test_a_failed_read_names_the_file_that_was_read(tmp_path, monkeypatch):
    class Broken:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def __iter__(self):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("glassformer.data.readers.text_files._open", lambda path: Broken())
    texts = (line.text for line in read_lines(tmp_path / "data.txt"))
    with pytest.raises(OSError, match=r"data\.txt") as caught:
        write_text_rows(tmp_path / "rows", texts, ids_of, longest=10)
    assert not isinstance(caught.value, WriteError)
