"""Small valid models in every format, and seeded ways to break them: corrupt, cut off, or malicious.

A case is a number. It chooses a model, one or two of its files and what happens to them; the same number always gives
the same files. `tools/fuzz.py` runs thousands of cases, `test_hostile_files.py` a few hundred. A model that is refused
must be refused with one of the `ALLOWED` errors, in at most `MAX_MESSAGE` characters that name the file or its folder.
"""

import copy
import json
import os
import random
import resource
import shutil
import struct
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from safetensors.torch import load_file, save_file
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from glassformer.checkpoint.hf import FAMILIES
from glassformer.checkpoint.hf.folder import save_hf_folder
from glassformer.checkpoint.safe_files import MANIFEST, sha256
from glassformer.decoding import GenerationConfig
from glassformer.models import ModelConfig, build_model, preset
from glassformer.pipelines.answerer import Answerer
from glassformer.pipelines.classifier import Classifier
from glassformer.pipelines.comparer import Comparer
from glassformer.pipelines.denoiser import Denoiser
from glassformer.pipelines.encoder_pipeline import Reader
from glassformer.pipelines.extractor import Extractor
from glassformer.pipelines.generator import Generator
from glassformer.pipelines.language_model import LanguageModel
from glassformer.pipelines.load import load
from glassformer.pipelines.mask_filler import MaskFiller
from glassformer.pipelines.seq2seq_pipeline import Seq2SeqPipeline
from glassformer.pipelines.tagger import Tagger
from glassformer.pipelines.text_to_text import TextToText
from glassformer.pipelines.translator import Translator
from glassformer.text.tokenizer import Tokenizer

MAX_SECONDS = 1.0
MAX_GROWTH = 256 * 2**20
MAX_MESSAGE = 2000
ALLOWED = (ValueError, OSError, FloatingPointError)
"""FloatingPointError is raised when a model with NaN weights runs."""

UNREAD = (MANIFEST, "README.md")
WORDS = ["</s>", "<pad>", "<s>", "[UNK]", "a", "b", "c", "cat", "dog", "sat", "on", "the", "mat", "."]
SMALL: dict[str, Any] = {"vocab_size": len(WORDS), "d_model": 8, "n_heads": 2, "d_ff": 12}
HF_MODELS: dict[str, ModelConfig] = {
    "llama": preset("llama", **SMALL, n_kv_heads=1, n_decoder_layers=2, max_len=24, tie="none"),
    "mistral": preset("llama", **SMALL, n_kv_heads=2, n_decoder_layers=1, max_len=24, sliding_window=3),
    "qwen2": preset("llama", **SMALL, n_kv_heads=1, n_decoder_layers=2, max_len=24, qkv_bias=True, sliding_window=3),
    "gpt2": preset("gpt2", **SMALL, n_decoder_layers=1, max_len=24),
    "bert": preset("bert-base", **SMALL, n_encoder_layers=2, max_len=24).with_head("none"),
    "roberta": preset("bert-base", **SMALL, n_encoder_layers=1, max_len=24, position_offset=2).with_head("none"),
    "albert": preset("albert-base", **SMALL, n_encoder_layers=3, max_len=24, embedding_width=4).with_head("none"),
    "t5": preset("t5-small", **SMALL, n_encoder_layers=1, n_decoder_layers=2),
    "bart": preset("bart-base", **SMALL, n_encoder_layers=2, n_decoder_layers=1, max_len=24),
    "marian": preset("marian", **SMALL, n_encoder_layers=1, n_decoder_layers=1, max_len=24),
}
SHARDED = ("qwen2", "bart")


