import hmac

from glassformer.serve import api_keys
from glassformer.serve.api_keys import ApiKeys


def test_every_key_is_compared_in_constant_time(monkeypatch):
    compared = []

    def compare(first, second):
        compared.append(first)
        return hmac.compare_digest(first, second)

    keys = ApiKeys(["one", "two", "three"])
    monkeypatch.setattr(api_keys, "hmac", type("Spy", (), {"compare_digest": staticmethod(compare)}))
    assert keys.find(b"two") == 1
    assert compared == [b"one", b"two", b"three"], "the loop does not stop at the right one"
    assert keys.find(b"tw") is None
    assert keys.find(b"") is None
    assert not ApiKeys([])


def test_a_server_with_keys_answers_only_who_has_one(guarded):
    for header in (None, "Bearer wrong", "Bearer ", "Basic k1", "k1", "Bearer k1x"):
        status, headers, body = guarded.ask("/v1/models", headers={} if header is None else {"Authorization": header})
        assert status == 401, header
        assert headers["WWW-Authenticate"] == "Bearer"
        assert body["error"]["code"] == "invalid_api_key"
    for key in ("k1", "k3"):
        assert guarded.ask("/v1/models", headers={"Authorization": f"Bearer {key}"})[0] == 200
    assert guarded.ask("/metrics")[0] == 401
    assert guarded.ask("/health")[0] == guarded.ask("/ready")[0] == 200
    assert "k1" not in "".join(guarded.log).replace("k1x", "")


def test_a_key_that_asks_too_often_is_told_when_to_come_back(guarded):
    found = [guarded.ask("/v1/models", headers={"Authorization": "Bearer k2"}) for _ in range(14)]
    statuses = [status for status, _, _ in found]
    assert statuses[:11] == [200] * 11
    assert statuses[-1] == 429
    assert int(found[-1][1]["Retry-After"]) >= 1
    assert guarded.ask("/v1/models", headers={"Authorization": "Bearer k1"})[0] == 200, "another key has its own rate"
