"""`glassformer train --devices N`: start N processes of the same command with torchrun's launcher, on this machine."""

import logging
import os
import sys
import uuid
from typing import NoReturn

from glassformer.cli.process import fail


def is_started() -> bool:
    """Whether a launcher such as torchrun has started this process."""
    return "RANK" in os.environ


def is_follower() -> bool:
    """Whether another process of the same run prints the results: every process but the first."""
    return os.environ.get("RANK", "0") != "0"


def launch(arguments: list[str], n_processes: int, max_restarts: int) -> NoReturn:
    """Run `glassformer ARGUMENTS` in several processes that train together, and exit with their exit code.

    If a process ends by an error, all are ended, and started again at most `max_restarts` times.
    """
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    for name in list(logging.root.manager.loggerDict):  # each has its level
        if name.startswith("torch.distributed.elastic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # the processes report their own errors
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // n_processes)))
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=n_processes,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=max_restarts,
        monitor_interval=0.2,
    )
    try:
        elastic_launch(config, sys.executable)("-m", "glassformer", *arguments)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        code = failure.exitcode
        if code < 0:
            fail(f"process {rank} of {n_processes} was ended by signal {-code}", 128 - code)
        sys.exit(code)
    except BaseException as error:
        number = getattr(error, "sigval", None)
        if number is None:
            raise
        sys.exit(128 + int(number))  # the processes have saved a checkpoint
    sys.exit(0)
