"""Starting several processes. `tests/training/test_many_devices.py` starts the command for real."""

import logging

import pytest
from torch.distributed.elastic.agent.server import api as agent
from torch.distributed.elastic.multiprocessing import api as processes
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher import api

from glassformer.cli.launch import is_follower, is_started, launch


@pytest.fixture
def launched(monkeypatch):
    """Record what is launched; `ends` maps to the exit code of the second process, 0 by default."""
    record = {"exit code": 0}

    def elastic_launch(config, entrypoint):
        def run(*arguments):
            record.update(config=config, arguments=arguments)
            if record["exit code"]:
                failure = ProcessFailure(local_rank=1, pid=7, exitcode=record["exit code"], error_file="")
                raise ChildFailedError("glassformer", {1: failure})

        return run

    monkeypatch.setattr(api, "elastic_launch", elastic_launch)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return record


@pytest.mark.parametrize(("ended", "code"), [(0, 0), (2, 2), (-9, 137)])
def test_the_exit_code_is_that_of_the_first_failure(launched, ended, code, capsys):
    launched["exit code"] = ended
    with pytest.raises(SystemExit) as stopped:
        launch(["train", "language"], 2, 3)
    assert stopped.value.code == code
    assert launched["arguments"] == ("-m", "glassformer", "train", "language")
    assert (launched["config"].nproc_per_node, launched["config"].max_restarts) == (2, 3)
    assert ("process 1 of 2 was ended by signal 9" in capsys.readouterr().err) == (ended == -9)


def test_the_launcher_reports_nothing_that_the_processes_report(launched):
    with pytest.raises(SystemExit):
        launch(["train", "language"], 2, 0)
    for module in (agent, processes):
        assert not module.logger.isEnabledFor(logging.ERROR)


def test_a_launcher_is_known_by_its_environment(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    assert not is_started()
    assert not is_follower()
    monkeypatch.setenv("RANK", "0")
    assert is_started()
    assert not is_follower()
    monkeypatch.setenv("RANK", "1")
    assert is_follower()
