"""A complete GPT in one file: model, tokenizer, training and sampling, to be read from top to bottom.

    python examples/gpt_in_one_file.py input.txt --minutes 2           # train, save input.safetensors, print a sample
    python examples/gpt_in_one_file.py input.txt --sample "Once upon"  # continue a text with the trained model

The model is GPT-2 (Radford et al. 2019) in a small size, without dropout. Its tokens are characters, and it predicts
the next one at every position. It needs torch and safetensors. A text of 650 characters will do; a million are better.

Shapes: B batch, T tokens of a sequence, C width of the model, H heads, D width of a head (C = H * D), V vocabulary.
"""

import argparse
import json
import math
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class GPTConfig:
    """The shape of a model."""

    vocab_size: int
    context_length: int = 64  # the most tokens that the model can look at
    d_model: int = 128
    n_heads: int = 4
    n_layers: int = 4


class CausalSelfAttention(nn.Module):
    """Each position takes a weighted average of the values at its own and all earlier positions."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.n_heads = config.n_heads
        self.q_proj = nn.Linear(config.d_model, config.d_model)
        self.k_proj = nn.Linear(config.d_model, config.d_model)
        self.v_proj = nn.Linear(config.d_model, config.d_model)
        self.out_proj = nn.Linear(config.d_model, config.d_model)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        # A query is what a position looks for, a key what it is found by, a value what it passes on.
        q = self.q_proj(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)  # (B, H, T, D)
        k = self.k_proj(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)  # (B, H, T, D)
        v = self.v_proj(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)  # (B, H, T, D)
        # The rest is F.scaled_dot_product_attention(q, k, v, is_causal=True) written out; torch's own is faster.
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])  # (B, H, T, T): a row per query, a column per key
        is_future = torch.ones_like(scores[0, 0], dtype=torch.bool).triu(diagonal=1)  # (T, T)
        weights = scores.masked_fill(is_future, -math.inf).softmax(dim=-1)  # later keys get 0; each row sums to 1
        return self.out_proj((weights @ v).transpose(1, 2).flatten(2))  # (B, H, T, D) -> (B, T, C)


class FeedForward(nn.Module):
    """Two linear layers with a nonlinearity between them, applied to each position alone."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.up_proj = nn.Linear(config.d_model, 4 * config.d_model)
        self.down_proj = nn.Linear(4 * config.d_model, config.d_model)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        return self.down_proj(F.gelu(self.up_proj(x), approximate="tanh"))  # (B, T, 4C) in between


class Block(nn.Module):
    """Attention moves information between positions; the feed-forward layer then transforms each position."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.attn_norm = nn.LayerNorm(config.d_model)
        self.attn = CausalSelfAttention(config)
        self.ffn_norm = nn.LayerNorm(config.d_model)
        self.ffn = FeedForward(config)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        x = x + self.attn(self.attn_norm(x))
        return x + self.ffn(self.ffn_norm(x))


class GPT(nn.Module):
    """Token ids in, logits of the next token out."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.position_embedding = nn.Embedding(config.context_length, config.d_model)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layers))
        self.final_norm = nn.LayerNorm(config.d_model)
        for name, parameter in self.named_parameters():  # as GPT-2: small normal weights, biases of zero
            if name.endswith(("out_proj.weight", "down_proj.weight")):  # each block adds two of these to x
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * config.n_layers))
            elif parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T) -> (B, T, V). The logits at position t predict the token at position t + 1."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)  # (T,)
        x = self.token_embedding(tokens) + self.position_embedding(positions)  # (B, T, C)
        for block in self.blocks:
            x = block(x)
        return F.linear(self.final_norm(x), self.token_embedding.weight)  # (B, T, V): the embedding's weights again


@dataclass(frozen=True)
class CharTokenizer:
    """One token per character. The id of a character is its place in `characters`."""

    characters: str

    def encode(self, text: str) -> Tensor:
        """A text of T characters -> ids (T,)."""
        if unknown := set(text) - set(self.characters):
            raise ValueError(f"{''.join(sorted(unknown))!r}: expected characters of the training text only")
        ids = {character: index for index, character in enumerate(self.characters)}
        return torch.tensor([ids[character] for character in text])

    def decode(self, tokens: Tensor) -> str:
        """Ids (T,) -> a text of T characters."""
        return "".join(self.characters[index] for index in tokens.tolist())


def get_batch(tokens: Tensor, length: int, generator: torch.Generator, batch_size: int = 16) -> tuple[Tensor, Tensor]:
    """Cut windows at random places of the text: inputs (B, T) and targets (B, T), which are one token later."""
    starts = torch.randint(len(tokens) - length, (batch_size, 1), generator=generator)
    places = (starts + torch.arange(length)).to(tokens.device)  # (B, T)
    return tokens[places], tokens[places + 1]


def cross_entropy(model: GPT, inputs: Tensor, targets: Tensor) -> Tensor:
    """The mean of -log p(target) over all positions, in nats per character."""
    logits = model(inputs)  # (B, T, V)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())  # of (B * T, V) and (B * T,)


