"""Translate a file with CTranslate2, as a short script of a user would: `translate_file.py` measures it.

    python translate_ctranslate2.py CT2_FOLDER TOKENIZER_JSON SOURCE TARGET BEAM THREADS

The folder comes from `glassformer convert MODEL --to ct2`, the tokenizer from the model's own folder.
"""

import sys
from pathlib import Path

import ctranslate2
import tokenizers

folder, tokenizer_file, source, target, beam, threads = sys.argv[1:]
tokenizer = tokenizers.Tokenizer.from_file(tokenizer_file)
translator = ctranslate2.Translator(folder, compute_type="int8", inter_threads=int(threads), intra_threads=1)
lines = Path(source).read_text(encoding="utf-8").splitlines()
texts = [encoding.tokens for encoding in tokenizer.encode_batch(lines, add_special_tokens=False)]
# CTranslate2 sorts the texts by length. On two ARM cores, batches of 2,048 tokens and a batch on each core were its
# fastest of 1,024 to 8,192 tokens, and 1.6 times as fast as both cores on one batch.
found = translator.translate_batch(texts, beam_size=int(beam), max_batch_size=2048, batch_type="tokens")
ids = [[tokenizer.token_to_id(token) for token in result.hypotheses[0]] for result in found]
Path(target).write_text("\n".join(tokenizer.decode_batch(ids)) + "\n", encoding="utf-8")
