from glassformer.serve.server_options import KEYS_VARIABLE, ListenOptions


def test_keys_come_from_the_command_line_and_from_the_environment(monkeypatch):
    monkeypatch.setenv(KEYS_VARIABLE, "two, three,,one")
    assert ListenOptions(api_key=("one",)).all_keys() == ("one", "two", "three")
    monkeypatch.delenv(KEYS_VARIABLE)
    assert ListenOptions().all_keys() == ()


def test_a_server_listens_on_this_machine_only():
    assert ListenOptions().host == "127.0.0.1"
    assert ListenOptions().cors == ()
    assert not ListenOptions().log_prompts
