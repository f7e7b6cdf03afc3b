"""A random permutation of many numbers that takes no memory: each element is computed from its place.

It is a Feistel network (Luby and Rackoff 1988) over the smallest suitable power of four. A result outside the range is
encrypted again until it is inside (cycle walking, Black and Rogaway 2002), less than four times on average.
"""

ROUNDS = 6
"""Number of rounds of the network; four are enough for a random permutation if the round function is random."""
MASK = (1 << 64) - 1


class RandomPermutation:
    """A permutation of the numbers from 0 to `size` - 1, chosen by `key`.

    >>> order = RandomPermutation(5, key=1)
    >>> sorted(order[place] for place in range(5))
    [0, 1, 2, 3, 4]
    """

    def __init__(self, size: int, key: int):
        if size < 1:
            raise ValueError(f"size={size}: expected at least 1")
        self.size, self._key = size, key
        self._half = max(1, ((size - 1).bit_length() + 1) // 2)
        """Number of bits of each half of a number."""

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, place: int) -> int:
        """Return the number at this place."""
        if not 0 <= place < self.size:
            raise IndexError(f"place {place}: expected 0 to {self.size - 1}")
        value = self._encrypt(place)
        while value >= self.size:
            value = self._encrypt(value)
        return value

    def _encrypt(self, value: int) -> int:
        low = (1 << self._half) - 1
        left, right = value >> self._half, value & low
        for number in range(ROUNDS):
            left, right = right, left ^ (_mix(self._key + (number << 58) + right) & low)
        return left << self._half | right


def _mix(value: int) -> int:
    """Return the hash of a number: the finalizer of SplitMix64 (Steele et al. 2014)."""
    value = (value * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & MASK
    return value ^ value >> 31
