"""Synthetic stories: every answer is in the text and follows from it."""

import re

from glassformer.data.corpora.synthetic_stories import DROPS, MOVES, PLACES, TAKES, generate_stories

STORIES = generate_stories(300, seed=1)


def test_an_answer_stands_at_its_position_and_unanswerable_questions_have_none():
    for story in STORIES:
        if story.answer:
            assert story.context[story.start :].startswith(story.answer)
        else:
            assert story.start == -1
            asked = re.findall(r"(?:Where is|What does|Who has) (?:the )?(\w+)", story.question)[0]
            assert asked not in story.context
    share = sum(not story.answer for story in STORIES) / len(STORIES)
    assert 0.08 < share < 0.25
    assert all(story.answer for story in generate_stories(50, unanswerable=0.0))


def answer_from_text(story):
    """Follow the sentences of a story and answer its question."""
    where, owner = {}, {}
    for sentence in story.context.removesuffix(".").split(". "):
        who, *_, last = sentence.split()
        if any(f" {move} " in sentence for move in MOVES) and last in PLACES:
            where[who] = last
        elif " gave the " in sentence:
            owner[sentence.split(" the ")[1].split()[0]] = last
        elif any(f" {take} " in sentence for take in TAKES):
            owner[last] = who
        else:
            assert any(f" {drop} " in sentence for drop in DROPS)
            del owner[last]
            where[last] = where[who]
    asked = story.question.removesuffix("?").replace(" carry", "").split()[-1]
    if story.question.startswith("Where"):
        return where[owner.get(asked, asked)]
    if story.question.startswith("Who"):
        return owner[asked]
    (thing,) = [thing for thing, person in owner.items() if person == asked]
    return thing


def test_answers_follow_from_the_sentences():
    answered = [story for story in STORIES if story.answer]
    assert [answer_from_text(story) for story in answered] == [story.answer for story in answered]


def test_the_same_seed_gives_the_same_stories():
    assert generate_stories(300, seed=1) == STORIES
    assert generate_stories(300, seed=2) != STORIES
