"""A tiny random model for each pipeline, made in milliseconds."""

import torch

from glassformer.decoding import GenerationConfig
from glassformer.models import DecoderModel, EncoderDecoderModel, EncoderModel
from glassformer.pipelines.answerer import Answerer
from glassformer.pipelines.blanks import GAP_TOKENS
from glassformer.pipelines.classifier import Classifier
from glassformer.pipelines.code_model import CodeModel
from glassformer.pipelines.comparer import Comparer, ParaphraseDetector
from glassformer.pipelines.denoiser import Denoiser, specials_of
from glassformer.pipelines.embedder import Embedder
from glassformer.pipelines.encoder_pipeline import Reader
from glassformer.pipelines.extractor import Extractor
from glassformer.pipelines.generator import Generator
from glassformer.pipelines.language_model import LanguageModel
from glassformer.pipelines.mask_filler import MaskFiller
from glassformer.pipelines.summarizer import Summarizer
from glassformer.pipelines.tagger import Tagger
from glassformer.pipelines.text_to_text import TextToText
from glassformer.pipelines.translator import Translator
from glassformer.tasks.configs.small_models import small_decoder, small_encoder, small_encoder_decoder
from glassformer.text import Tokenizer, TokenizerConfig
from glassformer.text.pretrained_tokenizers import PretrainedTokenizer
from glassformer.text.tag_viterbi import TagPaths

LABELS = ["animal", "place", "tool"]
SIZES = {"d_model": 16, "d_ff": 16, "n_heads": 2, "max_len": 64}
SHORT = GenerationConfig(max_new_tokens=6)
NOISE = {"noise": "spans", "share": 0.15, "mean_span": 3.0}
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
ROLES = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


def tokenizer(*more_special):
    texts = ["what color is it? it is red.", "the old cat sees the big saw"]
    return Tokenizer.train(texts, 310 + len(more_special), TokenizerConfig(), more_special=more_special)


def pretrained(**config):
    return PretrainedTokenizer.from_json(tokenizer().to_json(), ROLES | config)


def encoder(own, **changes):
    return EncoderModel(small_encoder(vocab_size=own.vocab_size, n_encoder_layers=1, **SIZES, **changes)).eval()


def rewriter(kind, *args, generation=SHORT, **settings):
    own = tokenizer(*args)
    config = small_encoder_decoder(vocab_size=own.vocab_size, n_encoder_layers=1, n_decoder_layers=1, **SIZES)
    return kind(EncoderDecoderModel(config).eval(), own, own, generation, **settings)


def decoder(own, **changes):
    return DecoderModel(small_decoder(vocab_size=own.vocab_size, n_decoder_layers=1, **SIZES | changes)).eval()


def text_to_text():
    own, config = pretrained(), None
    config = small_encoder_decoder(vocab_size=own.vocab_size, n_encoder_layers=1, n_decoder_layers=1, **SIZES)
    return TextToText(EncoderDecoderModel(config).eval(), own, own, begin=own.begin, generation=SHORT)


def with_reader(kind, head, settings, **changes):
    own = tokenizer()
    return kind(encoder(own, head=head, **changes), Reader.own(own), **settings)


MAKERS = {
    Translator: lambda: rewriter(Translator),
    Summarizer: lambda: rewriter(Summarizer),
    Answerer: lambda: rewriter(Answerer),
    Denoiser: lambda: rewriter(Denoiser, *specials_of("spans", 60, 0.15, 3.0), **NOISE),
    Classifier: lambda: with_reader(Classifier, "sequence_class", {"labels": LABELS}, n_labels=3, pooling="mean"),
    Tagger: lambda: with_reader(Tagger, "token_class", {"labels": LABELS}, n_labels=len(TagPaths(LABELS).tags)),
    Comparer: lambda: with_reader(Comparer, "embedding", {"lowest": 0.0, "highest": 5.0}, pooling="mean"),
    ParaphraseDetector: lambda: with_reader(ParaphraseDetector, "embedding", {"threshold": 0.25}, pooling="mean"),
    Extractor: lambda: with_reader(
        Extractor, "span", {"abstains": False, "overlap": 8, "longest_answer": 5}, token_types=2
    ),
    MaskFiller: lambda: with_reader(MaskFiller, "language_model", {}),
    LanguageModel: lambda: LanguageModel(decoder(tokenizer()), tokenizer(), SHORT),
    CodeModel: lambda: CodeModel(decoder(tokenizer(*GAP_TOKENS)), tokenizer(*GAP_TOKENS), SHORT),
    Generator: lambda: Generator(decoder(pretrained()), pretrained(chat_template=TEMPLATE), SHORT),
    Embedder: lambda: Embedder(encoder(pretrained(), head="embedding", pooling="mean"), pretrained()),
    TextToText: text_to_text,
}


def make(kind):
    """Return a pipeline of this class, with the same weights every time."""
    torch.manual_seed(0)
    return MAKERS[kind]()
