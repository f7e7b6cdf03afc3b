"""HF's BERT, RoBERTa, XLM-R, CamemBERT, DistilBERT, ALBERT, ELECTRA and Megatron-BERT: variants of one encoder.

In this module, "body" means the model without its head.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from glassformer.checkpoint.hf.equivalent_forms import ADD_ZERO_TOKEN_TYPE, FOLD_EMBEDDING_SCALE, TABULATE_SINUSOIDS
from glassformer.checkpoint.hf.name_tables import Family, NameRule, layer_rules, module_rules
from glassformer.checkpoint.hf.values import (
    TO_HF_ACTIVATION,
    UnsupportedModelError,
    read_activation,
    read_architecture,
    read_bool,
    read_float,
    read_int,
    read_n_heads,
    read_n_labels,
    require,
)
from glassformer.models import ModelConfig, preset
from glassformer.nn.activations import ActivationName

EMBEDDING_SIZE = 128
"""HF's default `embedding_size` of ALBERT and ELECTRA."""
BERT_LAYER = {
    "self_attn.q_proj": "attention.self.query",
    "self_attn.k_proj": "attention.self.key",
    "self_attn.v_proj": "attention.self.value",
    "self_attn.out_proj": "attention.output.dense",
    "self_attn_sublayer.norm": "attention.output.LayerNorm",
    "ffn.up_proj": "intermediate.dense",
    "ffn.down_proj": "output.dense",
    "ffn_sublayer.norm": "output.LayerNorm",
}
MEGATRON_LAYER = BERT_LAYER | {"self_attn_sublayer.norm": "attention.ln", "ffn_sublayer.norm": "ln"}
DISTILBERT_LAYER = {
    "self_attn.q_proj": "attention.q_lin",
    "self_attn.k_proj": "attention.k_lin",
    "self_attn.v_proj": "attention.v_lin",
    "self_attn.out_proj": "attention.out_lin",
    "self_attn_sublayer.norm": "sa_layer_norm",
    "ffn.up_proj": "ffn.lin1",
    "ffn.down_proj": "ffn.lin2",
    "ffn_sublayer.norm": "output_layer_norm",
}
ALBERT_LAYER = {
    "self_attn.q_proj": "attention.query",
    "self_attn.k_proj": "attention.key",
    "self_attn.v_proj": "attention.value",
    "self_attn.out_proj": "attention.dense",
    "self_attn_sublayer.norm": "attention.LayerNorm",
    "ffn.up_proj": "ffn",
    "ffn.down_proj": "ffn_output",
    "ffn_sublayer.norm": "full_layer_layer_norm",
}


@dataclass(frozen=True, kw_only=True)
class BertVariant:
    """HF's names for one BERT variant and its modules. A module name "none" means that it has no such module.

    `class_name` is the start of the names of its HF classes, such as `Bert` in `BertForMaskedLM`.
    """

    model_type: str
    class_name: str
    layers: str
    """The module list that holds the layers."""
    layer: Mapping[str, str]
    """The modules of one layer: our name -> HF's name."""
    masked_lm_head: Mapping[str, str]
    """The modules of the masked-language-model head: our name -> HF's name. `head.out_proj` maps to the module that
    holds the output bias."""
    classification_head: Mapping[str, str]
    """The modules of the sequence classification head."""
    class_activation: ActivationName | None = None
    """Activation of the sequence classification head; None is tanh."""
    projection: str = "none"
    """The projection from the width of the embeddings to the width of the model."""
    body: str = ""
    """The module that holds the body, if its name is not `model_type`."""
    final_norm: str = "none"
    """The norm after the last layer. If set, the layers are pre-norm and no norm follows the embeddings."""

    more: Mapping[str, str] = field(default_factory=dict)
    """Further modules of the body: our name -> HF's name."""

    @property
    def has_gelu_head(self) -> bool:
        """Return whether the masked-language-model head has gelu, whatever the layers have."""
        return self.prefix in ("roberta", "mpnet") or self.model_type == "electra"

    @property
    def prefix(self) -> str:
        """Return the name of the module that holds the body."""
        return self.body or self.model_type

    @property
    def is_pre_norm(self) -> bool:
        """Return whether the norms precede the sublayers."""
        return self.final_norm != "none"


