"""Find a row of the cache pool whose text begins like a new prompt, so that only the rest has to be read.

The keys and values of a token depend on the tokens before it only, so two texts with the same beginning share those of
the beginning. Typical cases are the next turn of a conversation and requests with the same instructions.
"""

from collections.abc import Sequence

from glassformer.runtime.cache_pool import CachePool, PoolRow


def find_longest_prefix(pool: CachePool, tokens: Sequence[int], minimum: int) -> tuple[PoolRow | None, int]:
    """Return the row that shares the most first tokens with a prompt, and how many; (None, 0) if below `minimum`.

    At least one token of the prompt is left to read, because the model must predict the token after it.
    """
    best: PoolRow | None = None
    longest = minimum - 1
    for row in pool.rows:
        if row.state == "free" or row.memory_length:
            continue
        needed = max(longest, minimum)  # comparing slices is faster than counting, and rules out most rows
        if min(row.length, len(tokens) - 1) < needed or row.tokens[:needed] != tokens[:needed]:
            continue
        n_shared = count_shared(row.tokens[: row.length], tokens[:-1])
        # Of equally good rows prefer one that no request uses: its text can be continued in place.
        if n_shared > longest or (n_shared == longest and best is not None and best.is_busy and not row.is_busy):
            best, longest = row, n_shared
    return (None, 0) if best is None else (best, longest)


def take_rows(pool: CachePool, tokens: Sequence[int], count: int, minimum: int) -> tuple[list[PoolRow], int]:
    """Return `count` rows for a new prompt, and how many of its tokens the first row already holds.

    A kept text that the prompt continues, or for which there is no space, is continued in place. Otherwise the shared
    tokens are copied. With `minimum` 0 nothing is reused.
    """
    donor, n_shared = find_longest_prefix(pool, tokens, minimum) if minimum else (None, 0)
    if donor is None:
        return pool.take(count), 0
    n_available = sum(not row.is_busy for row in pool.rows)
    is_continued = donor.state == "kept" and (n_shared == donor.length or n_available <= count)
    if is_continued:
        donor.state = "reading"
        pool.truncate(donor, n_shared)
        return [donor, *pool.take(count - 1)], n_shared
    rows = pool.take(count, avoid=donor)
    pool.copy_text(donor, rows[0], n_shared)
    pool.touch(donor)
    return rows, n_shared


def count_shared(one: Sequence[int], two: Sequence[int]) -> int:
    """Return the number of first tokens that two texts share."""
    shared = min(len(one), len(two))
    if one[:shared] == two[:shared]:
        return shared
    return next(place for place in range(shared) if one[place] != two[place])
