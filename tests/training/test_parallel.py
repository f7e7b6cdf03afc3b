"""Several processes compute what one computes: DDP, FSDP2, tensor parallelism, and all of them after a resume.

The processes start once for many cases. `parallel_program.py` is the program that they run.
"""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from glassformer.checkpoint.model_folder import save_model
from glassformer.data.batching.labeled_batches import LabeledBatch
from glassformer.data.batching.noised_batches import MaskedBatch
from glassformer.data.batching.packed_windows import PackedBatch
from glassformer.data.batching.preference_batches import PreferenceBatch
from glassformer.models import build_model, preset
from glassformer.training import resident_memory
from glassformer.training.estimate import estimate_run
from glassformer.training.parallel import Layout, Parallel, check_whole_fits, read_layout, split_layers
from glassformer.training.processes import Processes, SharedError, joined
from glassformer.training.sharded_tensors import whole_tensor
from glassformer.training.train_config import TrainConfig
from glassformer.training.trainer import Trainer
from training.launched import difference, run_cases
from training.parallel_program import CONFIG, Batches, build, logits_of, loss_of, train

TASKS = ("translation", "language", "classification")
HALF, WHOLE = 2, 4
"""Updates before and after an interruption. The full table has 50 updates."""
DROPOUT = {"dropout": 0.2}
NORMALIZED = {"qk_norm": True}
LEARNED = {
    "data": "translation",
    "shard": "language",
    "tensor": "classification",
    "tensor with cross-attention": "translation",
    "read in parts": "language",
    "read in columns": "translation",
}
"""The task of each case of `together` that is compared with one process."""


