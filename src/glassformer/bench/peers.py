"""Run HF Transformers, CTranslate2 and llama.cpp with our weights. `decode.py` skips those that are not installed."""

import importlib.util
import os
from pathlib import Path
from typing import Any

import torch

from glassformer.bench.workloads import Answers, Workload, Write
from glassformer.checkpoint.gguf_export import write_gguf
from glassformer.models import DecoderModel
from glassformer.runtime.step_runner import TextModel


def is_installed(name: str) -> bool:
    """Return whether the package `name` is installed, without importing it."""
    return importlib.util.find_spec(name) is not None


def hf_model(work: Workload, model: TextModel) -> Any:
    """Return the HF Transformers model with the weights of our `model`, in float32 on the CPU."""
    import transformers

    values, tensors = work.for_hf(model)
    values["dtype"] = "float32"
    config = transformers.AutoConfig.for_model(**values)
    found = getattr(transformers, values["architectures"][0])(config).eval()
    missing, unexpected = found.load_state_dict(tensors, strict=False)
    found.tie_weights()
    computed = ("embed_positions", "embed_tokens", "lm_head", "rotary")
    if unexpected or [name for name in missing if not any(part in name for part in computed)]:
        raise ValueError(f"HF's model has other tensors than ours: missing {missing[:5]}, unexpected {unexpected[:5]}")
    return found


def hf(work: Workload, model: Any, inputs: list[list[int]], beam: int, *, compiled: bool = False) -> Write:
    """Return a function that runs HF's tokenizer and `generate`, from text to text, as `Workload.ours` does.

    If `compiled`, with a static cache and compilation.
    """
    import transformers

    lines = work.lines(inputs)
    make_tokenizer: Any = transformers.PreTrainedTokenizerFast
    tokenizer = make_tokenizer(tokenizer_object=work.tokenizer())
    if tokenizer(lines)["input_ids"] != inputs:
        raise ValueError("HF's tokenizer gives other tokens than ours")
    more: dict[str, Any] = {"cache_implementation": "static"} if compiled else {}

    @torch.inference_mode()
    def write() -> Answers:
        ids = tokenizer(lines, return_tensors="pt")["input_ids"].to(model.device)
        written = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            num_beams=beam,
            do_sample=False,
            min_new_tokens=work.n_written,
            max_new_tokens=work.n_written,
            early_stopping="never" if beam > 1 else False,
            bad_words_ids=[[work.padding]],
            **more,
        )
        texts: list[str] = tokenizer.batch_decode(written[:, -work.n_written :])
        return texts

    return write


def ctranslate2(
    work: Workload,
    model: Any,
    inputs: list[list[int]],
    beam: int,
    kind: str,
    folder: str,
    *,
    batch_per_thread: bool = False,
) -> Write:
    """Return a function that runs CTranslate2 with the weights of an HF Marian model (translation only).

    `kind` is the compute type, such as "int8". The converted model is saved in `folder`, if that is empty. All threads
    compute one batch, or with `batch_per_thread` each computes its part of the inputs.
    """
    import ctranslate2
    from ctranslate2.converters.transformers import MarianMTLoader

    if not os.listdir(folder):
        spec = MarianMTLoader().get_model_spec(model)
        words = ["</s>", *(f"t{index}" for index in range(1, work.padding))]
        spec.register_source_vocabulary(words)
        spec.register_target_vocabulary(words)
        for name, value in (("eos_token", "</s>"), ("unk_token", "t1"), ("bos_token", "</s>")):
            setattr(spec.config, name, value)
        spec.config.decoder_start_token, spec.config.add_source_eos = "</s>", False
        spec.validate()
        spec.optimize()
        spec.save(folder)
    threads = torch.get_num_threads()
    workers = threads if batch_per_thread else 1
    translator = ctranslate2.Translator(
        folder, compute_type=kind, inter_threads=workers, intra_threads=threads // workers
    )
    texts = [[f"t{token}" for token in row] for row in inputs]
    length = work.n_written

    def write() -> Answers:
        found = translator.translate_batch(
            texts,
            beam_size=beam,
            max_batch_size=-(-len(texts) // workers),
            min_decoding_length=length,
            max_decoding_length=length,
        )
        return [[int(word[1:]) for word in result.hypotheses[0]] for result in found]

    return write


def llama_cpp(work: Workload, model: TextModel, inputs: list[list[int]], folder: str) -> Write:
    """Return a function that runs llama.cpp (package `llama_cpp`) with greedy search, for the first input only.

    Our `model` is written to a Q8_0 file in `folder`, which llama.cpp reads.
    """
    import llama_cpp as llama
    import numpy as np

    assert isinstance(model, DecoderModel)
    path = Path(folder) / "model.gguf"
    write_gguf(path, model, numbers="q8_0")
    threads = torch.get_num_threads()
    length = work.n_read + work.n_written
    engine: Any = llama.Llama(
        str(path), n_ctx=length, n_batch=length, n_threads=threads, n_threads_batch=threads, verbose=False
    )

    def write() -> Answers:
        engine.reset()
        tokens, written = inputs[0], []
        for _ in range(work.n_written):
            engine.eval(tokens)
            scores = llama.llama_get_logits_ith(engine.ctx, -1)
            tokens = [int(np.ctypeslib.as_array(scores, (work.config.vocab_size,)).argmax())]
            written += tokens
        return [written]

    return write