@torch.no_grad()
def validation_loss(model: GPT, tokens: Tensor, n_batches: int = 10) -> float:
    """The loss on the same random windows at each call, so that the losses of one training can be compared."""
    generator = torch.Generator().manual_seed(0)
    batches = [get_batch(tokens, model.config.context_length, generator) for _ in range(n_batches)]
    return sum(cross_entropy(model, *batch).item() for batch in batches) / n_batches


def learning_rate(progress: float, peak: float = 2e-3, warmup: float = 0.1) -> float:
    """Rise to the peak during the warm-up, then fall to zero, both linearly. `progress` goes from 0 to 1."""
    return peak * min(progress / warmup, (1 - progress) / (1 - warmup))


def train(model: GPT, tokenizer: CharTokenizer, text: str, path: Path, minutes: float, max_steps: int = 10**5) -> None:
    """Train until the time or the steps are used up, and save the model with the best validation loss."""
    tokens = tokenizer.encode(text).to(model.token_embedding.weight.device)
    train_tokens, valid_tokens = tokens.tensor_split([9 * len(tokens) // 10])  # the last tenth is for validation
    length = model.config.context_length
    if len(valid_tokens) <= length:
        raise ValueError(f"the text has {len(text)} characters: expected at least {10 * (length + 1)}")
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95))
    generator = torch.Generator().manual_seed(0)
    best_loss, next_report, start = math.inf, 0.0, time.monotonic()
    for step in range(max_steps + 1):
        progress = min(1.0, max(step / max_steps, (time.monotonic() - start) / (60 * minutes)))
        if progress >= next_report or progress == 1:
            next_report = progress + 0.1
            loss = validation_loss(model, valid_tokens)
            print(f"step {step:6}  {progress:4.0%}  validation loss {loss:.3f}", flush=True)
            if loss < best_loss:
                best_loss = loss
                save(model, tokenizer, path)
        if progress == 1:
            return
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(progress)
        cross_entropy(model, *get_batch(train_tokens, length, generator)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()


@torch.no_grad()
def generate(model: GPT, tokens: Tensor, n_tokens: int, temperature: float = 0.8, top_k: int = 50) -> Tensor:
    """Continue tokens (1, T) by n_tokens, each drawn from the k most likely ones. A low temperature is less random."""
    for _ in range(n_tokens):
        logits = model(tokens[:, -model.config.context_length :])[:, -1] / temperature  # (1, V): the last position only
        top_logits, top_tokens = logits.topk(min(top_k, logits.shape[-1]))  # (1, k), the highest first
        choice = torch.multinomial(top_logits.softmax(dim=-1), num_samples=1)  # (1, 1)
        tokens = torch.cat([tokens, top_tokens.gather(1, choice)], dim=1)  # (1, T + 1)
    return tokens


def save(model: GPT, tokenizer: CharTokenizer, path: Path) -> None:
    """Write the weights, the shape and the characters to one file, in a format that cannot hold code."""
    metadata = {"config": json.dumps(asdict(model.config)), "characters": tokenizer.characters}
    temporary = path.with_name(f"{path.name}.tmp")
    save_file(model.state_dict(), temporary, metadata)
    temporary.replace(path)  # never half a file under the final name


def load(path: Path) -> tuple[GPT, CharTokenizer]:
    """Read what `save` wrote."""
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    model = GPT(GPTConfig(**json.loads(metadata["config"])))
    model.load_state_dict(load_file(path))
    return model, CharTokenizer(metadata["characters"])


def main() -> None:
    """Train on a text file, or continue a text with the model that was trained on it."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("text", type=Path, help="a text file in UTF-8; the model is saved beside it as .safetensors")
    parser.add_argument("--minutes", type=float, default=2.0, help="train for so long (default: %(default)s)")
    parser.add_argument("--sample", metavar="TEXT", help="do not train, but continue this text")
    parser.add_argument("--length", type=int, default=500, help="characters to generate (default: %(default)s)")
    parser.add_argument("--temperature", type=float, default=0.8, help="lower is less random (default: %(default)s)")
    parser.add_argument("--top-k", type=int, default=50, help="draw from the k most likely (default: %(default)s)")
    options = parser.parse_args()
    if min(options.minutes, options.length, options.temperature, options.top_k) <= 0:
        parser.error("expected numbers above 0")
    path = options.text.with_suffix(".safetensors")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if options.sample is None:
        if path.exists():
            sys.exit(f"{path} exists: delete it to train again, or continue a text with --sample TEXT")
        text = options.text.read_text(encoding="utf-8")
        tokenizer = CharTokenizer("".join(sorted(set(text))))
        model = GPT(GPTConfig(vocab_size=len(tokenizer.characters))).to(device)
        train(model, tokenizer, text, path, options.minutes)
    model, tokenizer = load(path)  # the best one, which need not be the last one
    prompt = tokenizer.encode(options.sample or tokenizer.characters[0]).to(device)
    tokens = generate(model.to(device), prompt[None], options.length, options.temperature, options.top_k)
    print(tokenizer.decode(tokens[0]))


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError) as error:
        sys.exit(f"gpt_in_one_file: {error}")
