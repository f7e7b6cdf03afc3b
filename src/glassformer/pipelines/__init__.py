"""A model with its tokenizer, in use: translators, classifiers, generators; loading them and converting them."""
