"""Deliveries to the event loop: how long the loop rests after one, and that tokens gather in the meantime."""

import asyncio

import pytest

from glassformer.serve.delivery_pace import MAX_REST, REST, DeliveryPace


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.mark.parametrize(("seconds", "rest"), [(0.003, 0.003 * REST), (3.0, MAX_REST)])
def test_the_loop_rests_in_proportion_to_what_a_delivery_and_the_coroutines_that_it_woke_took(seconds, rest):
    clock = Clock()
    pace = DeliveryPace(clock)
    assert pace.is_due

    async def deliver_once():
        woken = asyncio.Event()

        async def send():
            await woken.wait()
            clock.now += seconds * 2 / 3  # what a client's event takes

        def deliver():
            clock.now += seconds / 3
            woken.set()

        sending = asyncio.create_task(send())
        await asyncio.sleep(0)
        pace.start(asyncio.get_running_loop(), deliver)
        assert not pace.is_due, "while the loop works on the delivery"
        await sending
        await asyncio.sleep(0)

    asyncio.run(deliver_once())
    assert clock.now == pytest.approx(100.0 + seconds)
    assert not pace.is_due
    clock.now += rest - 0.001
    assert not pace.is_due
    clock.now += 0.002
    assert pace.is_due


def test_a_delivery_that_fails_does_not_block_the_next():
    clock = Clock()
    pace = DeliveryPace(clock)

    async def fail():
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda *_: None)
        pace.start(loop, lambda: 1 / 0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(fail())
    assert pace.is_due


def test_a_closed_loop_is_an_error_and_the_next_delivery_is_due():
    pace, loop = DeliveryPace(), asyncio.new_event_loop()
    loop.close()
    with pytest.raises(RuntimeError):
        pace.start(loop, lambda: None)
    assert pace.is_due
