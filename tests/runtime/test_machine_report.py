"""The description of this machine: `glassformer info` without a model."""

import json
from importlib.metadata import PackageNotFoundError

import pytest
import torch

from glassformer.base.version import __version__
from glassformer.kernels.cpp_library import KernelBuildError, supported_sets
from glassformer.runtime import machine_report
from glassformer.runtime.expected_speed import MachineRates
from glassformer.runtime.machine_report import report_machine


def test_it_names_versions_processors_and_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("GLASSFORMER_CACHE", str(tmp_path))
    monkeypatch.delenv("GLASSFORMER_CPU_KERNELS", raising=False)
    found = report_machine()
    assert found["glassformer"] == __version__
    assert found["torch"] == torch.__version__
    assert "tokenizers " in found["packages"]
    assert found["cache"] == str(tmp_path)
    assert " cores, " in found["cpu"]
    best = (supported_sets() or ["none, torch's own are used"])[0]
    assert found["cpu kernels"].startswith(best)
    assert ("gpu" in found) == (not torch.cuda.is_available())
    assert not any(name.startswith("speed") for name in found)


def test_missing_packages_and_kernels_are_said(monkeypatch):
    def version(name):
        if name == "fastapi":
            raise PackageNotFoundError(name)
        return "1"

    def no_kernels():
        raise KernelBuildError("no C++ compiler was found")

    lines = ["rich", "matplotlib; extra == 'plot'", 'fastapi>=1; extra == "serve"', "uvicorn ; extra == 'serve'"]
    monkeypatch.setattr(machine_report, "version", version)
    monkeypatch.setattr(machine_report, "requires", lambda name: lines)
    monkeypatch.setattr(machine_report, "wanted_sets", no_kernels)
    found = report_machine()
    assert found["extras"] == "plot, serve (without fastapi)"
    assert found["cpu kernels"] == "none, torch's own are used: no C++ compiler was found"


def test_a_package_that_is_not_installed_has_unknown_extras(monkeypatch):
    def requires(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(machine_report, "requires", requires)
    assert report_machine()["extras"] == "unknown, because the package glassformer is not installed"


def test_the_speed_is_measured_if_asked(monkeypatch):
    monkeypatch.setattr(machine_report, "measure_rates", lambda *_: MachineRates(12.3e9, 456e9))
    assert report_machine(measure=True)["speed, cpu"] == "456 GFLOP/s in float32; memory 12 GB/s"


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_info_without_a_model_prints_it(monkeypatch, capsys, options):
    from glassformer.cli import main

    monkeypatch.setattr("sys.argv", ["glassformer", "info", *options])
    main()
    out = capsys.readouterr().out
    assert __version__ in out
    if options:
        assert json.loads(out)["torch"] == torch.__version__
    else:
        assert f"torch           {torch.__version__}" in out.splitlines()


@pytest.mark.parametrize("options", [["--runtime", "--quantize", "int8"], ["--allow-pickle"]])
def test_options_of_models_need_one(monkeypatch, capsys, options):
    from glassformer.cli import main

    monkeypatch.setattr("sys.argv", ["glassformer", "info", *options])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "PATH is missing" in capsys.readouterr().err


def test_a_gpu_that_cannot_be_used_is_reported(monkeypatch):
    def broken(*_):
        raise RuntimeError("the driver is too old\nmore lines")

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", broken)
    monkeypatch.setattr(machine_report, "measure_rates", broken)
    found = report_machine(measure=True)
    assert found["gpu 0"] == "cannot be used: the driver is too old"
    assert found["speed, gpu 0"] == found["speed, cpu"] == "not measured: the driver is too old"