VARIANTS = [
    BertVariant(
        model_type="bert",
        class_name="Bert",
        layers="bert.encoder.layer",
        layer=BERT_LAYER,
        masked_lm_head={
            "head.transform.dense": "cls.predictions.transform.dense",
            "head.transform.norm": "cls.predictions.transform.LayerNorm",
            "head.out_proj": "cls.predictions",
        },
        classification_head={"head.transform.dense": "bert.pooler.dense", "head.out_proj": "classifier"},
    ),
    *(
        BertVariant(
            model_type=model_type,
            class_name=class_name,
            body="roberta",
            layers="roberta.encoder.layer",
            layer=BERT_LAYER,
            masked_lm_head={
                "head.transform.dense": "lm_head.dense",
                "head.transform.norm": "lm_head.layer_norm",
                "head.out_proj": "lm_head",
            },
            classification_head={"head.transform.dense": "classifier.dense", "head.out_proj": "classifier.out_proj"},
        )
        for model_type, class_name in (
            *(("roberta", "Roberta"), ("xlm-roberta", "XLMRoberta"), ("camembert", "Camembert")),
        )
    ),
    BertVariant(
        model_type="distilbert",
        class_name="DistilBert",
        layers="distilbert.transformer.layer",
        layer=DISTILBERT_LAYER,
        masked_lm_head={
            "head.transform.dense": "vocab_transform",
            "head.transform.norm": "vocab_layer_norm",
            "head.out_proj": "vocab_projector",
        },
        classification_head={"head.transform.dense": "pre_classifier", "head.out_proj": "classifier"},
        class_activation="relu",
    ),
    BertVariant(
        model_type="albert",
        class_name="Albert",
        layers="albert.encoder.albert_layer_groups.0.albert_layers",
        layer=ALBERT_LAYER,
        masked_lm_head={
            "head.transform.dense": "predictions.dense",
            "head.transform.norm": "predictions.LayerNorm",
            "head.out_proj": "predictions",
        },
        classification_head={"head.transform.dense": "albert.pooler", "head.out_proj": "classifier"},
        projection="albert.encoder.embedding_hidden_mapping_in",
    ),
    BertVariant(
        model_type="electra",
        class_name="Electra",
        layers="electra.encoder.layer",
        layer=BERT_LAYER,
        masked_lm_head={
            "head.transform.dense": "generator_predictions.dense",
            "head.transform.norm": "generator_predictions.LayerNorm",
            "head.out_proj": "generator_lm_head",
        },
        classification_head={"head.transform.dense": "classifier.dense", "head.out_proj": "classifier.out_proj"},
        class_activation="gelu",
        projection="electra.embeddings_project",
    ),
    BertVariant(
        model_type="megatron-bert",
        class_name="MegatronBert",
        body="bert",
        layers="bert.encoder.layer",
        layer=MEGATRON_LAYER,
        masked_lm_head={
            "head.transform.dense": "cls.predictions.transform.dense",
            "head.transform.norm": "cls.predictions.transform.LayerNorm",
            "head.out_proj": "cls.predictions",
        },
        classification_head={"head.transform.dense": "bert.pooler.dense", "head.out_proj": "classifier"},
        final_norm="bert.encoder.ln",
    ),
]
HEADS = {
    "ForMaskedLM": "language_model",
    "ForPreTraining": "language_model",
    "ForSequenceClassification": "sequence_class",
    "ForTokenClassification": "token_class",
    "ForQuestionAnswering": "span",
}


