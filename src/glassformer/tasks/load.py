"""The one door to a model on disk, ours or anybody's: it comes back as what it can do."""

from pathlib import Path

import torch

from glassformer.checkpoint import load_model
from glassformer.checkpoint.hf.folder import read_json_table
from glassformer.checkpoint.pretrained import is_foreign, read_foreign
from glassformer.decoding import GenerationConfig
from glassformer.models import DecoderModel, EncoderDecoderModel, EncoderModel
from glassformer.tasks.embedder import Embedder, longest_text, with_pooling
from glassformer.tasks.generator import Generator
from glassformer.tasks.text_to_text import TextToText
from glassformer.tasks.translator import Translator
from glassformer.text.pretrained import PretrainedTokenizer

Loaded = Translator | Generator | Embedder | TextToText


def load(path: Path | str, *, dtype: torch.dtype = torch.float32, allow_pickle: bool = False) -> Loaded:
    """A model that is ready to use.

    A folder that was trained here is a `Translator`. Of HF's folders, GGUF files and llama2.c's files, a decoder is a
    `Generator`, an encoder an `Embedder`, an encoder-decoder a `TextToText`. Nothing is fetched, and nothing in the
    files is run.
    """
    path = Path(path)
    if not is_foreign(path):
        return Translator.from_folder(path)
    foreign = read_foreign(path, allow_pickle=allow_pickle)
    is_encoder = foreign.config.get("model_type") in ("bert", "roberta", "distilbert", "albert", "electra")
    model = load_model(
        path,
        dtype=dtype,
        allow_pickle=allow_pickle,
        adapt=(lambda config: with_pooling(path, config)) if is_encoder else None,
    )
    if foreign.tokenizer_json is not None:
        tokenizer = PretrainedTokenizer.from_json(
            foreign.tokenizer_json, foreign.tokenizer_config, foreign.config, where=str(path)
        )
    elif path.is_dir():
        tokenizer = PretrainedTokenizer.from_folder(path)
    else:
        raise ValueError(f"{path} holds no tokenizer: expected tokenizer.bin beside it")
    if isinstance(model, EncoderModel):
        return Embedder(model, tokenizer, max_len=longest_text(path))
    if isinstance(model, DecoderModel):
        return Generator(model, tokenizer)
    assert isinstance(model, EncoderDecoderModel)
    settings = {**foreign.config, **_generation(path)}
    begin = settings.get("decoder_start_token_id")
    if not isinstance(begin, int):
        raise ValueError(
            f"{path} does not say what its texts begin with: expected decoder_start_token_id in config.json"
        )
    beams, longest = settings.get("num_beams", 4), settings.get("max_length", 512)
    search = GenerationConfig(num_beams=beams, max_new_tokens=longest, early_stopping=False)
    target = PretrainedTokenizer.from_folder(path, target=True)
    return TextToText(model, tokenizer, target, begin=begin, generation=search)


def _generation(path: Path) -> dict[str, object]:
    file = path / "generation_config.json"
    return read_json_table(file) if file.is_file() else {}
