import re

import pytest


def test_every_address_is_documented(server):
    status, _, schema = server.ask("/openapi.json")
    assert status == 200
    assert {
        "/v1/models",
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/tasks/{name}",
        "/health",
        "/ready",
        "/metrics",
    } <= schema["paths"].keys()
    for operations in schema["paths"].values():
        for operation in operations.values():
            assert operation["summary"]


def test_the_documentation_loads_nothing_from_other_servers(server, guarded):
    for one in (server, guarded):  # no key is needed
        status, _, page = one.ask("/docs")
        assert status == 200
        addresses = re.findall(r'(?:src|href)="([^"]*)"', page)
        assert len(addresses) == 3
        for address in addresses:
            assert address.startswith("/docs-files/")
            assert one.ask(address)[0] == 200
        assert not re.search(r"https?://", page)


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [("/nowhere", None, 404), ("/v1/completions", "GET", 405), ("/v1/models", "POST", 405), ("/v1/../../x", None, 404)],
)
def test_wrong_addresses_and_methods_are_refused_in_openais_form(server, path, method, status):
    found, _, body = server.ask(path, b"{}" if method == "POST" else None, method=method)
    assert found == status
    assert body["error"]["message"]


def test_a_body_must_be_declared_as_json(server):
    body = b'{"model": "chat", "prompt": "a"}'
    assert server.ask("/v1/completions", body, headers={"Content-Type": "text/plain"})[0] == 400


def test_browsers_of_other_pages_are_kept_out_unless_allowed(server, guarded):
    def allowed(one, origin):
        headers = {"Origin": origin, "Authorization": "Bearer k3"}
        return one.ask("/v1/models", headers=headers)[1].get("Access-Control-Allow-Origin")

    assert allowed(server, "https://example.org") is None
    assert allowed(guarded, "https://example.org") == "https://example.org"
    assert allowed(guarded, "https://evil.example") is None
