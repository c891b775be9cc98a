"""Loggers: JSON lines after an interruption, and services played by stand-ins."""

import json
import sys
from types import ModuleType, SimpleNamespace

import pytest

from paceline.train.loop import loggers as logging
from paceline.train.loop.loggers import LOGGERS, JsonLines, open_loggers


class Recorder(ModuleType):
    """A module that records calls."""

    def __init__(self, name):
        super().__init__(name)
        self.calls = []

    def note(self, name):
        def called(*values, **options):
            self.calls.append((name, values, options))
            return SimpleNamespace(log=self.note("log"), finish=self.note("finish"))

        return called


@pytest.fixture
def services(monkeypatch):
    found = {name: Recorder(name) for name in ("wandb", "trackio")}
    for name, module in found.items():
        for call in ("init", "log", "finish"):
            setattr(module, call, module.note(call))
        monkeypatch.setitem(sys.modules, name, module)
    return found


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_service_gets_config_metrics_and_finish(name, services, tmp_path):
    (logger,) = open_loggers([name], folder=tmp_path, name="first", config={"seed": 3})
    logger.log(7, {"loss": 1.5})
    logger.close()
    (began, _, options), (logged, values, at), (ended, *_) = services[name].calls
    assert (began, logged, ended) == ("init", "log", "finish")
    assert options["name"] == "first" and options["config"] == {"seed": 3} and options["resume"] == "allow"
    assert values == ({"loss": 1.5},) and at == {"step": 7}


def test_tensorboard_gets_every_metric(monkeypatch, tmp_path):
    calls = []
    writer = SimpleNamespace(
        add_scalar=lambda *values: calls.append(values),
        add_text=lambda name, text: calls.append((name, text)),
        close=lambda: calls.append("closed"),
    )
    modules = {
        "tensorboard": ModuleType("tensorboard"),
        "torch.utils.tensorboard": SimpleNamespace(SummaryWriter=lambda log_dir: calls.append(log_dir) or writer),
    }
    monkeypatch.setattr(logging, "import_module", modules.__getitem__)
    (logger,) = open_loggers(["tensorboard"], folder=tmp_path, name="first", config={"seed": 3})
    logger.log(7, {"loss": 1.5, "rate": 0.1})
    logger.close()
    assert calls[0] == str(tmp_path / "tensorboard") and '"seed": 3' in calls[1][1]
    assert calls[2:] == [("loss", 1.5, 7), ("rate", 0.1, 7), "closed"]


@pytest.mark.parametrize("name", LOGGERS.builtin)
def test_missing_logger_package_is_named_with_its_extra(name, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ValueError, match=rf"loggers: {name} is not installed .*paceline\[train-loggers\]"):
        open_loggers([name], folder=tmp_path, name="first", config={})


def test_lines_after_the_checkpoint_and_incomplete_lines_are_replaced(tmp_path):
    lines = JsonLines(folder=tmp_path)
    lines.begin(0)
    for step in (1, 2, 3):
        lines.log(step, {"loss": float(step)})
    with lines.path.open("a") as file:
        file.write('{"step": 2, "lo')
    lines.begin(2)
    lines.log(3, {"loss": 9.0})
    found = [json.loads(line) for line in lines.path.read_text().splitlines()]
    assert found == [{"step": 1, "loss": 1.0}, {"step": 2, "loss": 2.0}, {"step": 3, "loss": 9.0}]
