"""The first signal is remembered, the second stops at once, and the handlers of the caller come back."""

import os
import signal
import threading

import pytest

from glassformer.training.stop_signals import Interrupted, StoppedAtOnceError, StopSignals


def test_the_first_signal_is_remembered_and_the_second_raises():
    before, signals = signal.getsignal(signal.SIGTERM), StopSignals()
    with signals.handling():
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.received == signal.SIGTERM
        with pytest.raises(StoppedAtOnceError) as stopped:
            os.kill(os.getpid(), signal.SIGTERM)
    assert stopped.value.exit_code == 143
    assert signal.getsignal(signal.SIGTERM) is before
    assert Interrupted(signal.SIGINT).exit_code == 130


def test_other_threads_leave_the_handlers_alone():
    seen = []

    def look():
        with StopSignals().handling():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGTERM)]
