"""Layouts on many GPUs."""

from dataclasses import replace

import pytest

from glassformer.models import preset
from glassformer.models.cluster_plan import MACHINES, MEMORY_SHARE, plan_cluster

H200 = MACHINES["h200"]
SMALL = preset("gpt2")
LARGE = preset("llama", n_decoder_layers=80, d_model=8192, n_heads=64, n_kv_heads=8, d_ff=28672, vocab_size=128000)


def test_a_small_model_on_one_device_needs_no_layout():
    (best, *_) = plan_cluster(SMALL, H200, devices=1, rows=32, target_length=1024)
    assert (best.data, best.shard, best.tensor, best.accumulate, best.checkpointing) == (1, 1, 1, 1, False)
    assert best.parallel == "data=1"
    assert 0.3 < best.mfu < 0.7
    assert best.communication == 0


def test_a_large_model_on_1024_devices_fits_and_uses_all():
    plans = plan_cluster(LARGE, H200, devices=1024, rows=2048, target_length=2048)
    for one in plans:
        assert one.data * one.shard * one.tensor == 1024
        assert one.device_bytes <= MEMORY_SHARE * H200.memory
        assert 0 < one.mfu < 0.7
    assert plans[0].shard * plans[0].tensor > 1, "70 billion parameters do not fit on one device"


def test_a_slow_network_costs_time():
    fast, slow = (
        plan_cluster(LARGE, replace(H200, network=speed), devices=256, rows=512, target_length=2048)[0]
        for speed in (50e9, 5e9)
    )
    assert slow.tokens_per_second < fast.tokens_per_second


def test_what_cannot_be_planned_is_refused():
    with pytest.raises(ValueError, match="7 sequences per update cannot be divided among 16 devices"):
        plan_cluster(SMALL, H200, devices=16, rows=7, target_length=1024)
    with pytest.raises(ValueError, match=r"1 sequence per update .* multiple of 7, such as --batch-tokens 7168$"):
        plan_cluster(SMALL, H200, devices=7, rows=1, target_length=1024)
    with pytest.raises(ValueError, match=r"no layout fits: at least [\d.,]+ GB per device"):
        plan_cluster(LARGE, H200, devices=1, rows=1, target_length=2048)


@pytest.mark.parametrize(
    "change", [{"positions": "alibi"}, {"qk_norm": True, "qk_norm_over": "all_heads"}, {"relative_bias": True}]
)
def test_layers_that_train_cannot_split_are_not_split(change):
    options = {"devices": 8, "rows": 64, "target_length": 512}
    config = preset("tiny-gpt2", n_heads=8, d_model=64)
    assert any(one.tensor > 1 for one in plan_cluster(config, H200, **options))
    assert all(one.tensor == 1 for one in plan_cluster(replace(config, **change), H200, **options))


def test_steps_are_batches_that_each_device_takes_whole():
    plans = plan_cluster(SMALL, H200, devices=8, rows=64, target_length=1024)
    assert {one.train_accumulate for one in plans if one.accumulate == 1} == {1}
    assert all(one.train_accumulate == 2 * one.data * one.shard for one in plans if one.accumulate == 2)
