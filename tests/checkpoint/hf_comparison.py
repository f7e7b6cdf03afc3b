"""Save HF models of random shapes, load them with HF and with Glassformer, and compare all numbers."""

import inspect
import random
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.core_model_loading import revert_weight_conversion

from checkpoint import hf_models, random_hf
from glassformer.checkpoint import load_model
from glassformer.checkpoint.hf import FAMILIES
from glassformer.models import EncoderDecoderModel, EncoderModel

TOLERANCE = 1e-5
"""Relative to the largest absolute value, or absolute if that is below 1."""


def save(drawn, folder, seed):
    """Build an HF model and save it with HF."""
    model = random_hf.build(drawn, seed)
    model.save_pretrained(folder)
    return model


def open_theirs(folder, class_name):
    """Load a folder with HF; return the model and the missing, unexpected and mismatched tensor names."""
    model, report = getattr(transformers, class_name).from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager", experts_implementation="eager"
    )
    return model.eval(), {key: report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")}


def states_after_layers(model, call):
    """Return the output of `call`, and the hidden state after each layer of our encoder and decoder."""
    found = {"encoder": [], "decoder": []}
    stacks = {name: getattr(model, name) for name in found if hasattr(model, name)}
    hooks = [
        layer.register_forward_hook(lambda module, inputs, output, name=name: found[name].append(output))
        for name, stack in stacks.items()
        for layer in stack.layers
    ]
    answer = call()
    for hook in hooks:
        hook.remove()
    for name, stack in stacks.items():
        if stack.norm is not None and found[name]:  # HF's last hidden state is after the final norm
            found[name][-1] = stack.norm(found[name][-1])
    return answer, found


def near(ours, theirs, mask=None):
    if mask is not None and theirs.dim() == 3:
        ours, theirs = ours[mask], theirs[mask]
    return ours.shape == theirs.shape and (ours - theirs).abs().max() <= TOLERANCE * max(1.0, theirs.abs().max())


@torch.no_grad()
def same_numbers(ours, theirs, seed):
    """Return whether outputs and hidden states of all layers agree on padded random inputs."""
    config = ours.config
    torch.manual_seed(seed)
    pad = theirs.config.pad_token_id
    tokens = torch.randint(4, config.source_vocab, (3, 8))
    mask = torch.arange(8) < torch.tensor([[8], [5], [1]])
    tokens[~mask] = pad
    given = {"input_ids": tokens, "attention_mask": mask.long(), "output_hidden_states": True}
    if isinstance(ours, EncoderDecoderModel):
        target = torch.randint(4, config.vocab_size, (3, 6))
        answer = theirs(**given, decoder_input_ids=target)
        found, states = states_after_layers(ours, lambda: ours(tokens, target, mask))
        expected = {"encoder": answer.encoder_hidden_states, "decoder": answer.decoder_hidden_states}
        if not near(found, answer[0]):
            return False
    else:
        types = {}
        if config.token_types:
            types = {"token_types": torch.randint(config.token_types, tokens.shape)}
            given["token_type_ids"] = types["token_types"]
        answer = theirs(**given)
        found, states = states_after_layers(ours, lambda: ours(tokens, mask, **types))
        wanted = torch.stack((answer.start_logits, answer.end_logits), -1) if "start_logits" in answer else answer[0]
        wanted = answer.hidden_states[-1] if config.head == "none" else wanted  # ELECTRA's and BERT's other heads
        name = "encoder" if isinstance(ours, EncoderModel) else "decoder"
        expected = {name: answer.hidden_states}
        if not near(found, wanted, mask):
            return False
    for name, theirs_there in expected.items():
        one = states[name]
        if len(one) != len(theirs_there) - 1:
            return False
        reads = mask if one[0].shape[:2] == mask.shape else None
        if not all(near(x, y, reads) for x, y in zip(one, theirs_there[1:], strict=True)):
            return False
    return True


def padded_inputs(ours, theirs, seed, side="right"):
    """Return random inputs with padding on one side: HF's arguments, our arguments, and the mask of real tokens."""
    torch.manual_seed(seed)
    config = ours.config
    tokens = torch.randint(4, config.source_vocab, (3, 8))
    mask = torch.arange(8) < torch.tensor([[8], [5], [2]])
    mask = mask if side == "right" else mask.flip(1)
    tokens[~mask] = theirs.config.pad_token_id
    given = {"input_ids": tokens, "attention_mask": mask.long()}
    # HF's BERT, GPT-2 and Llama count padding as positions by default; RoBERTa and M2M100 do not.
    counts = config.position_offset == 0 and "position_ids" in inspect.signature(theirs.forward).parameters
    if side == "left" and counts and not isinstance(ours, EncoderDecoderModel):
        given["position_ids"] = (mask.long().cumsum(1) - 1).clamp_min(0)
    if isinstance(ours, EncoderDecoderModel):
        target = torch.randint(4, config.vocab_size, (3, 6))
        return given | {"decoder_input_ids": target}, {"source": tokens, "target": target, "source_mask": mask}, mask
    own = {"tokens": tokens, "mask": mask}
    if config.token_types:
        given["token_type_ids"] = own["token_types"] = torch.randint(config.token_types, tokens.shape)
    return given, own, mask


def compared_outputs(ours, theirs, seed, side="right"):
    """Return our output and HF's for the same padded inputs, zero where a token is padding."""
    given, own, mask = padded_inputs(ours, theirs, seed, side)
    answer = theirs(**given, output_hidden_states=True)
    wanted = torch.stack((answer.start_logits, answer.end_logits), -1) if "start_logits" in answer else answer[0]
    if ours.config.head == "none" and not isinstance(ours, EncoderDecoderModel):
        wanted = answer.hidden_states[-1]
    found = ours(**own)
    if found.dim() == 3 and not isinstance(ours, EncoderDecoderModel):
        found, wanted = found * mask[:, :, None], wanted * mask[:, :, None]
    return found, wanted


def same_gradients(ours, theirs, seed):
    """Return whether the gradients of all stored tensors agree to 1e-4 of the largest, for a random loss."""
    found, wanted = compared_outputs(ours, theirs, seed)
    direction = torch.randn_like(wanted.detach())
    for model, output in ((ours, found), (theirs, wanted)):
        model.zero_grad()
        (output * direction).sum().backward()
    family = FAMILIES[theirs.config.model_type]
    gradients = {
        name: torch.zeros_like(value) if value.grad is None else value.grad for name, value in ours.named_parameters()
    }
    expected = {name: value.grad for name, value in theirs.named_parameters() if value.grad is not None}
    expected = revert_weight_conversion(theirs, expected)
    body = "" if any(name.startswith(family.prefix) for name in expected) else family.prefix
    rules = [rule for rule in family.table(ours.config) if rule.names[0] in gradients and not rule.write_only]
    pairs = [(rule.join(gradients), expected.get(rule.hf_name.removeprefix(body))) for rule in rules]
    pairs = [(one, two) for one, two in pairs if two is not None]
    scale = max(1.0, *(two.abs().max().item() for _, two in pairs))
    return len(pairs) > len(rules) / 2 and all((one - two).abs().max() <= 1e-4 * scale for one, two in pairs)


def load_or_reason(folder: Path):
    """Return the model and "", or None and the error message."""
    try:
        return load_model(folder), ""
    except ValueError as error:
        return None, str(error)


def change_tensors(folder: Path, change) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def first_seed(family):
    """Return the first seed whose model is supported."""
    return next(seed for seed in range(100) if random_hf.draw(family, seed).refusal is None)


CONVERTED = ("gpt_neox", "mixtral", "qwen2_moe", "qwen3_moe", "olmoe")
"""Families whose tensors have other names in HF's files than in HF's models."""
NEWER = ("cohere", "cohere2", "gpt_neox", "gptj", "phi", "falcon", "gemma2", "gemma3_text", "olmo", "olmo2", "olmo3")
NEWER += ("smollm3",)
"""Families with fewer random cases, except with --full."""


def few(family):
    """Return how many random cases of a family run without --full."""
    return 1 if family in NEWER else 2


def stored_tensors(theirs, tensors=None):
    """Return HF's tensors, or others by the names of its parameters, under their names in files."""
    tensors = theirs.state_dict() if tensors is None else tensors
    return revert_weight_conversion(theirs, tensors) if theirs.config.model_type in CONVERTED else tensors


def tied(family):
    """Return a random config of this family with tied tables."""
    drawn = random_hf.draw(family, first_seed(family))
    heads = {"gpt2": "LMHeadModel"} | dict.fromkeys(
        ("t5", "mt5", "umt5", "bart", "mbart", "m2m_100", "pegasus"), "ForConditionalGeneration"
    )
    heads["marian"] = "MTModel"
    default = "ForCausalLM" if FAMILIES[family].kind == "decoder" else "ForMaskedLM"
    prefix = type(drawn.config).__name__.removesuffix("Config").replace("Gemma3Text", "Gemma3")
    drawn.class_name = prefix + heads.get(family, default)
    drawn.config.tie_word_embeddings = True
    return drawn


class InMemory(dict):
    """Tensors by name, with the interface of a tensor file."""

    def shape(self, name):
        return tuple(self[name].shape)


def values_of(theirs):
    return {**theirs.config.to_dict(), "architectures": [type(theirs).__name__]}


EVERYTHING = {**hf_models.DECODERS, **hf_models.PAIRS}


def make(family, seed):
    draw, class_name = EVERYTHING[family]
    return hf_models.make(draw(random.Random(seed)), class_name, seed)


def close(ours, theirs, mask=None, tolerance=1e-5):
    if mask is not None and ours.dim() == 3:
        ours, theirs = ours[mask == 1], theirs[mask == 1]
    scale = max(1.0, theirs.abs().max().item())
    assert (ours - theirs).abs().max().item() <= tolerance * scale
