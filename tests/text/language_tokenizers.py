"""Small tokenizers of HF Transformers with language codes."""

import torch
import transformers

KINDS = ["mbart", "mbart50", "nllb"]
WORDS = ["one", "two", "three", "four", "eins", "zwei", "drei", "vier"]
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]


def save_language_tokenizer(folder, kind):
    """Write a tokenizer with codes of languages, and return it for English to German, with the two codes."""
    letters = sorted({letter for word in WORDS for letter in word})
    if kind == "nllb":
        pieces = [*SPECIAL, "\u2581", *letters]
        vocab = {piece: index for index, piece in enumerate(pieces)}
        codes = ["eng_Latn", "deu_Latn", "fra_Latn"]
        made = transformers.NllbTokenizer(
            vocab=vocab, merges=[], src_lang=codes[0], tgt_lang=codes[1], extra_special_tokens=codes
        )
        source, target = codes[:2]
    else:
        source, target = "en_XX", "de_DE"
        vocab = [(piece, 0.0) for piece in SPECIAL] + [("\u2581", -2.0)] + [(letter, -3.0) for letter in letters]
        vocab += [(f"\u2581{word}", -1.0) for word in WORDS]
        vocab += [("en_XX", 0.0), ("de_DE", 0.0), ("fr_XX", 0.0), ("<mask>", 0.0)]
        cls = transformers.MBartTokenizer if kind == "mbart" else transformers.MBart50Tokenizer
        made = cls(vocab=vocab, src_lang=source, tgt_lang=target)
    folder.mkdir(parents=True, exist_ok=True)
    made.save_pretrained(folder)
    return made, source, target


def save_language_model(folder, kind, seed=0, **settings):
    """Write a random translator of HF with such a tokenizer, and return both, with the two codes."""
    words, source, target = save_language_tokenizer(folder, kind)
    side = {"layers": 2, "attention_heads": 2, "ffn_dim": 20}
    sides = {f"{name}_{key}": value for name in ("encoder", "decoder") for key, value in side.items()}
    ids = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2}
    sizes = {"d_model": 16, "max_position_embeddings": 40, "vocab_size": len(words), "forced_eos_token_id": None}
    torch.manual_seed(seed)
    config = getattr(transformers, "M2M100Config" if kind == "nllb" else "MBartConfig")(**sides, **ids, **sizes)
    theirs = transformers.AutoModelForSeq2SeqLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(std=0.4)
    theirs.generation_config.update(max_length=12, num_beams=1, **settings)
    theirs.save_pretrained(folder)
    return theirs, words, source, target
