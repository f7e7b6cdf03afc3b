"""Check that Glassformer tokenizes strings with the vocabularies of real models as llama.cpp does.

    python tools/check_tokenizers.py DATA_FOLDER [--bert FOLDER]

DATA_FOLDER holds `golden/` (llama.cpp's test strings and the token ids of each), `gpt2/` and `llama/`; `--bert` is a
folder with the vocabulary of an uncased BERT. The script prints for each vocabulary how many strings get the recorded
ids, and exits with 1 if one does not.
"""

import argparse
import gzip
import sys
import tempfile
from pathlib import Path

from glassformer.text.pretrained_tokenizers import PretrainedTokenizer

SEPARATOR = "\n__ggml_vocab_test__\n"


def read_golden(folder: Path, name: str) -> list[tuple[str, list[int]]]:
    """Return the test strings that llama.cpp recorded for the vocabulary `name`, each with its token ids."""
    texts = (folder / f"ggml-vocab-{name}.gguf.inp").read_text(encoding="utf-8").split(SEPARATOR)[:-1]
    lines = (folder / f"ggml-vocab-{name}.gguf.out").read_text(encoding="utf-8").split("\n")[:-1]
    return [(text, [int(index) for index in line.split()]) for text, line in zip(texts, lines, strict=True)]


def check(title: str, tokenizer: PretrainedTokenizer, golden: list[tuple[str, list[int]]]) -> bool:
    """Return whether every string is encoded to its recorded ids; print the number of matches and the failures."""
    wrong = 0
    for text, ids in golden:
        found = tokenizer.encode_plain(text)
        if found != ids:
            wrong += 1
            print(f"  {text!r}\n    expected {ids}\n    found    {found}")
    print(f"{title}: {len(golden) - wrong} of {len(golden)} strings match")
    return wrong == 0


def gpt2(folder: Path) -> PretrainedTokenizer:
    """Return GPT-2's tokenizer, from its published files encoder.json.gz and vocab.bpe.gz."""
    with tempfile.TemporaryDirectory() as work:
        for packed, name in (("encoder.json.gz", "vocab.json"), ("vocab.bpe.gz", "merges.txt")):
            (Path(work) / name).write_bytes(gzip.decompress((folder / packed).read_bytes()))
        return PretrainedTokenizer.from_folder(Path(work))


def bert_vocab_alone(folder: Path) -> PretrainedTokenizer:
    """Return a BERT folder's tokenizer, read from its `vocab.txt`, as if it had no `tokenizer.json`."""
    with tempfile.TemporaryDirectory() as work:
        for name in ("vocab.txt", "tokenizer_config.json"):
            if (folder / name).is_file():
                (Path(work) / name).write_bytes((folder / name).read_bytes())
        return PretrainedTokenizer.from_folder(Path(work))


def main() -> int:
    """Check the vocabularies of GPT-2, Llama and, if it is given, BERT. Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("data", type=Path, help="a folder with golden/, gpt2/ and llama/")
    parser.add_argument("--bert", type=Path, help="a folder with vocab.txt, and perhaps tokenizer.json")
    arguments = parser.parse_args()
    golden = arguments.data / "golden"
    results = [
        check("GPT-2, vocab.json + merges.txt", gpt2(arguments.data / "gpt2"), read_golden(golden, "gpt-2")),
        check(
            "Llama, tokenizer.model",
            PretrainedTokenizer.from_folder(arguments.data / "llama"),
            read_golden(golden, "llama-spm"),
        ),
    ]
    if arguments.bert:
        strings = read_golden(golden, "bert-bge")
        if (arguments.bert / "tokenizer.json").is_file():
            results.append(check("BERT, tokenizer.json", PretrainedTokenizer.from_folder(arguments.bert), strings))
        results.append(check("BERT, vocab.txt", bert_vocab_alone(arguments.bert), strings))
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