def read_config(variant: BertVariant, values: Mapping[str, Any], names: frozenset[str]) -> ModelConfig:
    """Convert a variant's `config.json` values to a `ModelConfig`. BERT does not use `names`, the stored tensors."""
    for key, allowed in (
        ("is_decoder", False),
        ("position_embedding_type", "absolute"),
        ("embedding_type", "standard"),
    ):
        require(values, key, allowed)
    for key in ("num_hidden_groups", "inner_group_num"):
        require(values, key, 1)
    kind = variant.model_type
    width = read_int(values, "hidden_size", "dim")
    # RoBERTa's position ids start after `pad_token_id`.
    offset = read_int(values, "pad_token_id", default=1) + 1 if variant.prefix == "roberta" else 0
    narrow = read_int(values, "embedding_size", default=EMBEDDING_SIZE) if variant.projection != "none" else width
    body = replace(
        preset("bert-base").with_head("none"),
        vocab_size=read_int(values, "vocab_size"),
        d_model=width,
        d_ff=read_int(values, "intermediate_size", "hidden_dim"),
        n_encoder_layers=read_int(values, "num_hidden_layers", "n_layers"),
        n_heads=read_n_heads(values, "num_attention_heads", "n_heads", width=width),
        max_len=read_int(values, "max_position_embeddings", default=512) - offset,
        position_offset=offset,
        token_types=0 if kind == "distilbert" else read_int(values, "type_vocab_size", default=2),
        activation=read_activation(
            values, "hidden_act", "activation", default="gelu_new" if kind == "albert" else "gelu"
        ),
        norm_placement="pre" if variant.is_pre_norm else "post",
        embedding_norm=not variant.is_pre_norm,
        norm_eps=1e-12 if kind == "distilbert" else read_float(values, "layer_norm_eps", default=1e-12),
        # ALBERT projects its embeddings even where they are as wide as the model.
        embedding_width=None if narrow == width and kind != "albert" else narrow,
        share_layers=kind == "albert",
        dropout=read_float(values, "hidden_dropout_prob", "dropout", default=0.1),
        embedding_dropout=read_float(values, "hidden_dropout_prob", "dropout", default=0.1),
        attention_dropout=read_float(values, "attention_probs_dropout_prob", "attention_dropout", default=0.1),
    )
    return _with_head(variant, body, values)


def _with_head(variant: BertVariant, body: ModelConfig, values: Mapping[str, Any]) -> ModelConfig:
    name = read_architecture(values)
    head = next((head for suffix, head in HEADS.items() if name.endswith(suffix)), "none")
    if name.endswith("ForNextSentencePrediction"):
        return body  # its head is one of the family's `extra_heads`
    if head == "none" and ("For" in name or name.endswith("LMHeadModel")):
        raise UnsupportedModelError(
            f"config.json has architectures=[{name[:80]!r}], whose head is not supported: expected one that ends in "
            f"{', '.join(HEADS)}, or {variant.class_name}Model for the body alone"
        )
    if variant.model_type == "electra" and name.endswith("ForPreTraining"):
        head = "none"  # we have no replaced-token-detection head
    if head == "language_model":
        is_tied = read_bool(values, "tie_word_embeddings", default=True)
        own = "gelu" if variant.has_gelu_head and body.activation != "gelu" else None
        return body.with_head(head, head_transform=True, head_activation=own, tie="output" if is_tied else "none")
    if head == "sequence_class":
        own = variant.class_activation
        return body.with_head(head, n_labels=read_n_labels(values), head_transform=True, head_activation=own)
    if head == "token_class":
        return body.with_head(head, n_labels=read_n_labels(values))
    return body.with_head(head)


def write_config(variant: BertVariant, config: ModelConfig) -> dict[str, Any]:
    """Convert a `ModelConfig` to the variant's `config.json` values."""
    suffix = {head: name for name, head in HEADS.items() if name != "ForPreTraining"}.get(config.head, "Model")
    is_distil = variant.model_type == "distilbert"
    values: dict[str, Any] = {
        "architectures": [variant.class_name + suffix],
        "vocab_size": config.vocab_size,
        "dim" if is_distil else "hidden_size": config.d_model,
        "hidden_dim" if is_distil else "intermediate_size": config.d_ff,
        "n_layers" if is_distil else "num_hidden_layers": config.n_encoder_layers,
        "n_heads" if is_distil else "num_attention_heads": config.n_heads,
        "max_position_embeddings": (config.max_len or 512) + config.position_offset,
        "activation" if is_distil else "hidden_act": TO_HF_ACTIVATION[config.activation],
        "dropout" if is_distil else "hidden_dropout_prob": config.dropout,
        "attention_dropout" if is_distil else "attention_probs_dropout_prob": config.attention_dropout,
        **({} if is_distil else {"layer_norm_eps": config.norm_eps}),
        "tie_word_embeddings": config.ties_output or config.head != "language_model",
    }
    if not is_distil:
        values["type_vocab_size"] = max(config.token_types, 1)
    if variant.projection != "none":
        values["embedding_size"] = config.table_width
    if variant.prefix == "roberta":
        values["pad_token_id"] = config.position_offset - 1
    if config.n_labels is not None:
        values["id2label"] = {str(index): f"LABEL_{index}" for index in range(config.n_labels)}
        values["label2id"] = {f"LABEL_{index}": index for index in range(config.n_labels)}
    return values


