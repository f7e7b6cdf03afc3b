"""A program for torchrun: train tiny models in several processes, and write what they learned for the tests to compare.

Each case is one training run: a task, a layout and a folder. The program runs all cases of a JSON file, because
starting processes takes seconds. Run without torchrun, it trains in one process.
"""

import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from glassformer.checkpoint.model_folder import load_model
from glassformer.checkpoint.unread_weights import reading_later
from glassformer.data.batching.labeled_batches import LabeledBatch
from glassformer.data.batching.packed_windows import PackedBatch
from glassformer.data.batching.pair_batches import PairBatch
from glassformer.decoding import GenerationConfig, generate
from glassformer.decoding.scoring import score_long_texts, score_texts
from glassformer.models import ModelConfig, build_model
from glassformer.pipelines.pipeline import Pipeline
from glassformer.pipelines.split_model import split_model
from glassformer.runtime.shared_work import divide_work, dividing
from glassformer.tasks.classification import Classification, ClassificationConfig
from glassformer.tasks.language import Language, LanguageConfig
from glassformer.tasks.seq2seq_task import pair_loss
from glassformer.training.parallel import Parallel
from glassformer.training.processes import SharedError, joined
from glassformer.training.train_config import TrainConfig
from glassformer.training.trainer import Trainer

VOCABULARY = 103
CONFIG = TrainConfig(
    updates=6, lr=1e-2, warmup=3, eval_every=4, save_every=4, metric="loss", device="cpu", precision="fp32", threads=1
)
SHAPE = {
    "head": "language_model",
    "d_model": 16,
    "n_heads": 4,
    "d_ff": 24,
    "dropout": 0.0,
    "max_len": 32,
    "vocab_size": VOCABULARY,
}


