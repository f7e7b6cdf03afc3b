import json

import pytest

from glassformer.serve.rating_session import RatingSession

INPUTS = [f"input {number}" for number in range(6)]
OUTPUTS = {name: [f"{name} {number}" for number in range(6)] for name in ("first", "second", "third")}


def session(path, mode="choice", **changes):
    return RatingSession(INPUTS, {**OUTPUTS, **changes}, path, mode)


def test_every_item_is_shown_once_and_in_each_raters_own_order(tmp_path):
    own = session(tmp_path / "r.jsonl")
    orders = {}
    for rater in ("ann", "bob"):
        while (item := own.next_item(rater)) is not None:
            orders.setdefault(rater, []).append(item)
            own.answer(rater, item, 0)
        assert own.n_done(rater) == 6
    assert sorted(orders["ann"]) == sorted(orders["bob"]) == list(range(6))
    assert orders["ann"] != orders["bob"]


def test_outputs_are_shown_in_random_order_without_names(tmp_path):
    own = session(tmp_path / "r.jsonl")
    orders = {tuple(own.order("ann", item)) for item in range(6)}
    assert len(orders) > 1
    for item in range(6):
        assert own.shown_outputs("ann", item) == [f"{name} {item}" for name in own.order("ann", item)]
        assert own.order("ann", item) == own.order("ann", item)


def test_an_answer_names_the_system_at_its_place_and_is_stored_at_once(tmp_path):
    path = tmp_path / "r.jsonl"
    own = session(path)
    own.answer("ann", 2, 1)
    own.answer("ann", 3, None)
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert lines[0]["systems"] == ["first", "second", "third"]
    assert lines[1]["choice"] == own.order("ann", 2)[1]
    assert lines[2]["choice"] is None
    rated = session(tmp_path / "rated.jsonl", "rating")
    rated.answer("bob", 0, [1, 5, 3])
    assert rated.answers[0].ratings == dict(zip(rated.order("bob", 0), [1, 5, 3], strict=True))


def test_a_session_goes_on_where_its_file_ends(tmp_path):
    path = tmp_path / "r.jsonl"
    first = session(path)
    first.answer("ann", 2, 1)
    first.answer("ann", 2, 0)
    again = session(path)
    assert again.answers == first.answers
    assert len(again.answers) == 1, "the last answer counts"
    assert again.n_done("ann") == 1


def test_a_file_of_other_texts_is_refused_and_kept(tmp_path):
    path = tmp_path / "r.jsonl"
    session(path).answer("ann", 2, 1)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="choose another --out"):
        session(path, first=["x"] * 6)
    with pytest.raises(ValueError, match="choose another --out"):
        session(path, "rating")
    assert path.read_bytes() == before
    (tmp_path / "notes.txt").write_text("my notes", encoding="utf-8")
    with pytest.raises(ValueError, match="is not a file of ratings"):
        session(tmp_path / "notes.txt")


@pytest.mark.parametrize(
    ("mode", "rater", "item", "given"),
    [
        ("choice", "ann", 0, 3),
        ("choice", "ann", 0, -1),
        ("choice", "ann", 0, True),
        ("choice", "ann", 6, 0),
        ("choice", " ", 0, 0),
        ("choice", "a\nb", 0, 0),
        ("rating", "ann", 0, [1, 2]),
        ("rating", "ann", 0, [0, 2, 3]),
        ("rating", "ann", 0, 3),
    ],
)
def test_wrong_answers_are_refused(tmp_path, mode, rater, item, given):
    own = session(tmp_path / "r.jsonl", mode)
    with pytest.raises(ValueError, match="expected"):
        own.answer(rater, item, given)
    assert not own.answers


def test_every_system_needs_an_output_for_every_input(tmp_path):
    with pytest.raises(ValueError, match="first has 2 outputs: expected 6"):
        session(tmp_path / "r.jsonl", first=["a", "b"])
    with pytest.raises(ValueError, match="expected at least 2"):
        RatingSession(INPUTS, {"only": INPUTS}, tmp_path / "r.jsonl", "choice")