def table(variant: BertVariant, config: ModelConfig) -> list[NameRule]:
    """Return the rules that map the variant's tensor names to our parameter names."""
    body = variant.prefix
    head: dict[str, Mapping[str, str]] = {
        "language_model": {k: v for k, v in variant.masked_lm_head.items() if k != "head.out_proj"},
        "sequence_class": variant.classification_head,
        "token_class": {"head.out_proj": "classifier"},
        "span": {"head.out_proj": "qa_outputs"},
    }
    parts = {
        "embeddings.tokens": f"{body}.embeddings.word_embeddings",
        "embeddings.positions": f"{body}.embeddings.position_embeddings",
        "embeddings.token_types": f"{body}.embeddings.token_type_embeddings",
        "embeddings.norm": f"{body}.embeddings.LayerNorm",
        "embeddings.projection": variant.projection,
        "encoder.norm": variant.final_norm,
        **variant.more,
    }
    words, decoder = _output(variant)
    bias = words if config.ties_output else decoder
    output = [
        NameRule(f"{bias}.bias", ("head.out_proj.bias",)),
        NameRule(f"{decoder}.weight", ("head.out_proj.weight",)),
    ]
    if bias != words:
        output.append(NameRule(f"{words}.bias", ("head.out_proj.bias",), write_only=True))
    return [
        *module_rules(parts),
        *layer_rules("encoder.layers", variant.layers, config.n_encoder_layers, variant.layer),
        *module_rules(head.get(config.head, {})),
        *(output if config.head == "language_model" else []),
    ]


def _output(variant: BertVariant) -> tuple[str, str]:
    """Return the names of two modules of the masked-language-model head: the output module and its projection.

    The projection maps to the vocabulary. In DistilBERT and ELECTRA both are the same module. In the other variants
    both have a bias. The bias of the output module is used if the output is tied to the embeddings, and the bias of the
    projection if it is not.
    """
    words = variant.masked_lm_head["head.out_proj"]
    return words, words if variant.model_type in ("distilbert", "electra") else f"{words}.decoder"


def family_of_variant(variant: BertVariant) -> Family:
    """Return the family of a variant."""
    words, decoder = _output(variant)
    copies = [(f"{decoder}.weight", f"{variant.prefix}.embeddings.word_embeddings.weight")]
    copies += [(f"{decoder}.bias", f"{words}.bias")] if decoder != words else []
    return Family(
        model_type=variant.model_type,
        kind="encoder",
        prefix=f"{variant.prefix}.",
        read_config=lambda values, names: read_config(variant, values, names),
        write_config=lambda config: write_config(variant, config),
        table=lambda config: table(variant, config),
        copies=copies,
        rewrites=[FOLD_EMBEDDING_SCALE, TABULATE_SINUSOIDS, ADD_ZERO_TOKEN_TYPE] if variant.is_pre_norm else [],
        ignored=r"position_ids$",  # a buffer
        extra_heads=r"(^|\.)pooler\.(dense\.)?(weight|bias)$|^cls\.seq_relationship\.(weight|bias)$"
        r"|^sop_classifier\.classifier\.(weight|bias)$|^discriminator_predictions\.\w+\.(weight|bias)$",
    )


FAMILIES = [family_of_variant(variant) for variant in VARIANTS]
