"""Translate a file with HF Transformers on a GPU, as a short script of a user would: `translate_file.py` measures it.

    python translate_hf.py HF_FOLDER SOURCE TARGET BEAM

The folder comes from `glassformer convert MODEL --to hf`. Sorted batches of 128 texts, bfloat16.
"""

import sys
from pathlib import Path

import torch
import transformers

folder, source, target, beam = sys.argv[1:]
tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.bfloat16).to("cuda").eval()
lines = Path(source).read_text(encoding="utf-8").splitlines()
order = sorted(range(len(lines)), key=lambda index: len(lines[index]))
answers = [""] * len(lines)
for first in range(0, len(order), 128):
    chosen = order[first : first + 128]
    batch = tokenizer([lines[index] for index in chosen], padding=True, return_tensors="pt").to("cuda")
    with torch.inference_mode():
        written = model.generate(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            num_beams=int(beam),
            do_sample=False,
            max_new_tokens=120,
        )
    for index, text in zip(chosen, tokenizer.batch_decode(written, skip_special_tokens=True), strict=True):
        answers[index] = text
Path(target).write_text("\n".join(answers) + "\n", encoding="utf-8")
