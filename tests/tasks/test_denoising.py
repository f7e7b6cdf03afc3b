"""Denoising: an encoder-decoder learns hidden spans."""

from glassformer.pipelines.denoiser import Denoiser
from glassformer.pipelines.load import load
from glassformer.tasks.denoising import Denoising, DenoisingConfig
from tasks.pretraining_models import quick


def test_it_learns_and_fills_in_blanks(denoised, corpus):
    folder, scores = denoised
    tool = load(folder)
    assert isinstance(tool, Denoiser)
    assert tool.score([*corpus.splits().valid]) == scores
    _, guessed = Denoising(quick(DenoisingConfig(data=corpus, noise=tool.noise))).baseline(corpus.splits())
    assert scores["loss"] < 0.6 * guessed["loss"]
    told = tool.run(["the red cow moos . the old dog ___ .", "", "no blank"], beam=1)
    assert told[1:] == ["", "no blank"]
    if tool.noise == "spans":
        assert told[0].startswith("the red cow moos . the old dog ")
    assert "_" not in told[0]
