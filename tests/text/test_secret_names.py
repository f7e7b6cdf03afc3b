"""Secret names of control tokens."""

from glassformer.text.secret_names import give_secret_names, is_control


def test_special_and_bracketed_added_tokens_are_control_tokens():
    for token in ("<x>", "PAD", "</s>"):
        assert is_control(token, special=True)
    for token in ("<tool_call>", "[INST]", "{{x}}", "▁<x>", "<\n>"):
        assert is_control(token, special=False)
    for token in ("<table>", "</h1>", "covid", "a<b>c", "<>", "\n\n"):
        assert not is_control(token, special=False)
    for token in ("   ", "!", "<0x0A>"):
        assert not is_control(token, special=True)


def tokenizer_json(vocab, merges=()):
    """Return the parts of a `tokenizer.json` that are renamed."""
    added = [("<s>", True), ("<tool>", False), ("llama", False)]
    tokens = [{"content": token, "special": special, "normalized": True} for token, special in added]
    return {"added_tokens": tokens, "model": {"vocab": vocab, "merges": list(merges), "unk_token": "<s>"}}


def test_control_tokens_are_renamed_everywhere_and_text_is_not():
    contents = tokenizer_json({"<s>": 0, "<tool>": 1, "llama": 2, "<": 3, "s>": 4}, ["< s>", "l lama", ["<s>", "x"]])
    names = give_secret_names(contents)
    assert set(names) == {"<s>", "<tool>"}
    assert contents["model"]["vocab"] == {names["<s>"]: 0, names["<tool>"]: 1, "llama": 2, "<": 3, "s>": 4}
    assert contents["model"]["unk_token"] == names["<s>"]
    assert contents["model"]["merges"] == ["l lama"]  # no merge produces or uses a control token
    assert [token["content"] for token in contents["added_tokens"]] == [names["<s>"], names["<tool>"], "llama"]
    assert [token["normalized"] for token in contents["added_tokens"]] == [False, False, True]


def test_secret_names_differ_between_tokenizers_and_cover_extra_pieces():
    first, second = (give_secret_names(tokenizer_json([["<s>", 0.0], ["x", -1.0]]), also=["x"]) for _ in range(2))
    assert set(first) == {"<s>", "<tool>", "x"}
    assert len({*first.values(), *second.values()}) == 6
