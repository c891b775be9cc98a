"""What steps with drafts cost, by a clock that stands still but for the target's forwards and the drafts."""

import time

import pytest
import torch

from paceline.api.loading import load
from paceline.core.request import Request
from paceline.core.tree import Draw, Tree
from paceline.drafters.base import StatelessDrafter
from paceline.train import step_costs
from paceline.train.step_costs import measure_costs, steady_clock
from tests.train.configs import write_target


class Slow(StatelessDrafter):
    """The root again and again; a draft of k tokens takes k * k / 10 plain steps."""

    draws = frozenset(Draw)

    def __init__(self, clock, longest):
        self.clock, self.longest = clock, longest

    def max_nodes(self, num_draft_tokens):
        return 1 + min(num_draft_tokens, self.longest)

    def propose(self, batch, plan):
        k = min(plan.num_draft_tokens, self.longest)
        self.clock.now += k * k / 10
        room = batch.active[:, None] & (torch.arange(k) < batch.draft_room[:, None])
        return Tree.make_chain(batch.root[:, None].expand(-1, 1 + k), torch.cat((batch.active[:, None], room), dim=1))


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.mark.parametrize(
    ("longest", "expected"),
    [(8, [1.1, 1.4, 2.0, 2.6, 3.8, 5.0, 6.2, 7.4]), (5, [1.1, 1.4, 2.0, 2.6, 3.5]), (1, [1.1])],
)
def test_costs_are_of_timed_lengths_and_linear_between(longest, expected, tmp_path, monkeypatch):
    target = load(write_target(tmp_path) / "target", device="cpu", enforce_eager=True)
    assert isinstance(target.lm, torch.nn.Module)
    clock = Clock()

    def one_step(*_):
        clock.now += 1

    target.lm.register_forward_hook(one_step)
    monkeypatch.setattr(step_costs, "build_head_drafter", lambda head, *, target: Slow(clock, longest))
    request = Request(tokens=[1, 2, 3], max_tokens=1, stop_tokens=[1, 2, 3])
    costs = measure_costs(target, tmp_path / "head", request=request, clock=clock)
    assert costs == pytest.approx(expected), "a plain step takes 1"


def test_other_programs_are_left_out_where_one_thread_works_alone(monkeypatch):
    cpu, threads = torch.device("cpu"), 1
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert steady_clock(cpu) is time.process_time and steady_clock(torch.device("cuda")) is time.perf_counter
    threads = 2
    assert steady_clock(cpu) is time.perf_counter
