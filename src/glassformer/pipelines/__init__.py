"""Pipelines: a model with its tokenizer, ready to use on texts. Also loading models and converting them."""