def case(folder, task, layout="", updates=WHOLE, **more):
    settings = {"parallel": layout, "updates": updates, "eval_every": HALF, "save_every": WHOLE}
    settings["accumulate"] = 2 if task == "language" else 1
    return {"task": task, "folder": str(folder), "train": {**settings, **more.pop("train", {})}, **more}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Each task, trained in one process."""
    folder = tmp_path_factory.mktemp("alone")
    found = {}
    for task in TASKS:
        losses, scores, parameters = train(case(folder / task, task), Processes())
        found[task] = {"losses": losses, "scores": scores, "parameters": parameters}
    return found


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """The results of two processes by name: three layouts, and runs that one process had begun."""
    folder = tmp_path_factory.mktemp("together")
    cases = {
        "data": case(folder / "a", "translation"),
        "shard": case(folder / "b", "language", "shard=2"),
        "tensor": case(folder / "c", "classification", "tensor=2"),
        "tensor with cross-attention": case(folder / "d", "translation", "tensor=2"),
        "begun": case(folder / "e", "language", "shard=2", updates=HALF),
        "resumed": case(folder / "f", "translation", "shard=2"),
        "read in parts": case(folder / "g", "language", "shard=2", **{"from": str(folder / "stored")}),
        "read in columns": case(folder / "h", "translation", "tensor=2", **{"from": str(folder / "stored pairs")}),
        "normalized heads": case(folder / "k", "language", "tensor=2", model=NORMALIZED),
        "dropout": case(folder / "i", "translation", model=DROPOUT),
        "dropout again": case(folder / "j", "translation", model=DROPOUT),
    }
    save_model(folder / "stored", build("language"))
    save_model(folder / "stored pairs", build("translation"))
    train(case(folder / "f", "translation", updates=HALF), Processes())
    results = run_cases(folder / "results", list(cases.values()), 2)
    return SimpleNamespace(
        folder=folder, **dict(zip(("results",), [dict(zip(cases, results, strict=True))], strict=True))
    )


def check_two_processes_learn_what_one_learns(alone, together, name, task):
    assert difference(alone[task], together.results[name]) < 1e-12, name
    one, other = (logits_of(task, run["parameters"]) for run in (alone[task], together.results[name]))
    assert (one - other).abs().max() < 1e-12, name
    assert one.std() > 0.1, "the logits say something"


def check_heads_with_a_common_norm_are_divided(tmp_path, together):
    """As in Qwen 3 and in the default language model: the gradient of its weight is a sum over all heads."""
    losses, scores, parameters = train(case(tmp_path, "language", model=NORMALIZED), Processes())
    found = {"losses": losses, "scores": scores, "parameters": parameters}
    assert difference(found, together.results["normalized heads"]) < 1e-12
    name = "decoder.layers.0.self_attn.q_norm.weight"
    assert (parameters[name] - 1).abs().max() > 1e-3, "the norm has learned"


@pytest.mark.full
@pytest.mark.parametrize("norm", ["layer", "offset_rms", "mean_std"])
def test_every_kind_of_norm_is_divided(tmp_path, norm):
    shape = {**WIDE, **NORMALIZED, "norm": norm}
    losses, scores, parameters = train(case(tmp_path / "alone", "translation", model=shape), Processes())
    layouts = ["tensor=4", "data=2,tensor=2", "shard=2,tensor=2"]
    cases = [case(tmp_path / layout, "translation", layout, model=shape) for layout in layouts]
    for layout, found in zip(layouts, run_cases(tmp_path / "results", cases, 4), strict=True):
        alone = {"losses": losses, "scores": scores, "parameters": parameters}
        assert difference(alone, found) < 1e-12, layout


def check_two_processes_resume_a_run_of_one(alone, together):
    resumed = together.results["resumed"]
    assert len(resumed["losses"]) == WHOLE - HALF
    whole = {**alone["translation"], "losses": alone["translation"]["losses"][HALF:]}
    assert difference(whole, resumed) < 1e-12


def check_one_process_resumes_a_run_of_two(alone, together):
    losses, scores, parameters = train(case(together.folder / "e", "language"), Processes())
    whole = {**alone["language"], "losses": alone["language"]["losses"][HALF:]}
    assert difference(whole, {"losses": losses, "scores": scores, "parameters": parameters}) < 1e-12


def test_one_process_with_shards_may_read_its_numbers_late(alone, tmp_path):
    """As on a GPU, where the optimizer steps before the norm of the gradient is known."""
    with joined("cpu", is_needed=True) as processes:
        late = case(tmp_path, "translation", "shard=1", late=True)
        losses, scores, parameters = train(late, processes)
    found = {"losses": losses, "scores": scores, "parameters": parameters}
    assert difference(alone["translation"], found) < 1e-5, "the factor of clipping is a float32"


def check_no_file_of_a_checkpoint_is_a_pickle(together):
    files = [path for path in (together.folder / "b").rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".json", ".safetensors"}


TABLE = [(task, dtype) for task in TASKS for dtype in ("float64", "float32")]
WIDE = {"n_kv_heads": 4}


@pytest.fixture(scope="module")
def table_alone(tmp_path_factory):
    """The models of the whole table, trained in one process."""
    folder = tmp_path_factory.mktemp("table")
    cases = [case(folder / f"{t}-{d}", t, updates=50, dtype=d, model=WIDE) for t, d in TABLE]
    return run_cases(folder / "one", cases, 1)


@pytest.mark.full
@pytest.mark.parametrize(
    ("n_processes", "layout"),
    [
        *((2, layout) for layout in ("data=2", "shard=2", "tensor=2")),
        *((4, layout) for layout in ("data=4", "shard=4", "tensor=4")),
        *((4, layout) for layout in ("data=2,shard=2", "data=2,tensor=2", "shard=2,tensor=2")),
    ],
)
def test_the_whole_table(table_alone, tmp_path, n_processes, layout):
    """After 50 updates in float64; float32 is compared less strictly, because rounding errors grow."""
    cases = [case(tmp_path / f"{t}-{d}", t, layout, updates=50, dtype=d, model=WIDE) for t, d in TABLE]
    together = run_cases(tmp_path / "many", cases, n_processes)
    for (task, dtype), one, result in zip(TABLE, table_alone, together, strict=True):
        found = difference(one, result)
        logits = [logits_of(task, run["parameters"], **WIDE) for run in (one, result)]
        of_logits = (logits[0] - logits[1]).abs().max().item()
        of_losses = max(abs(a / b - 1) for a, b in zip(result["losses"], one["losses"], strict=True))
        print(
            f"| {n_processes} | {layout} | {task} | {dtype} | {found:.1e} "
            f"| logits {of_logits:.1e} | losses, relative {of_losses:.1e} |"
        )
        assert of_logits < (1e-9 if dtype == "float64" else 1e-3), (layout, task, dtype)
        assert found < (1e-9 if dtype == "float64" else 1e-3), (layout, task, dtype)
        assert of_losses < 1e-5, (layout, task, dtype)


@pytest.mark.full
def test_any_layout_reads_its_parts_of_a_stored_model(tmp_path):
    """Also where sizes do not divide, as the vocabulary of 103."""
    for task in TASKS:
        save_model(tmp_path / f"stored-{task}", build(task, **WIDE))
    layouts = ["shard=4", "tensor=4", "data=2,shard=2", "data=2,tensor=2", "shard=2,tensor=2"]
    one = [case(tmp_path / task, task, updates=3, model=WIDE) for task in TASKS]
    many = [
        case(tmp_path / f"{task}-{layout}", task, layout, updates=3, **{"from": str(tmp_path / f"stored-{task}")})
        for layout in layouts
        for task in TASKS
    ]
    alone, together = run_cases(tmp_path / "one", one, 1), run_cases(tmp_path / "many", many, 4)
    for number, result in enumerate(together):
        assert difference(alone[number % len(TASKS)], result) < 1e-9, (layouts[number // len(TASKS)], TASKS)


def check_dropout_is_reproducible(together):
    one, other = together.results["dropout"], together.results["dropout again"]
    assert difference(one, other) == 0
    assert one["losses"][0] != together.results["data"]["losses"][0], "nothing is dropped"


def test_two_processes_compute_what_one_computes(alone, together, tmp_path):
    """One test, because each worker of a parallel test run would start the processes of `together` again."""
    for name, task in LEARNED.items():
        check_two_processes_learn_what_one_learns(alone, together, name, task)
    check_heads_with_a_common_norm_are_divided(tmp_path, together)
    check_two_processes_resume_a_run_of_one(alone, together)
    check_one_process_resumes_a_run_of_two(alone, together)
    check_no_file_of_a_checkpoint_is_a_pickle(together)
    check_dropout_is_reproducible(together)


@pytest.mark.full
def test_dropout_is_reproducible_in_every_layout(tmp_path):
    layouts = ["shard=4", "tensor=4", "data=2,shard=2", "data=2,tensor=2", "shard=2,tensor=2"]
    model = {**WIDE, **DROPOUT}
    cases = [case(tmp_path / f"{one}-{n}", "translation", one, model=model) for one in layouts for n in range(2)]
    found = run_cases(tmp_path / "results", cases, 4)
    for layout, one, other in zip(layouts, found[::2], found[1::2], strict=True):
        assert difference(one, other) == 0, layout


def test_dropout_differs_between_parts():
    seeds = [Parallel(processes=Processes(rank, 4)).part for rank in range(4)]
    assert seeds == [0, 1, 2, 3]
    config = TrainConfig(parallel="tensor=2")
    assert [Parallel(config, Processes(rank, 4)).part for rank in range(4)] == [0, 0, 1, 1]


def test_a_sharded_copy_takes_over_the_memory_of_the_model():
    model = build("translation")
    places = [parameter.data_ptr() for parameter in model.parameters()]
    with joined("cpu", is_needed=True) as processes:
        parallel = Parallel(TrainConfig(parallel="shard=1"), processes)
        trained = parallel.apply(model, torch.device("cpu"))
        assert [parameter.data_ptr() for parameter in trained.parameters()] == places
        assert not any(parameter.numel() for parameter in model.parameters())
        parallel.collect(trained, model)
        assert all(parameter.numel() for parameter in model.parameters())


def test_every_example_of_an_update_is_taken_once():
    batches = [Batches("translation")[number] for number in (0, 3)]  # 5 examples and 1
    for size in (2, 3, 4):
        shares = [Parallel(processes=Processes(rank, size)).share(batches[:1]) for rank in range(size)]
        rows = torch.cat([batch.source for share in shares for batch, is_counted in share if is_counted])
        assert torch.equal(rows, batches[0].source)
        counted = [
            [is_counted for _, is_counted in Parallel(processes=Processes(rank, size)).share(batches[1:])]
            for rank in range(size)
        ]
        assert sum(map(sum, counted)) == 1
        assert all(len(one) == 1 for one in counted), "all make the same number of passes"
    assert len(Parallel(processes=Processes(1, 2)).share(batches)) == 1, "whole batches where they can be shared out"


@pytest.mark.parametrize(
    "batch",
    [
        PackedBatch(torch.zeros(5, 3), torch.ones(5, 3), torch.empty(0)),
        LabeledBatch(torch.zeros(10, 3), torch.ones(10, 3), torch.zeros(10, 3), torch.arange(5)),  # two texts each
        PreferenceBatch(torch.zeros(10, 3), torch.ones(10, 3), torch.arange(10)),
        MaskedBatch(*(torch.ones(5, 3) for _ in MaskedBatch._fields)),
    ],
    ids=lambda batch: type(batch).__name__,
)
def test_the_parts_of_a_batch_have_all_its_rows(batch):
    """Batches differ in how many rows an example has."""
    parts = [Parallel(processes=Processes(rank, 2)).share([batch])[0][0] for rank in range(2)]
    assert sum(part.n_target_tokens for part in parts) == batch.n_target_tokens
    for whole, *some in zip(batch, *parts, strict=True):
        assert sum(map(len, some)) == len(whole)
        assert sorted(torch.cat(some).flatten().tolist()) == sorted(whole.flatten().tolist())


def test_a_layout_fills_up_with_data():
    assert read_layout("", 4) == Layout(data=4)
    assert read_layout("tensor=2", 4) == Layout(data=2, tensor=2, is_sharded=True)
    assert read_layout("data=2,shard=3", 6) == Layout(data=2, shard=3, is_sharded=True)
    assert read_layout("shard=1", 1).is_sharded
    assert not Parallel().is_active


@pytest.mark.parametrize(
    ("text", "n_processes", "message"),
    [
        ("data=2,shard=2", 2, "layout of 4 processes, but 2 were started: expected sizes that multiply to 2"),
        ("tensor=3", 4, "layout of 3 processes, but 4"),
        ("tensor=2", 1, "but 1 was started: expected sizes that multiply to 1, or 2 processes (torchrun"),
        ("pipeline=2", 2, "--parallel pipeline=2: expected sizes of data, shard, tensor"),
        ("data=0", 2, "--parallel data=0: expected"),
        ("data=2,data=1", 2, "each once"),
    ],
)
def test_a_wrong_layout_is_refused(text, n_processes, message):
    with pytest.raises(SharedError, match=re.escape(message)) as error:
        read_layout(text, n_processes)
    assert error.value.exit_code == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"offload": True}, "offload=True: parameters are moved"),
        ({"adversarial": 1.0}, "adversarial=1.0"),
        ({"parallel": "shard=2", "optimizer": "muon"}, "optimizer=muon: whole matrices"),
        ({"parallel": "tensor=2", "lora_rank": 4}, "lora_rank=4"),
    ],
)
def test_options_that_several_processes_cannot_have_are_refused(settings, message):
    with pytest.raises(SharedError, match=re.escape(message)):
        Parallel(TrainConfig(**settings), Processes(0, 2))


@pytest.mark.parametrize(
    ("shape", "size", "message"),
    [
        ({}, 3, "tensor=3: n_heads=4, expected a divisor of it"),
        ({"n_kv_heads": 2}, 4, "tensor=4: n_kv_heads=2"),
        ({"d_ff": 21}, 2, "tensor=2: d_ff=21"),
        ({"qk_norm": True, "qk_norm_over": "all_heads"}, 2, "tensor=2: qk_norm_over=all_heads"),
        ({"positions": "relative"}, 2, "tensor=2: encoder adds a bias"),
    ],
)
def test_layers_that_cannot_be_split_are_named(shape, size, message):
    model = build("translation", **shape)
    with pytest.raises(SharedError, match=re.escape(message)):
        split_layers(model, SimpleNamespace(size=lambda: size))


def test_a_model_that_no_device_can_validate_is_refused():
    model = build("language")
    size = 4 * model.n_parameters()
    check_whole_fits(model, size)
    with pytest.raises(SharedError, match="the model has 0 GB in float32: expected at most 0 GB"):
        check_whole_fits(model, size - 1)


def test_the_estimate_of_a_sharded_run_changes_nothing_and_counts_the_validated_model(tmp_path, monkeypatch):
    """A validation holds the whole model, beside the weights, gradients and moments of this process."""
    monkeypatch.setattr(resident_memory, "peak_resident", lambda: None)  # do not count other memory of the process
    config = replace(CONFIG, parallel="shard=1", accumulate=2)
    with joined("cpu", is_needed=True) as processes:
        model = build("language")
        make_loss = loss_of("language", config)
        trainer = Trainer(
            model=model,
            config=config,
            batches=Batches("language"),
            loss=make_loss(model),
            loss_of=make_loss,
            evaluate=dict,
            folder=tmp_path,
            parallel=Parallel(config, processes),
        )
        before = {name: whole_tensor(one.data).clone() for name, one in trainer.model.named_parameters()}
        found = estimate_run(trainer, lambda batch: len(batch.tokens))
        assert all(torch.equal(whole_tensor(one.data), before[name]) for name, one in trainer.model.named_parameters())
        assert not trainer.optimizer.state
    n_parameters = sum(one.numel() for one in before.values())
    assert found.parameters == n_parameters
    assert found.memory_bytes == (4 + 4 + 4 + 8) * n_parameters
    assert found.flops == sum(Batches("language").n_rows(number) for number in range(2 * config.updates))


def test_experts_are_not_split():
    model = build_model(preset("tiny-mixtral"))
    with pytest.raises(SharedError, match=r"tensor=2: decoder\.layers\.0\.ffn has experts, which cannot be split"):
        split_layers(model, SimpleNamespace(size=lambda: 2))


@pytest.mark.full
def test_two_processes_train_experts_as_one_does(tmp_path):
    """The balance loss is that of each process's tokens, so it is left out here."""
    experts = {"n_experts": 4, "expert_balance": 0.0}
    losses, scores, parameters = train(case(tmp_path / "alone", "language", model=experts), Processes())
    cases = [case(tmp_path / layout, "language", layout, model=experts) for layout in ("data=2", "shard=2")]
    for found in run_cases(tmp_path / "results", cases, 2):
        assert difference({"losses": losses, "scores": scores, "parameters": parameters}, found) < 1e-12
