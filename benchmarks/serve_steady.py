"""Measure whether a server stays as it was: its memory under mixed load, and its speed while clients disconnect.

    python benchmarks/serve_steady.py SmolLM2.gguf --minutes 60 --disconnects 200

Mixed load is chats of several lengths, whole and streamed, invalid requests, and clients that disconnect in the middle
of an answer. The table shows the resident memory of the server after one minute and at the end, and the 99th percentile
of the time between two tokens of steady clients: first alone, then while other clients disconnect.
"""

import argparse
import asyncio
import json
import random
import shlex
import sys
import time
from contextlib import suppress
from pathlib import Path

from serve_clients import QUESTIONS, Load, ask

from glassformer.bench.result_file import check_new, markdown_table, write_result
from serve import ServerProcess, quantile

COLUMNS = ["measurement", "before", "after", "ratio", "allowed"]


async def leave_early(server: ServerProcess, chance: random.Random) -> None:
    """Ask for a long answer, read a little of it, and close the connection."""
    body = {"model": server.model, "messages": [{"role": "user", "content": chance.choice(QUESTIONS)}]}
    data = json.dumps({**body, "max_tokens": 400, "stream": chance.random() < 0.7}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    head = f"Host: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
    writer.write(f"POST /v1/chat/completions HTTP/1.1\r\n{head}\r\n\r\n".encode() + data)
    with suppress(TimeoutError):
        async with asyncio.timeout(chance.uniform(0.05, 1.0)):
            await reader.readexactly(400)
    writer.close()


async def send_invalid(server: ServerProcess) -> None:
    """Send a request that the server refuses."""
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 7\r\nConnection: close\r\n\r\n{wrong]"
    )
    await writer.drain()
    writer.close()


async def steady_clients(server: ServerProcess, n_clients: int, n_requests: int, max_tokens: int) -> Load:
    """Return the times that clients noted which read their answers to the end."""
    load = Load()

    async def client(number: int) -> None:
        for turn in range(n_requests):
            await ask(server.address, QUESTIONS[(number + turn) % len(QUESTIONS)], max_tokens, load)

    await asyncio.gather(*map(client, range(n_clients)))
    return load


async def measure_disconnects(server: ServerProcess, n_disconnects: int) -> list[str]:
    """Return the row that compares steady clients alone and beside clients that disconnect."""
    chance = random.Random(0)
    await steady_clients(server, 4, 1, 16)
    alone = await steady_clients(server, 4, 4, 64)

    async def disconnect_all() -> None:
        for _ in range(n_disconnects):
            await leave_early(server, chance)

    leaving = [asyncio.create_task(disconnect_all())]
    beside = Load()
    while not leaving[0].done():
        more = await steady_clients(server, 4, 1, 64)
        beside.gaps += more.gaps
    await leaving[0]
    before, after = (1000 * quantile(load.gaps, 0.99) for load in (alone, beside))
    name = f"between tokens of 4 clients, p99, while {n_disconnects} others disconnect"
    return [name, f"{before:.0f} ms", f"{after:.0f} ms", f"{after / before:.2f}", "2"]


async def measure_memory(server: ServerProcess, minutes: float, pause: float) -> list[str]:
    """Return the row of the server's memory under mixed load."""
    begin = time.monotonic()
    early = 0
    n_requests = 0

    async def client(seed: int) -> None:
        nonlocal n_requests
        chance = random.Random(seed)
        while time.monotonic() - begin < 60 * minutes:
            kind = chance.random()
            if kind < 0.7:
                text = " ".join([chance.choice(QUESTIONS)] * chance.randint(1, 6))
                await ask(server.address, text, chance.randint(1, 48), Load())
            elif kind < 0.85:
                await leave_early(server, chance)
            else:
                await send_invalid(server)
            n_requests += 1
            await asyncio.sleep(pause * chance.random())

    async def watch() -> None:
        nonlocal early
        await asyncio.sleep(min(60.0, 30 * minutes))
        early = server.resident()
        while time.monotonic() - begin < 60 * minutes:
            await asyncio.sleep(min(60.0, 30 * minutes))
            passed = (time.monotonic() - begin) / 60
            print(
                f"{passed:.1f} min: {server.resident() >> 20} MiB, {n_requests} requests", file=sys.stderr, flush=True
            )

    await asyncio.gather(watch(), *map(client, range(4)))
    late = server.resident()
    name = f"resident memory over {minutes:g} minutes, {n_requests:,} requests"
    return [name, f"{early >> 20} MiB", f"{late >> 20} MiB", f"{late / early:.3f}", "1.05"]


def main() -> None:
    """Measure what is asked for, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a decoder with a chat template")
    parser.add_argument("--minutes", type=float, default=3, help="minutes of mixed load; 0 leaves them out")
    parser.add_argument("--disconnects", type=int, default=200, help="clients that disconnect; 0 leaves them out")
    parser.add_argument(
        "--pause", type=float, default=0.0, help="the longest pause between two requests of a client, s"
    )
    parser.add_argument("--out", type=Path, help="new file of results")
    options = parser.parse_args()
    if options.out is not None:
        check_new(options.out)
    program = f"{shlex.quote(sys.executable)} -m glassformer serve {shlex.quote(str(options.model))}"
    rows = []
    with ServerProcess("glassformer", f"{program} --port {{port}} --quiet") as server:
        if options.disconnects:
            rows.append(asyncio.run(measure_disconnects(server, options.disconnects)))
        if options.minutes:
            rows.append(asyncio.run(measure_memory(server, options.minutes, options.pause)))
    print(markdown_table(COLUMNS, rows))
    if options.out is not None:
        write_result(
            options.out, title="A server stays as it was", columns=COLUMNS, rows=rows, notes=[options.model.name]
        )


if __name__ == "__main__":
    main()
