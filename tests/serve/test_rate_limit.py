from glassformer.serve import rate_limit
from glassformer.serve.rate_limit import RateLimit


def test_a_client_may_send_as_many_requests_per_minute_as_allowed():
    now = [0.0]
    limit = RateLimit(2, lambda: now[0])
    assert [limit.wait_for("a") for _ in range(3)] == [0, 0, 30]
    assert limit.wait_for("b") == 0, "another client has its own count"
    now[0] = 30
    assert limit.wait_for("a") == 0
    assert limit.wait_for("a") == 30


def test_no_limit_is_no_limit():
    limit = RateLimit(0)
    assert not any(limit.wait_for("a") for _ in range(1000))


def test_the_number_of_remembered_clients_is_bounded(monkeypatch):
    monkeypatch.setattr(rate_limit, "MAX_CLIENTS", 5)
    limit = RateLimit(1)
    for number in range(20):
        limit.wait_for(str(number))
    assert len(limit._buckets) == 5