def build_models(root: Path) -> dict[str, Path]:
    """Save a small model of each format below `root`; return the path to load by kind."""
    found = {}
    for kind, config in HF_MODELS.items():
        torch.manual_seed(0)
        found[kind] = root / kind
        _save_hf(found[kind], kind, config)
    for kind in SHARDED:
        _split(found[kind])
    found |= _save_own(root)
    _save_llama2c(root / "llama2c")
    found |= {"llama2c": root / "llama2c" / "model.bin"}
    try:
        import gguf
    except ImportError:
        return found
    _save_gguf(root / "gguf", gguf)
    return found | {"gguf": root / "gguf" / "model.gguf"}


def _save_hf(folder: Path, kind: str, config: ModelConfig) -> None:
    inner = tokenizers.Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    inner.normalizer = normalizers.Lowercase()
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.decoder = decoders.Fuse()
    inner.add_special_tokens(["</s>", "<pad>", "<s>"])
    if config.n_encoder_layers:
        inner.post_processor = processors.TemplateProcessing(single="$0 </s>", special_tokens=[("</s>", 0)])
    roles = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": {"content": "[UNK]"}}
    roles["chat_template"] = "{% for m in messages %}<s>{{ m.content }}{% endfor %}"
    roles["added_tokens_decoder"] = {"3": {"content": "[UNK]", "special": True}}
    generation = {"num_beams": 2, "max_length": 5, "eos_token_id": [0], "pad_token_id": 1}
    texts = {"tokenizer.json": inner.to_str(), "tokenizer_config.json": json.dumps(roles)}
    texts["generation_config.json"] = json.dumps(generation)
    if config.kind == "encoder":
        texts["sentence_bert_config.json"] = json.dumps({"max_seq_length": 9})
    values = {"decoder_start_token_id": 1, "pad_token_id": 1, "eos_token_id": 0}
    save_hf_folder(folder, build_model(config), family=FAMILIES[kind], values=values, texts=texts)
    (folder / MANIFEST).unlink()
    if config.kind == "encoder":
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(
            json.dumps({"pooling_mode_cls_token": True}), encoding="utf-8"
        )


