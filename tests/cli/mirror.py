"""A model for tests of `glassformer run` that answers each line with itself."""


class Mirror:
    """Answers each line with itself and refuses lines whose first word is "bad"."""

    def __init__(self):
        self.n_calls = 0

    def run(self, lines):
        self.n_calls += 1
        for line in lines:
            if line.startswith("bad"):
                raise ValueError(f"{line!r} is bad")
        return list(lines)
