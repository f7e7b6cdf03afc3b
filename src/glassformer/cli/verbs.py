"""The verbs of `glassformer VERB ...`, each with the line that `glassformer --help` shows about it."""

VERBS = {
    "demo": "train a small model in minutes and try it: a translator, or demo TASK for another task",
    "train": "train a model for a task on your own data; train --help lists the tasks",
    "plan": "predict memory, speed and days of a training run on many GPUs, and recommend a layout",
    "prepare": "tokenize a large corpus into shards once, by many processes, to train on later",
    "run": "translate, classify, continue, answer or embed lines of text with a trained model",
    "chat": "hold a conversation in the terminal, with a model or a server",
    "serve": "serve models over HTTP, with OpenAI's API and a task API",
    "eval": "score a trained model on your own data, by the metrics of its task",
    "rate": "let people compare the outputs of models, blind, and report which wins",
    "info": "show what a model is: architecture, size, task, tokenizer, memory",
    "explain": "show how a model computes its answer to a text, as a page; or check its health",
    "convert": "write a model as a Hugging Face, GGUF, ONNX, CTranslate2 or Glassformer model",
    "tokenizer": "train, use, inspect and compare tokenizers",
    "bench": "measure how fast this machine generates text, beside other libraries",
    "completion": "print a script that completes commands and options in bash, zsh or fish",
}