def _split(folder: Path) -> None:
    """Split the weights of a folder into two shards with an index."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names, homes = sorted(tensors), {}
    for index, part in enumerate((names[::2], names[1::2])):
        file = f"model-{index + 1:05}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, folder / file)
        homes |= dict.fromkeys(part, file)
    size = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": size}, "weight_map": homes}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


def _save_own(root: Path) -> dict[str, Path]:
    """A folder of each kind of tool that a task of ours writes: "own" is a translator."""
    torch.manual_seed(0)
    tokenizer = Tokenizer.train(["the cat sat on the mat", "a dog"] * 3, 280, more_special=["<mask>"])
    sizes = SMALL | {"vocab_size": tokenizer.vocab_size, "max_len": 24}
    pair = build_model(preset("transformer-base", **sizes, n_encoder_layers=1, n_decoder_layers=1))
    writer = build_model(preset("gpt2", **sizes, n_decoder_layers=1))
    body = preset("bert-base", **sizes, n_encoder_layers=1)
    encoder = {name: build_model(body.with_head(name)) for name in ("embedding", "span")}
    encoder |= {"classes": build_model(body.with_head("sequence_class", n_labels=2)), "words": build_model(body)}
    encoder["tags"] = build_model(body.with_head("token_class", n_labels=9))
    search, reader = GenerationConfig(num_beams=2, max_new_tokens=5), Reader.own(tokenizer)
    noise = {"noise": "infilling", "share": 0.3, "mean_span": 3.0}
    tools: dict[str, Any] = {
        "own": Translator(pair, tokenizer, tokenizer, search),
        "answerer": Answerer(pair, tokenizer, tokenizer, search, quotes=True, number_sentences=True, last_sentences=2),
        "denoiser": Denoiser(pair, tokenizer, tokenizer, search, **noise),
        "writer": LanguageModel(writer, tokenizer, GenerationConfig(max_new_tokens=5), has_documents=True),
        "classifier": Classifier(encoder["classes"], reader, labels=["a", "b"], multi_label=True),
        "comparer": Comparer(encoder["embedding"], reader, lowest=0.0, highest=5.0),
        "extractor": Extractor(encoder["span"], reader, abstains=False, overlap=4, longest_answer=5),
        "guesser": MaskFiller(encoder["words"], reader, share=0.15),
        "tagger": Tagger(encoder["tags"], reader, labels=["LOC", "PER"]),
    }
    for name, tool in tools.items():
        tool.save(root / name, "# A model")
    return {name: root / name for name in tools}


def _save_llama2c(folder: Path) -> None:
    folder.mkdir()
    tokens = [("<unk>", 0.0), ("\n<s>\n", 0.0), ("\n</s>\n", 0.0), (" a", -1.0), ("ab", -2.0)]
    tokens += [(letter, -9.0) for letter in " ab"]
    width, inner, layers, heads, vocabulary, length = 8, 12, 2, 2, len(tokens), 16
    layer = 2 * width + 2 * width * width + 2 * (width // heads) * width + 3 * width * inner
    count = vocabulary * width + layers * layer + width + length * (width // heads)
    numbers = np.random.default_rng(0).normal(size=count).astype("<f4").tobytes()
    header = struct.pack("<7i", width, inner, layers, heads, 1, vocabulary, length)
    (folder / "model.bin").write_bytes(header + numbers)
    pieces = [struct.pack("<fi", score, len(token)) + token.encode() for token, score in tokens]
    (folder / "tokenizer.bin").write_bytes(struct.pack("<i", 8) + b"".join(pieces))


def _save_gguf(folder: Path, gguf: Any) -> None:
    folder.mkdir()
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*letters, "ab", "<|begin|>", "<|end|>"]
    writer = gguf.GGUFWriter(folder / "model.gguf", "llama")
    sizes = {"block_count": 1, "context_length": 24, "embedding_length": 8, "feed_forward_length": 12}
    for key, size in (sizes | {"attention.head_count": 2, "attention.head_count_kv": 1}).items():
        writer.add_uint32(f"llama.{key}", size)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * 257 + [3, 3])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(257)
    writer.add_eos_token_id(258)
    writer.add_chat_template("{{ messages[0].content }}")
    layer = {"attn_norm": (8,), "attn_q": (8, 8), "attn_k": (4, 8), "attn_v": (4, 8), "attn_output": (8, 8)}
    layer |= {"ffn_norm": (8,), "ffn_gate": (12, 8), "ffn_up": (12, 8), "ffn_down": (8, 12)}
    shapes = {"token_embd": (len(tokens), 8), "output_norm": (8,)} | {f"blk.0.{name}": s for name, s in layer.items()}
    rng = np.random.default_rng(0)
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", rng.normal(size=shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@dataclass(frozen=True)
class Outcome:
    """The result of one case."""

    case: int
    kind: str
    deeds: str
    """The changes made to the files."""
    result: str
    """`loaded`, or the name of the exception that refused it."""
    violation: str
    """The requirement that was violated, in words; empty if there is none."""
    seconds: float
    """CPU time, so that other processes of the machine do not count."""


def run_case(case: int, paths: dict[str, Path], work: Path, *, show: bool = False) -> Outcome:
    """Break a model as the case number says, load it, and run it if it loads. `show` prints the traceback."""
    draw = random.Random(case)
    kind = draw.choice(sorted(paths))
    whole = paths[kind]
    folder = whole if whole.is_dir() else whole.parent
    broken = work / folder.name
    shutil.rmtree(broken, ignore_errors=True)
    shutil.copytree(folder, broken)
    deeds = break_folder(draw, broken)
    path = broken if whole.is_dir() else broken / whole.name
    before, start = _peak_memory(), time.process_time()
    result, violation, is_loaded = "loaded", "", False
    try:
        model = load(path)
        is_loaded = True
        use(model)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of a Rust library is not an Exception
        result = type(error).__name__
        violation = judge(error, None if is_loaded else folder_of(path))
        if show:
            traceback.print_exception(error)
    seconds, growth = time.process_time() - start, _peak_memory() - before
    if seconds > MAX_SECONDS:
        violation = violation or f"took {seconds:.1f} s ({result})"
    if growth > MAX_GROWTH:
        violation = violation or f"took {growth / 2**20:.0f} MiB ({result})"
    return Outcome(case, kind, deeds, result, violation, seconds)


def folder_of(path: Path) -> Path:
    """Return the folder of a model, or the parent folder of a model that is one file."""
    return path if path.is_dir() else path.parent


def judge(error: BaseException, folder: Path | None) -> str:
    """Return what is wrong with an error, or "". The message must name `folder` or a file in it, if given."""
    message = str(error)
    if not isinstance(error, ALLOWED):
        return f"{type(error).__name__} at {_place(error)}: {message[:200]}"
    if len(message) > MAX_MESSAGE:
        return f"{type(error).__name__} of {len(message)} characters at {_place(error)}: {message[:200]}"
    if folder is not None and str(folder) not in message:
        return f"{type(error).__name__} without a path at {_place(error)}: {message[:200]}"
    return ""


def use(model: Any) -> None:
    """Run a loaded model as briefly as possible."""
    if isinstance(model, Generator):
        config = GenerationConfig(max_new_tokens=3)
        model.run(["the cat"], config=config)
        if model.can_chat:
            model.run(["the cat"], chat=True, config=config)
        return
    if isinstance(model, Seq2SeqPipeline | TextToText):
        # A file may ask for long texts, which are no fault, so limit the length here.
        short = min(model.generation.max_new_tokens, 5)
        model.generation = replace(model.generation, max_new_tokens=short, min_new_tokens=0)
    model.run(["the ___\ta cat sat"])


def _peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _place(error: BaseException) -> str:
    """Return the innermost line of Glassformer in the traceback of an exception."""
    trace, found = error.__traceback__, ""
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if "glassformer/" in name:
            found = f"{name.rpartition('glassformer/')[2]}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


def break_folder(draw: random.Random, folder: Path) -> str:
    """Change one or two files of a model; return a description of the changes."""
    deeds = []
    for _ in range(draw.choice((1, 1, 1, 2))):
        files = sorted(
            file for file in folder.rglob("*") if file.is_file() and file.name not in (MANIFEST, "README.md")
        )
        if not files:
            break
        file = draw.choice(files)
        deeds.append(f"{file.relative_to(folder)}: {_break_file(draw, file)}")
    if (folder / MANIFEST).is_file():
        seal(folder)
        if draw.random() < 0.1:
            deeds.append(f"{MANIFEST}: {_break_file(draw, folder / MANIFEST)}")
    return "; ".join(deeds)


def seal(folder: Path) -> None:
    """Rewrite the manifest, so that changed files pass the checksums and reach the readers."""
    files = sorted(file for file in folder.iterdir() if file.is_file() and file.name != MANIFEST)
    (folder / MANIFEST).write_text(
        json.dumps({"sha256": {file.name: sha256(file) for file in files}}), encoding="utf-8"
    )


def _break_file(draw: random.Random, file: Path) -> str:
    if draw.random() < 0.04:
        return _replace_file(draw, file)
    if file.suffix == ".json" and draw.random() < 0.85:
        return _break_json(draw, file)
    if file.suffix == ".safetensors" and draw.random() < 0.7:
        return _break_header(draw, file)
    return _break_bytes(draw, file)


def _replace_file(draw: random.Random, file: Path) -> str:
    deed = draw.choice(("removed", "empty", "a folder", "a link outside", "a link to itself", "another file", "a pipe"))
    others = sorted(other for other in file.parent.iterdir() if other.is_file() and other != file)
    other = draw.choice(others).read_bytes() if others else b""
    file.unlink()
    if deed == "empty":
        file.touch()
    elif deed == "a folder":
        file.mkdir()
    elif deed == "a link outside":
        file.symlink_to("/etc/passwd")
    elif deed == "a link to itself":
        file.symlink_to(file)
    elif deed == "another file":
        file.write_bytes(other)
    elif deed == "a pipe":
        os.mkfifo(file)
    return deed


def _break_bytes(draw: random.Random, file: Path) -> str:
    """Change, insert, delete or cut off bytes, mostly near the beginning, where the headers are."""
    data = bytearray(file.read_bytes())
    deeds = []
    for _ in range(draw.choice((1, 1, 2, 5))):
        reach = len(data) if draw.random() < 0.2 else min(len(data), draw.choice((32, 256, 8192)))
        at, size = draw.randrange(reach + 1), draw.choice((1, 1, 2, 8, 64))
        deed = draw.choice(("flip", "insert", "delete", "truncate", "number", "number"))
        if deed == "flip" and at < len(data):
            data[at] ^= 1 << draw.randrange(8)
        elif deed == "insert":
            data[at:at] = draw.randbytes(size)
        elif deed == "delete":
            del data[at : at + size]
        elif deed == "truncate":
            del data[at:]
        elif deed == "number":
            number = draw.choice((0, 1, 2, 255, 2**16, 2**31 - 1, 2**32 - 1, 2**40, 2**63 - 1, 2**64 - 1, len(data)))
            width = draw.choice((4, 8))
            at -= at % 4 if draw.random() < 0.5 else 0
            data[at : at + width] = (number % 2 ** (8 * width)).to_bytes(width, "little")
        deeds.append(f"{deed} at {at}")
    file.write_bytes(data)
    return ", ".join(deeds)


def _break_header(draw: random.Random, file: Path) -> str:
    """Change the JSON header of a safetensors file, and correct the stored length of the header."""
    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8 : 8 + size])
    except (ValueError, RecursionError):
        return _break_bytes(draw, file)
    deeds = [_break_tree(draw, header) for _ in range(draw.choice((1, 1, 2)))]
    name = draw.choice(sorted(header)) if header else ""
    if isinstance(header.get(name), dict) and draw.random() < 0.3:
        key, value = draw.choice(
            (
                ("dtype", draw.choice(("F16", "BF16", "F64", "I64", "U8", "BOOL", "F8_E4M3", "F4", "C64", "X"))),
                ("shape", draw.choice(([], [0], [2**31, 2**31], [2**63], [1] * 2000, [-1], [1, 8, 1]))),
                ("data_offsets", draw.choice(([0, 0], [8, 0], [0, 2**62], [-8, 8], [1, 33], [0]))),
            )
        )
        header[name][key] = value
        deeds.append(f"{name}.{key} = {value!r:.40}")
    text = _written(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])
    return ", ".join(deeds)


DEEP = "{deep}"
"""Placeholder for deeply nested lists, which Python's JSON writer cannot write."""
HOSTILE: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 7, -(2**31), 2**31, 2**32, 10**9, 2**63, 2**64, 10**30),
    *(0.0, 0.5, -1.5, 1e-45, 1e308, float("nan"), float("inf"), -float("inf")),
    *("", "x", "1", "\0", "\ud800", "../../etc/passwd", "x" * 5000, "x" * 100_000, "{{ 9**9**9 }}", DEEP),
    *([], {}, [None], [[]], [1, 2], ["a"], {"a": 1}, {"content": 3}, [{}], list(range(2000))),
)
SEARCH_SETTINGS = [item.name for item in fields(GenerationConfig)]
TEMPLATES = (
    "{% for a in range(10**9) %}x{% endfor %}",
    "{{ 9**9**9**9 }}",
    "{{ 'x' * 10**10 }}",
    "{{ messages.__class__.__mro__[1].__subclasses__() }}",
    "{% if %}",
    "{% include '/etc/passwd' %}",
    "{{ raise_exception('no') }}",
    "{{ messages[7].content.x.y }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
)


