"""How long the broker's loop has not answered."""

import pytest

from barnabas.net.metadata.loop_watch import ASK_INTERVAL_MS, MAX_COUNTED_MS, ORDINARY_PART, LoopWatch

LIMIT_MS = 1_000


def test_a_loop_that_answers_is_never_silent() -> None:
    watch = LoopWatch(LIMIT_MS)
    for now_ms in range(0, 10 * LIMIT_MS, ASK_INTERVAL_MS):
        assert watch.tick(now_ms)
        watch.answered()
        assert not watch.is_silent and watch.silent_ms == 0


def test_a_loop_without_an_answer_is_asked_once_and_silent_after_the_limit() -> None:
    watch = LoopWatch(LIMIT_MS)
    assert watch.tick(0)
    for now_ms in range(ASK_INTERVAL_MS, LIMIT_MS, ASK_INTERVAL_MS):
        assert not watch.tick(now_ms) and not watch.is_silent
    assert not watch.tick(LIMIT_MS) and watch.is_silent
    watch.answered()
    assert not watch.is_silent
    assert watch.tick(LIMIT_MS + ASK_INTERVAL_MS)


def test_a_process_that_was_stopped_as_a_whole_is_not_silent() -> None:
    watch = LoopWatch(LIMIT_MS)
    watch.tick(0)
    watch.tick(60_000)
    assert watch.silent_ms == MAX_COUNTED_MS and not watch.is_silent


def test_a_clock_that_goes_back_counts_for_nothing() -> None:
    watch = LoopWatch(LIMIT_MS)
    watch.tick(1_000)
    watch.tick(0)
    assert watch.silent_ms == 0


def test_the_clock_of_what_is_heard_stands_still_in_a_silence_and_never_goes_back() -> None:
    watch = LoopWatch(LIMIT_MS)
    told: list[int] = []
    for now_ms in range(0, 5_000, ASK_INTERVAL_MS):
        watch.tick(now_ms)
        told.append(watch.heard_ms(now_ms))
        if not 1_000 <= now_ms < 3_000:
            watch.answered()
            told.append(watch.heard_ms(now_ms))
    assert told == sorted(told)
    assert told[-1] == 4_900 - (2_000 - LIMIT_MS // ORDINARY_PART)


@pytest.mark.parametrize("answers_after_ms", [50, 150, 250])
def test_the_clock_goes_on_with_a_loop_that_is_busy_all_the_time(answers_after_ms: int) -> None:
    """It ran at a third of its pace, so a broker that had died was fenced after three sessions."""
    watch = LoopWatch(LIMIT_MS)
    answer_ms = 0
    for now_ms in range(0, 60_000, 10):
        if answer_ms and now_ms >= answer_ms:
            watch.answered()
            answer_ms = 0
        if now_ms % ASK_INTERVAL_MS == 0 and watch.tick(now_ms):
            answer_ms = now_ms + answers_after_ms
    assert watch.heard_ms(60_000) == 60_000
