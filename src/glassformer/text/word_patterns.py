"""The patterns by which byte-level tokenizers split a text into words, and their names in GGUF files."""

GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_WORDS = LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")

# Pre-tokenization rules by their name in `tokenizer.ggml.pre`: patterns applied in turn.
CUTS = {
    "gpt-2": (GPT2_WORDS,),
    "smollm": (r"\p{N}", GPT2_WORDS),
    "qwen2": (QWEN2_WORDS,),
    "deepseek-r1-qwen": (QWEN2_WORDS,),
    "llama-bpe": (LLAMA3_WORDS,),
    "llama3": (LLAMA3_WORDS,),
    "llama-v3": (LLAMA3_WORDS,),
    # llama.cpp's defaults for files that do not say.
    "default": (r"[\p{P}$+<=>^~|]+", GPT2_WORDS, r"\p{N}+", r"[0-9]{3}"),
}