def _break_json(draw: random.Random, file: Path) -> str:
    try:
        tree = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        return _break_bytes(draw, file)
    deeds = []
    if file.name == "generation_config.json" and isinstance(tree, dict) and draw.random() < 0.6:
        # A folder sets few of the generation settings, so add the missing ones with random values.
        name = draw.choice(SEARCH_SETTINGS)
        tree[name] = copy.deepcopy(draw.choice(HOSTILE))
        deeds.append(f"{name} = {tree[name]!r:.40} put in")
    if not deeds or draw.random() < 0.3:
        deeds += [_break_tree(draw, tree) for _ in range(draw.choice((1, 1, 1, 2, 4)))]
    if draw.random() < 0.03:
        tree = copy.deepcopy(draw.choice(HOSTILE))
        deeds.append(f"whole = {tree!r:.40}")
    text = _written(tree)
    if draw.random() < 0.03:
        text, deed = _break_text(draw, text)
        deeds.append(deed)
    file.write_text(text, encoding="utf-8", errors="surrogatepass")
    return ", ".join(deeds)


def _break_text(draw: random.Random, text: str) -> tuple[str, str]:
    """Change JSON text in ways that Python's JSON writer cannot; return the text and a description."""
    deed = draw.choice(("deep lists", "deep tables", "a key twice", "a long number", "1e999"))
    if deed == "deep lists":
        return "[" * 100_000, deed
    if deed == "deep tables":
        return '{"a":' * 100_000, deed
    begin, colon, rest = text.partition(":")
    if deed == "a key twice" or not colon:
        return text.replace("{", '{"task": "x", "task": "y", ', 1), deed
    number = "9" * 10_000 if deed == "a long number" else "1e999"
    return f"{begin}: {number}, {begin.lstrip('{')}_{colon}{rest}".replace('"_', '_"'), deed


