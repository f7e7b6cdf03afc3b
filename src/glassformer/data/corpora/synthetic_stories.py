"""Synthetic stories with questions (bAbI style): people move around and carry things.

The events are simulated while the story is written, so the answer to every question is known, with its position in the
text. Some questions are unanswerable: they ask about a person or thing that the story never mentions.
"""

from collections.abc import Iterator
from random import Random
from typing import NamedTuple

PEOPLE = ("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Greta", "Hugo", "Ida", "Jonas", "Lena", "Max")
PLACES = ("kitchen", "garden", "office", "hallway", "cellar", "attic", "library", "garage", "studio", "bakery")
THINGS = ("apple", "lamp", "book", "ball", "key", "coat", "letter", "hammer", "clock", "basket")
MOVES = ("went to", "walked to", "ran to", "moved to", "returned to")
TAKES = ("took", "picked up", "got", "grabbed")
DROPS = ("put down", "dropped", "left")


class StoryQuestion(NamedTuple):
    """A story (`context`), a question about it, and the words of the story that answer the question."""

    question: str
    context: str
    answer: str
    """Empty if the question is unanswerable."""
    start: int
    """Character position of the answer in the story, or -1 if the question is unanswerable."""


class _Story:
    """A story in progress: its text so far, and the state of its world.

    The state is kept as mentions. A mention is a word and its character position in the text.
    """

    def __init__(self, random: Random):
        self.random = random
        self.text = ""
        self.people = random.sample(PEOPLE, 4)
        self.things = random.sample(THINGS, 3)
        self.places = random.sample(PLACES, 4)
        self.where: dict[str, tuple[str, int]] = {}
        """For each person who has moved, the mention of the place where the person is."""
        self.carried_by: dict[str, tuple[str, int]] = {}
        """For each carried thing, the mention of the person who has it."""
        self.taken: dict[str, tuple[str, int]] = {}
        """For each carried thing, the mention of the thing itself when it was last taken or given."""
        self.lies_at: dict[str, tuple[str, int]] = {}
        """For each thing that was put down, the mention of the place where it is."""

    def tell(self) -> None:
        """Add a sentence to the story, in which a person moves, or takes, puts down or gives away a thing."""
        who = self.random.choice(self.people[:-1])  # the last person is only for unanswerable questions
        place = self.where.get(who, ("", 0))[0]
        mine = [thing for thing, (owner, _) in self.carried_by.items() if owner == who]
        near = [person for person in self.where if person != who and self.where[person][0] == place]
        free = [
            thing
            for thing in self.things[:-1]  # the last thing is only for unanswerable questions
            if thing not in self.carried_by and self.lies_at.get(thing, (place, 0))[0] == place
        ]
        act = self.random.choice(("move", "take", "drop", "give"))
        if act == "give" and mine and near:
            self._give(who, self.random.choice(mine), self.random.choice(near))
        elif act == "drop" and mine:
            self._drop(who, self.random.choice(mine))
        elif act == "take" and place and free:
            self._take(who, self.random.choice(free))
        else:
            self._move(who, self.random.choice([other for other in self.places if other != place]))

    def questions(self) -> Iterator[StoryQuestion]:
        """Yield every question that has exactly one answer at this point of the story."""
        for who, (place, start) in self.where.items():
            yield StoryQuestion(f"Where is {who}?", self.text, place, start)
        for thing, (owner, start) in self.carried_by.items():
            yield StoryQuestion(f"Who has the {thing}?", self.text, owner, start)
            yield StoryQuestion(f"Where is the {thing}?", self.text, *self.where[owner])
            if sum(other == owner for other, _ in self.carried_by.values()) == 1:
                yield StoryQuestion(f"What does {owner} carry?", self.text, *self.taken[thing])
        for thing, (place, start) in self.lies_at.items():
            yield StoryQuestion(f"Where is the {thing}?", self.text, place, start)

    def unanswerable(self) -> StoryQuestion:
        """Return a question about a person or thing that the story does not mention."""
        who, thing = self.people[-1], self.things[-1]
        asked = (f"Where is {who}?", f"What does {who} carry?", f"Who has the {thing}?", f"Where is the {thing}?")
        return StoryQuestion(self.random.choice(asked), self.text, "", -1)

    def _move(self, who: str, place: str) -> None:
        sentence = f"{who} {self.random.choice(MOVES)} the {place}."
        self.where[who] = place, self._say(sentence) + sentence.rindex(place)

    def _take(self, who: str, thing: str) -> None:
        sentence = f"{who} {self.random.choice(TAKES)} the {thing}."
        begin = self._say(sentence)
        self.taken[thing] = thing, begin + sentence.rindex(thing)
        self.carried_by[thing] = who, begin
        self.lies_at.pop(thing, None)

    def _drop(self, who: str, thing: str) -> None:
        self._say(f"{who} {self.random.choice(DROPS)} the {thing}.")
        del self.carried_by[thing], self.taken[thing]
        self.lies_at[thing] = self.where[who]

    def _give(self, who: str, thing: str, other: str) -> None:
        sentence = f"{who} gave the {thing} to {other}."
        begin = self._say(sentence)
        self.taken[thing] = thing, begin + sentence.index(thing)
        self.carried_by[thing] = other, begin + sentence.rindex(other)

    def _say(self, sentence: str) -> int:
        """Append a sentence to the story and return its start position."""
        begin = len(self.text) + bool(self.text)
        self.text = f"{self.text} {sentence}".strip()
        return begin


def generate_stories(count: int, *, seed: int = 0, unanswerable: float = 0.15) -> list[StoryQuestion]:
    """Return `count` stories of three to six sentences with one question each.

    `unanswerable` is the probability that a question cannot be answered.
    """
    random = Random(f"made stories {seed}")
    found: list[StoryQuestion] = []
    while len(found) < count:
        story = _Story(random)
        for _ in range(random.randint(3, 6)):
            story.tell()
        # Draw the kind of question first. Otherwise most questions would ask where a person is.
        kinds: dict[str, list[StoryQuestion]] = {}
        for asked in story.questions():
            kinds.setdefault(_kind(asked.question), []).append(asked)
        is_hopeless = random.random() < unanswerable
        found.append(story.unanswerable() if is_hopeless else random.choice(kinds[random.choice(sorted(kinds))]))
    return found


def _kind(question: str) -> str:
    """Return the kind of a question as a text: its first word, and True or False for whether it asks about a thing."""
    return f"{question.split()[0]} {' the ' in question}"