def tokens(seed, *shape):
    return torch.randint(4, VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


class Batches:
    """Batches of 5 examples and sometimes of 1, which processes cannot share equally."""

    def __init__(self, task):
        self.task = task

    def n_rows(self, number):
        return 1 if number % 4 == 3 else 5

    def __getitem__(self, number):
        rows, x = self.n_rows(number), tokens(number, self.n_rows(number), 12)
        if self.task == "translation":
            target = x.clone()
            target[0, 7:] = 0  # padding: the processes have different numbers of tokens
            return PairBatch(x, torch.cat((torch.full((rows, 1), 1), target[:, :-1]), 1), target)
        if self.task == "language":
            return PackedBatch(x[:, :-1], x[:, 1:], torch.empty(0, dtype=torch.long))
        return LabeledBatch(x, torch.ones_like(x, dtype=torch.bool), torch.zeros_like(x), x[:, 0] % 3)


def build(task, **shape):
    torch.manual_seed(0)
    if task == "translation":
        layers = {"n_encoder_layers": 1, "n_decoder_layers": 1}
    elif task == "language":
        layers = {"n_encoder_layers": 0, "n_decoder_layers": 2, "gated": True, "activation": "silu"}
        layers |= {"positions": "rotary", "norm": "rms", "n_kv_heads": 2}
    else:
        layers = {"n_encoder_layers": 2, "n_decoder_layers": 0, "head": "sequence_class", "n_labels": 3}
    return build_model(ModelConfig(**{**SHAPE, **layers, **shape}))


@torch.no_grad()
def logits_of(task, parameters, **shape):
    """Return the logits of a trained model for three sources, texts or examples that it was not trained on."""
    model = build(task, **shape).to(next(iter(parameters.values())).dtype).eval()
    unknown = model.load_state_dict(parameters, strict=False).unexpected_keys
    assert not unknown, unknown
    x = tokens(2000, 3, 12)
    return model(x, tokens(2001, 3, 12)) if task == "translation" else model(x)


def loss_of(task, config):
    if task == "translation":
        return lambda model: partial(pair_loss, model, config)
    made = Language(LanguageConfig()) if task == "language" else Classification(ClassificationConfig())
    made.config = replace(made.config, train=config)
    return lambda model: partial(made.loss, model)


def train(case, processes):
    """Train one case and return its losses, scores and parameters; parameters in the leader only."""
    config = replace(CONFIG, **case.get("train", {}))
    if "from" in case:  # each process reads its part of a stored model
        with reading_later():
            model = load_model(Path(case["from"]))
    else:
        model = build(case["task"], **case.get("model", {}))
    model.to(getattr(torch, case.get("dtype", "float64")))
    batches, make_loss = Batches(case["task"]), loss_of(case["task"], config)
    losses = []

    def evaluate():
        def work(numbers):
            assert len(numbers) <= -(-3 // processes.size), "the processes do not share the validation"
            return [make_loss(model)(batches[number]).item() for number in numbers]

        numbers = range(1000, 1003)
        with torch.no_grad():
            return {"loss": sum(divide_work(numbers, work)) / sum(batches[one].n_target_tokens for one in numbers)}

    trainer = Trainer(
        model=model,
        config=config,
        batches=batches,
        loss=make_loss(model),
        loss_of=make_loss,
        evaluate=evaluate,
        folder=Path(case["folder"]),
        on_update=lambda update: losses.append(update.loss),
        parallel=Parallel(config, processes),
    )
    trainer.is_async = case.get("late", False)
    parameters = trainer.run()
    return losses, [one.scores["loss"] for one in trainer.state.evaluations], parameters


def write_texts(processes=None, **shape):
    """Return what a language model writes after three prompts, if it is divided among the processes, by beam search."""
    model = build("language", **shape).eval()
    if processes is not None:
        split_model(model, processes.size, torch.device("cpu"))
    search = GenerationConfig(num_beams=2, max_new_tokens=8, min_new_tokens=8)
    texts = generate(model, [[5, 6, 7], [8], [9, 10]], search, end=2)
    return [one[0].tokens for one in texts]


def scored_texts():
    """Return the scores of one long text and of short ones."""
    model = build("language").double().eval()
    rows = [tokens(seed, 60).tolist() for seed in range(3)]
    long = score_long_texts(model, rows, context=16, stride=8)
    return torch.tensor([*long, *(number for row in score_texts(model, [row[:9] for row in rows]) for number in row)])


class Writer(Pipeline):
    """A pipeline that notes how many texts it writes at a time."""

    def __init__(self):
        self.model, self.sizes, self.writer = build("language").eval(), [], self.write

    def answer_lines(self, lines, request):
        raise NotImplementedError

    def write(self, model, inputs, config, **options):
        self.sizes.append(len(inputs))
        return generate(model, inputs, config, **options)

    def texts(self, **settings):
        config = GenerationConfig(max_new_tokens=6, min_new_tokens=6, **settings)
        found = self.write_tokens([[5, 6, 7], [8], [9, 10]], config, end=2)
        return [one[0].tokens for one in found]


def check_shared_work(processes):
    """The processes score texts as one process does, and an error in one of them reaches all."""
    alone = scored_texts()
    with dividing(processes.divide):
        torch.testing.assert_close(scored_texts(), alone, rtol=1e-6, atol=0)  # log-probabilities are float32
    writer = Writer()
    expected = [writer.texts(num_beams=2), writer.texts(do_sample=True, seed=3)]
    with dividing(processes.divide):
        assert [writer.texts(num_beams=2), writer.texts(do_sample=True, seed=3)] == expected
    assert writer.sizes == [3, 3, 2 - processes.rank, 3], "sampled texts depend on their place, and are not divided"
    assert processes.divide(range(5), lambda part: [processes.rank] * len(part)) == [0, 1, 0, 1, 0]
    with pytest.raises(SharedError, match="process 1 of 2: ZeroDivisionError"):
        processes.divide([1, 0], lambda part: [1 // number for number in part])


def main(cases, results):
    with joined("cpu") as processes:
        if processes.size == 2:  # the number of key-value heads
            check_shared_work(processes)
            for shape in ({}, {"qk_norm": True}):
                written = processes.gather(write_texts(processes, **shape))
                assert all(texts == write_texts(**shape) for texts in written), "a divided model writes other texts"
        for number, case in enumerate(cases):
            losses, scores, parameters = train(case, processes)
            everyone = processes.gather(losses)
            assert all(one == losses for one in everyone), "the processes report different losses"
            if processes.is_leader:
                torch.save({"losses": losses, "scores": scores, "parameters": parameters}, results / f"{number}.pt")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), Path(sys.argv[2]))