def _break_tree(draw: random.Random, tree: Any) -> str:
    """Change one value somewhere in a JSON tree, in place."""
    places = list(_places(tree))
    if not places:
        return "nothing"
    # Limit the entries of a vocabulary, or they would be chosen almost always.
    shallow = [place for place in places if len(place[2]) < 2]
    home, key, way = draw.choice(shallow if shallow and draw.random() < 0.6 else places)
    name = ".".join(map(str, (*way, key)))
    deed = draw.choice(("remove", "rename", "copy", "value", "value", "value", "value", "near"))
    if deed == "remove":
        del home[key]
        return f"{name} removed"
    if deed == "rename" and isinstance(home, dict):
        home[f"{key}_"] = home.pop(key)
        return f"{name} renamed"
    if key == "model_type":
        value = copy.deepcopy(draw.choice([*FAMILIES, *HOSTILE]))
    elif key == "chat_template" and draw.random() < 0.8:
        value = draw.choice(TEMPLATES)
    elif deed == "copy":
        other, other_key, _ = draw.choice(places)
        value = json.loads(json.dumps(other[other_key]))
    elif deed == "near" and type(home[key]) is int:
        value = home[key] * draw.choice((1, 2, -1)) + draw.choice((-1, 0, 1, 2))
    else:
        value = copy.deepcopy(draw.choice(HOSTILE))
    home[key] = value
    return f"{name} = {value!r:.40}"


def _places(tree: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, Any, tuple[Any, ...]]]:
    """Yield every list or object of a JSON tree with each of its keys and the path to it."""
    entries = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in entries:
        yield tree, key, way
        yield from _places(value, (*way, key))


def _written(tree: Any) -> str:
    text = json.dumps(tree)
    for depth in (600, 100_000):  # Python can read the first, but not the second
        text = text.replace(json.dumps(DEEP), "[" * depth + "]" * depth, 1)
    return text
