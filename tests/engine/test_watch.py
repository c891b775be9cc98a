"""The watch: which steps are plain, which are timed, and the speeds that follow."""

import pytest

from paceline.core.plan import Fixed
from paceline.core.step import Finish, PhaseSeconds, StepResult
from paceline.core.tree import NoDraft
from paceline.engine.watch import ENOUGH, FIRST, MARGIN, PERIOD, PLAIN_STEPS, Speed, Watch

PLAIN = {17, 18, 145, 146, 273, 274}  # counted from 1, as documented


def result(plan, seconds, *, rows, tokens):
    """A step of ``rows`` rows that gave ``tokens`` over all of them."""
    gained = [[0] * (tokens // rows + (row < tokens % rows)) for row in range(rows)]
    return StepResult(
        plan=plan,
        tokens=gained,
        num_accepted=[0] * rows,
        num_drafted=[0] * rows,
        finish=[Finish.RUNNING] * rows,
        bonus=[False] * rows,
        confidence=[0] * rows,
        no_draft=[NoDraft.DRAFTED] * rows,
        origins=gained,
        logprobs=[[]] * rows,
        seconds=PhaseSeconds(score=seconds),
    )


def walk(watch, steps, took=lambda step, plain: (0.1, 1, 1)):
    """Numbers of the plain steps among ``steps``, counted from 1; ``took`` gives seconds, rows and tokens of each."""
    plain = []
    for step in range(1, steps + 1):
        chosen = watch()
        measured = chosen.off is NoDraft.MEASURED
        assert chosen.num_draft_tokens == (0 if measured else 3)
        plain += [step] if measured else []
        seconds, rows, tokens = took(step, measured)
        watch.observe(result(chosen, seconds, rows=rows, tokens=tokens))
    return plain


def test_two_steps_are_plain_after_sixteen_and_then_every_128():
    watch = Watch(plan=Fixed(3))
    assert set(walk(watch, 300)) == PLAIN
    assert watch.max_draft_tokens == 3
    assert (FIRST, PERIOD, PLAIN_STEPS) == (16, 128, 2)


def test_short_outputs_have_no_plain_steps():
    assert walk(Watch(plan=Fixed(3)), FIRST) == []


def measured(drafted, plain, *, steps=40, rows=1, tokens=2):
    """A watch that saw every drafted step take ``drafted`` seconds and every plain one ``plain``."""
    watch = Watch(plan=Fixed(3))
    walk(
        watch,
        steps,
        lambda step, is_plain: (plain if is_plain else drafted, rows, rows if is_plain else tokens * rows),
    )
    return watch


def test_speeds_are_tokens_per_second_of_all_rows():
    speed = measured(0.5, 0.2, rows=4, tokens=3).speed
    assert speed.drafted == pytest.approx(4 * 3 / 0.5) and speed.plain == pytest.approx(4 / 0.2)


@pytest.mark.parametrize(("drafted", "pays"), [(0.2, True), (0.39, True), (0.5, False), (4.0, False)])
def test_drafting_pays_where_two_tokens_take_less_than_two_plain_steps(drafted, pays):
    speed = measured(drafted, 0.2).speed
    assert speed.pays is pays and (speed.warning is None) is pays


def test_the_warning_names_both_speeds_and_the_way_out():
    warning = Speed(drafted=5.0, plain=10.25).warning
    assert warning.startswith(
        "drafting gives 5.0 tokens/s where plain decoding would give 10.2: lower num_draft_tokens"
    )


def test_a_little_slower_is_taken_for_noise():
    assert Speed(drafted=MARGIN * 10, plain=10).pays and not Speed(drafted=MARGIN * 10 - 0.01, plain=10).pays


def test_nothing_is_known_before_the_first_plain_steps():
    assert measured(0.5, 0.2, steps=FIRST + 1).speed is None
    assert measured(0.5, 0.2, steps=FIRST + 2).speed is not None


def test_the_first_steps_the_first_plain_one_and_the_one_after_are_not_timed():
    """They warm up, or read what was missed."""
    watch = Watch(plan=Fixed(3))
    slow = {1, 2, 17, 19, 145, 147}
    walk(
        watch,
        160,
        lambda step, plain: (1000.0 if step in slow else 0.1, 1, 1 if plain else 2),
    )
    assert watch.speed == Speed(drafted=pytest.approx(20), plain=pytest.approx(10))


def test_numbers_of_rows_that_were_not_seen_both_ways_do_not_count():
    """A batch that shrinks is compared with itself alone."""
    watch = Watch(plan=Fixed(3))
    walk(watch, 40, lambda step, plain: (0.1 if plain else 0.2, 2, 2 if plain else 4))
    before = watch.speed
    for _ in range(40):
        watch.observe(result(watch(), 77.0, rows=1, tokens=1))  # no plain step with one row
    assert watch.speed == before == Speed(drafted=pytest.approx(20), plain=pytest.approx(20))


def test_a_judgement_needs_enough_drafted_steps():
    watch = Watch(plan=Fixed(3))

    def took(step, plain):
        rows = 1 if plain or step > 20 else 2
        return 0.1, rows, rows

    walk(watch, 20 + ENOUGH - 1, took)
    assert watch.speed is None
    watch.observe(result(watch(), 0.1, rows=1, tokens=1))
    assert watch.speed is not None


def test_one_slow_plain_step_among_three_decides_nothing():
    watch = Watch(plan=Fixed(3))
    walk(
        watch,
        300,
        lambda step, plain: (50.0 if step == 146 else 0.1, 1, 1 if plain else 2),
    )
    assert watch.speed.plain == pytest.approx(10)


def test_which_steps_are_plain_does_not_depend_on_what_they_took_or_gave():
    one, other = Watch(plan=Fixed(3)), Watch(plan=Fixed(3))
    first = walk(one, 150)
    second = walk(other, 150, lambda step, plain: (step * 1e-3, step % 3 + 1, step))
    assert first == second
