"""Small random models of HF Transformers with a byte-level tokenizer and a chat template, as pretrained models."""

import json

import tokenizers
import torch
import transformers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

SPECIAL = ["<pad>", "<|im_start|>", "<|im_end|>", "<s>"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXTS = ["the cat sat on the mat", "one two three four five", "user assistant system", "eins zwei drei vier fünf"]


def save_tokenizer(folder, *, template=TEMPLATE, begin=None, around=None, size=300):
    """Write tokenizer.json and tokenizer_config.json; `begin` is put before each text, `around` is a whole pattern."""
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    inner.train_from_iterator(TEXTS * 3, trainer)
    pattern = around or ([begin, "$A"] if begin else None)
    if pattern:
        ids = [(token, inner.token_to_id(token)) for token in SPECIAL]
        inner.post_processor = processors.TemplateProcessing(single=pattern, special_tokens=ids)
    folder.mkdir(parents=True, exist_ok=True)
    inner.save(str(folder / "tokenizer.json"))
    roles = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": begin,
        "eos_token": "<|im_end|>",
        "pad_token": "<pad>",
        "chat_template": template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(roles), encoding="utf-8")
    return inner.get_vocab_size()


def save_decoder(folder, kind="Llama", *, template=TEMPLATE, begin=None, seed=0, **changes):
    """Write a random decoder of HF, and return the HF model."""
    size = save_tokenizer(folder, template=template, begin=begin)
    sizes = {"vocab_size": size, "bos_token_id": 3, "eos_token_id": 2, "pad_token_id": 0}
    if kind == "GPT2":
        sizes |= {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64, "resid_pdrop": 0, "embd_pdrop": 0}
        sizes |= {"attn_pdrop": 0}
    else:
        sizes |= {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
        sizes |= {"num_key_value_heads": 1, "max_position_embeddings": 128, "tie_word_embeddings": True}
    config = getattr(transformers, f"{kind}Config")(**{**sizes, **changes})
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.15)
    model.save_pretrained(folder)
    return model


def hf_logits(folder, ids):
    """Return the logits that HF computes for token ids with the model of a folder."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0]


def save_seq2seq(folder, kind, **changes):
    """Write a random encoder-decoder of HF, T5, Bart or Marian, and return the HF model."""
    around = {"T5": ["$A", "<|im_end|>"], "Bart": ["<s>", "$A", "<|im_end|>"], "Marian": ["$A", "<|im_end|>"]}[kind]
    size = save_tokenizer(folder, around=around)
    start = {"T5": 0, "Bart": 2, "Marian": 0}[kind]
    ids = {"pad_token_id": 0, "eos_token_id": 2, "bos_token_id": 3, "decoder_start_token_id": start}
    if kind == "T5":
        sizes = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2, "dropout_rate": 0.0}
    else:
        sides = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in SIDE.items()}
        sizes = {"d_model": 16, "max_position_embeddings": 64, "dropout": 0.0, "forced_eos_token_id": None, **sides}
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**{"vocab_size": size, **ids, **sizes, **changes})
    model = transformers.AutoModelForSeq2SeqLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.15)
    model.save_pretrained(folder)
    return model


SIDE = {"layers": 1, "attention_heads": 2, "ffn_dim": 24}


def hf_pair_logits(model, source, target):
    """Return the logits of a model of HF for the tokens of a target, given those of a source."""
    with torch.no_grad():
        return model(input_ids=torch.tensor([source]), labels=torch.tensor([target])).logits[0]
