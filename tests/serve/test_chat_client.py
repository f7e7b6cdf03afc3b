import socket
import threading

import pytest

from glassformer.serve.chat_client import ChatClient

HI = [{"role": "user", "content": "hi"}]
GREEDY = {"temperature": 0, "max_tokens": 8}


def test_an_answer_comes_in_pieces(server):
    client = ChatClient(server.url)
    assert client.model == "chat", "the first one"
    pieces = list(client.answer(HI, GREEDY))
    expected = server.ask("/v1/chat/completions", {"model": "chat", "messages": HI, **GREEDY})[2]
    assert "".join(pieces) == expected["choices"][0]["message"]["content"]
    assert len(pieces) > 1
    again = ChatClient(f"{server.url}/v1/", "chat").answer(HI, GREEDY)
    assert "".join(again) == "".join(pieces), "a piece may have several tokens"


def test_an_answer_can_be_stopped(server):
    answer = ChatClient(server.url).answer(HI, {"max_tokens": 400, "temperature": 0})
    next(answer)
    answer.close()
    server.wait_until_idle()


def test_errors_are_sentences(server, guarded):
    with pytest.raises(ValueError, match="status 404: model='none': there is no such model"):
        list(ChatClient(server.url, "none").answer(HI, {}))
    with pytest.raises(ValueError, match="status 401: the API key is missing or wrong"):
        ChatClient(guarded.url, key="wrong")
    with pytest.raises(ValueError, match="expected an address that begins with http"):
        ChatClient("file:///etc/passwd")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        with pytest.raises(ValueError, match="cannot be reached"):
            ChatClient(f"http://127.0.0.1:{free.getsockname()[1]}")


def test_a_connection_that_ends_in_the_middle_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer():
            client, _ = listening.accept()
            with client:
                client.recv(10_000)
                event = b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'
                head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
                client.sendall(head + b"%x\r\n%s\r\n" % (len(event), event))

        thread = threading.Thread(target=answer)
        thread.start()
        pieces = ChatClient(f"http://127.0.0.1:{listening.getsockname()[1]}", "m").answer(HI, {})
        assert next(pieces) == "a"
        with pytest.raises(ValueError, match="did not complete the answer"):
            list(pieces)
        thread.join()
