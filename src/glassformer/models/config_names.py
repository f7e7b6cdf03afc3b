"""Names of config fields: those that other libraries use, and groups of fields."""

OTHER_NAMES = {
    "n_layers": "n_encoder_layers or n_decoder_layers",
    "num_layers": "n_encoder_layers or n_decoder_layers",
    "num_hidden_layers": "n_encoder_layers or n_decoder_layers",
    "hidden_size": "d_model",
    "intermediate_size": "d_ff",
    "num_heads": "n_heads",
    "num_attention_heads": "n_heads",
    "num_key_value_heads": "n_kv_heads",
    "max_seq_len": "max_len",
    "max_position_embeddings": "max_len",
}
"""Names that other libraries use for our fields. The error about an unknown field suggests our name for it."""

HEAD_FIELDS = (
    *("n_labels", "head_transform", "head_activation", "head_norm", "head_bias", "head_width", "unit_length"),
    "pooling",
)
"""Fields that have an effect on the head alone, beside `head`."""

EXPERT_FIELDS = (
    *("experts_per_token", "expert_d_ff", "shared_expert_d_ff", "normalize_expert_weights", "dense_layers"),
)
"""Fields that have an effect only with `n_experts`, beside the weight of a training loss, `expert_balance`."""
