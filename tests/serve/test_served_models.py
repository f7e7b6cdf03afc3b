import asyncio
import re
import threading

import pytest

from glassformer.pipelines.generator import Generator
from glassformer.pipelines.translator import Translator
from glassformer.serve.api_errors import ApiError
from glassformer.serve.compute_thread import ComputeThread
from glassformer.serve.served_models import ModelShelf, check_models, file_size, parse_models
from glassformer.serve.server_metrics import ServerMetrics
from glassformer.serve.server_options import BatchOptions, RequestLimits
from pipelines.tiny_pipelines import make


def test_a_model_is_named_by_its_folder_or_by_the_user(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.gguf").touch()
    (tmp_path / "my model").mkdir()
    found = parse_models(("tiny.gguf", "my model", "org/big=tiny.gguf"))
    assert {name: str(path) for name, path in found.items()} == {
        "tiny": "tiny.gguf",
        "my-model": "my model",
        "org/big": "tiny.gguf",
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [(("a=x", "a=y"), "two models are called 'a'"), (("../etc=x",), "is not allowed"), (("=x",), "is not allowed")],
)
def test_wrong_names_are_refused(words, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_models(words)


def test_the_files_of_models_are_checked(model_paths):
    check_models(model_paths, keep_loaded=0)
    check_models(model_paths, keep_loaded=1)


@pytest.mark.parametrize(
    ("make_path", "message"),
    [
        (lambda path: None, "m: no such model folder"),
        (lambda path: path.mkdir(), "manifest.json is missing: expected a model folder"),
        (
            lambda path: path.write_text("no model", encoding="utf-8"),
            "m: expected a model folder, a GGUF file, or a llama2.c .bin file",
        ),
    ],
)
def test_a_path_without_a_model_is_refused(model_paths, tmp_path, make_path, message):
    make_path(tmp_path / "m")
    with pytest.raises((OSError, ValueError), match=re.escape(message)):
        check_models({**model_paths, "m": tmp_path / "m"}, keep_loaded=0)


def test_a_model_larger_than_the_memory_for_models_is_refused(model_paths):
    with pytest.raises(ValueError, match=r"chat.gguf has 0.00 GB: expected at most --keep-loaded 1e-09; raise it"):
        check_models({"chat": model_paths["chat"]}, keep_loaded=1e-9)


def test_the_size_of_a_model_is_that_of_its_files(tmp_path):
    (tmp_path / "a").write_bytes(b"123")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "c").write_bytes(b"4567")
    assert file_size(tmp_path) == 7
    assert file_size(tmp_path / "a") == 3


@pytest.fixture
def paths(tmp_path):
    for name in "abc":
        (tmp_path / name).write_bytes(b"x" * 1000)
    return {name: tmp_path / name for name in "abc"}


def shelf_of(paths, loads, **batch):
    def load(path):
        loads.append(path.name)
        return make(Translator if path.name == "c" else Generator)

    return ModelShelf(paths, load, ComputeThread(ServerMetrics()), BatchOptions(**batch), RequestLimits())


def test_models_are_loaded_when_they_are_asked_for_and_stay(paths):
    loads = []

    async def use():
        shelf = shelf_of(paths, loads)
        for name in "aba":
            async with shelf.lend(name) as model:
                assert model.is_decoder
        async with shelf.lend("c") as model:
            assert not model.is_decoder
            assert model.lane is not None
            assert model.kind == "translation"

    asyncio.run(use())
    assert loads == ["a", "b", "c"]


def test_models_that_are_not_in_use_make_room(paths):
    loads = []

    async def use():
        shelf = shelf_of(paths, loads, keep_loaded=2.5e-6)  # two of them
        for name in "abcb":
            async with shelf.lend(name):
                pass
        return [name for name, model in shelf.models.items() if model.pipeline is not None], len(shelf._compute._lanes)

    loaded, n_lanes = asyncio.run(use())
    assert loads == ["a", "b", "c"]
    assert loaded == ["b", "c"]
    assert n_lanes == 2


def test_a_request_waits_until_there_is_room(paths):
    loads, order = [], []

    async def use():
        shelf = shelf_of(paths, loads, keep_loaded=1.5e-6)

        async def other():
            async with shelf.lend("b"):
                order.append("b")

        async with shelf.lend("a"):
            task = asyncio.create_task(other())
            await asyncio.sleep(0.05)
            order.append("a")
            assert loads == ["a"]
        await asyncio.wait_for(task, 10)

    asyncio.run(use())
    assert order == ["a", "b"]


def test_a_client_that_leaves_does_not_let_a_model_be_loaded_twice(paths, monkeypatch):
    loads, gate = [], threading.Event()
    put = ModelShelf.put
    monkeypatch.setattr(ModelShelf, "put", lambda *arguments: gate.wait(10) and put(*arguments))

    async def use():
        shelf = shelf_of(paths, loads)

        async def lend():
            async with shelf.lend("a") as model:
                return model

        first = asyncio.create_task(lend())
        while not loads:
            await asyncio.sleep(0.001)
        first.cancel()
        second = asyncio.create_task(lend())
        await asyncio.sleep(0.05)
        gate.set()
        assert (await second).pipeline is not None
        assert len(shelf._compute._lanes) == 1
        assert not shelf.models["a"].n_users

    asyncio.run(use())
    assert loads == ["a"]


def test_unloading_does_not_hold_up_the_event_loop(paths, monkeypatch):
    threads = []
    remove = ComputeThread.remove_lane

    def note(self, lane):
        threads.append(threading.current_thread())
        remove(self, lane)

    monkeypatch.setattr(ComputeThread, "remove_lane", note)

    async def use():
        shelf = shelf_of(paths, [], keep_loaded=1.5e-6)
        for name in "ab":
            async with shelf.lend(name):
                pass

    asyncio.run(use())
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()


def test_two_requests_load_a_model_once(paths):
    loads = []

    async def use():
        shelf = shelf_of(paths, loads)

        async def lend():
            async with shelf.lend("a") as model:
                return model

        first, second = await asyncio.gather(lend(), lend())
        assert first is second

    asyncio.run(use())
    assert loads == ["a"]


def test_a_model_that_fails_to_load_fails_its_request_and_can_be_tried_again(paths):
    outcomes = [ValueError("broken file"), make(Generator)]

    def load(path):
        outcome = outcomes.pop(0)
        if isinstance(outcome, ValueError):
            raise outcome
        return outcome

    async def use():
        shelf = ModelShelf(paths, load, ComputeThread(ServerMetrics()), BatchOptions(), RequestLimits())
        with pytest.raises(ValueError, match="broken file"):
            async with shelf.lend("a"):
                pass
        async with shelf.lend("a") as model:
            assert model.is_decoder

    asyncio.run(use())


def test_unknown_models_are_refused(paths):
    async def use():
        with pytest.raises(ApiError, match="there is no such model") as caught:
            shelf_of(paths, []).find("d")
        assert caught.value.status == 404

    asyncio.run(use())
