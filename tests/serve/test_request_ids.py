import re

from glassformer.serve.request_ids import new_id


def test_ids_are_hexadecimal_and_differ():
    found = {new_id() for _ in range(1000)}
    assert len(found) == 1000
    assert all(re.fullmatch("[0-9a-f]{32}", one) for one in found)
