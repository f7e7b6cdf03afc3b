"""A real server process on loopback, with tiny random models."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import torch

from glassformer import build_model, preset
from glassformer.checkpoint.gguf_export import write_gguf
from glassformer.checkpoint.hf.folder import save_hf_folder
from glassformer.pipelines.classifier import Classifier
from glassformer.pipelines.extractor import Extractor
from glassformer.pipelines.language_model import LanguageModel
from glassformer.pipelines.mask_filler import MaskFiller
from glassformer.pipelines.tagger import Tagger
from glassformer.pipelines.translator import Translator
from glassformer.text import Tokenizer, TokenizerConfig
from glassformer.text.pretrained_tokenizers import PretrainedTokenizer
from pipelines.tiny_pipelines import ROLES, make
from text.language_tokenizers import save_language_model

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if tools %}tools: {{ tools | tojson }}\n{% endif %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
TRAINED = {
    "translator": Translator,
    "classifier": Classifier,
    "tagger": Tagger,
    "extractor": Extractor,
    "writer": LanguageModel,
    "filler": MaskFiller,
}


def write_models(folder: Path) -> dict[str, Path]:
    """Write tiny random models, and return their paths by name: `chat` is a decoder with a chat template."""
    torch.manual_seed(0)
    own = Tokenizer.train(["what color is it? it is red. the old cat"], 300, TokenizerConfig(prefix_space=False))
    reader = PretrainedTokenizer.from_json(own.to_json(), ROLES)
    roles = {"bos": reader.begin, "eos": reader.end, "pad": reader.pad}
    sizes = {"d_model": 32, "n_heads": 4, "n_kv_heads": 2, "d_ff": 48, "n_decoder_layers": 2, "max_len": 512}
    llama = build_model(preset("tiny-llama", vocab_size=own.vocab_size, **sizes))
    with torch.no_grad():  # sharper than random weights, so that the two best tokens are seldom a tie
        llama.head.out_proj.weight.mul_(4)
    write_gguf(folder / "chat.gguf", llama, tokenizer_json=own.to_json(), roles=roles, chat_template=TEMPLATE)
    bert = build_model(preset("tiny-bert-base", vocab_size=own.vocab_size))
    texts = {"tokenizer.json": own.to_json(), "tokenizer_config.json": json.dumps(ROLES)}
    save_hf_folder(folder / "embedder", bert, texts=texts)
    paths = {"chat": folder / "chat.gguf", "embedder": folder / "embedder"}
    for name in ("mbart", "nllb"):
        save_language_model(folder / name, name)
        paths[name] = folder / name
    for name, kind in TRAINED.items():
        make(kind).save(folder / name, "A tiny random model.")
        paths[name] = folder / name
    return paths


class Served:
    """A server process. `url` is its address, and `log` holds the lines of its stderr so far."""

    launcher = (sys.executable, "-m", "glassformer")

    def __init__(self, *arguments: object, **environment: str):
        command = [*self.launcher, "serve", "--port", "0", "--device", "cpu"]
        self.process = subprocess.Popen(
            [*command, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        )
        self.log: list[str] = []
        self._reader = threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True)
        self._reader.start()
        first = self.process.stdout.readline()
        if " at http://" not in first:
            self.process.wait()
            raise RuntimeError(f"the server did not start: {first}{''.join(self.log)}")
        self.url = first.split(" at ")[1].strip()
        self.port = int(self.url.rpartition(":")[2])

    def ask(self, path, body=None, *, headers=None, method=None, timeout=60):
        """Send a request and return its status, headers and JSON, or text if it is no JSON."""
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, method=method)
        request.add_header("Content-Type", "application/json")
        for name, value in (headers or {}).items():
            request.add_header(name, value)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as response:
                return response.status, response.headers, _parsed(response.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers, _parsed(error.read())

    def stream(self, path, body, timeout=60):
        """Send a request for a stream and return its events, without [DONE]."""
        data = json.dumps({**body, "stream": True}).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=timeout) as response:
            lines = response.read().decode().split("\n\n")
        assert lines[-2:] == ["data: [DONE]", ""], lines[-3:]
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]

    def metric(self, name):
        """Return the value of a metric without labels."""
        text = self.ask("/metrics")[2]
        return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name} "))

    def wait_until_idle(self, seconds=10):
        """Wait until nothing waits or runs."""
        until = time.monotonic() + seconds
        while self.metric("glassformer_running_rows") or self.metric("glassformer_waiting_requests"):
            assert time.monotonic() < until, "the server is not idle"
            time.sleep(0.05)

    def resident(self):
        """Return the resident memory of the process in bytes."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def stop(self, seconds=30):
        """End the process by SIGTERM, and return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        finally:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            self._reader.join(5)
            self.process.stdout.close()
            self.process.stderr.close()


def _parsed(data):
    try:
        return json.loads(data)
    except ValueError:
        return data.decode("utf-8", "replace")
