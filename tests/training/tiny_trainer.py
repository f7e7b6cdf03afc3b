"""A small trainer of an encoder-decoder, for the tests of training."""

import hashlib
from functools import partial

import torch

from glassformer.data.corpora.toy import PairTaskData
from glassformer.models import build_model, preset
from glassformer.tasks.seq2seq_task import pair_loss
from glassformer.training.train_config import TrainConfig
from glassformer.training.trainer import Trainer

CONFIG = TrainConfig(
    updates=9,
    accumulate=2,
    lr=1e-2,
    warmup=3,
    eval_every=3,
    save_every=2,
    keep_last=3,
    average_last=2,
    metric="loss",
    device="cpu",
    precision="fp32",
)


class Batches:
    def n_rows(self, step):
        return 4

    def __getitem__(self, step):
        return next(PairTaskData("copy", 6, 2, 5, batch_size=4, seed=step).batches())


def make_trainer(folder, config=CONFIG, loss=None, **options):
    torch.manual_seed(0)
    model = build_model(preset("tiny-transformer-base", vocab_size=9, dropout=0.1))
    batches = Batches()

    def evaluate():
        batch = batches[10**6]
        logits = model(batch.source, batch.target_in, batch.source_mask, batch.target_mask)
        return {"loss": torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.target_out.flatten()).item()}

    return Trainer(
        model=model,
        config=config,
        batches=batches,
        loss=loss(model) if loss else partial(pair_loss, model, config),
        evaluate=evaluate,
        folder=folder,
        **options,
    )


def fingerprint(parameters):
    digest = hashlib.sha256()
    for name in sorted(parameters):
        digest.update(name.encode() + parameters[name].contiguous().numpy().tobytes())
    return digest.hexdigest()
