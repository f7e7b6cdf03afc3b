from glassformer.serve.log_prob_formats import LOWEST, TokenScores, as_chat_log_probs, as_completion_log_probs
from glassformer.serve.token_bytes import TokenBytes
from glassformer.text import Tokenizer, TokenizerConfig

TOKENIZER = Tokenizer.train(["the cat"], 270, TokenizerConfig(kind="bytes"))
TEXTS = TokenBytes(TOKENIZER)
(A, B), EMOJI = TOKENIZER.encode("ab"), TOKENIZER.encode("😀")


def test_chats_have_an_object_for_each_token():
    scores = TokenScores([A, EMOJI[0]], [-0.5, float("-inf")], [[(A, -0.5), (B, -1.0)], [(B, -0.1)]])
    found = as_chat_log_probs(scores, 1, TEXTS)["content"]
    assert found[0] == {
        "token": "a",
        "logprob": -0.5,
        "bytes": [97],
        "top_logprobs": [{"token": "a", "logprob": -0.5, "bytes": [97]}],
    }
    assert found[1]["token"] == "\N{REPLACEMENT CHARACTER}"
    assert found[1]["bytes"] == [0xF0]
    assert found[1]["logprob"] == LOWEST


def test_completions_have_a_list_for_each_kind_of_value():
    scores = TokenScores([A, *EMOJI, B], [None, -1.0, -1.0, -1.0, -1.0, -2.0], [[]] + [[(A, -0.1), (B, -0.2)]] * 5)
    found = as_completion_log_probs(scores, 2, TEXTS, offset=10)
    assert found["text_offset"] == [10, 11, 11, 11, 11, 12]
    assert found["token_logprobs"][0] is None
    assert found["top_logprobs"][0] is None
    assert found["top_logprobs"][5] == {"a": -0.1, "b": -0.2}
    assert as_completion_log_probs(scores, 0, TEXTS)["top_logprobs"] is None


def test_parts_of_a_text_follow_each_other():
    first, second = TokenScores([1], [-1.0], [[]]), TokenScores([2], [-2.0], [[(3, -1.0)]])
    assert first.followed_by(second) == TokenScores([1, 2], [-1.0, -2.0], [[], [(3, -1.0)]])
