"""One line when the source is away, and one when it is back."""

from barnabas.net.programs.mirror.reach import Reach


def test_a_source_that_is_away_is_told_once_with_address_time_and_reason() -> None:
    reach = Reach("a:1,b:2")
    assert reach.answered(5.0) is None, "it was never away"
    reach.troubled("a:1: Connection refused")
    assert not reach.is_away, "another broker may answer"
    assert reach.failed(1_000_000_000.0) == (
        "event=source_away address=a:1,b:2 since=2001-09-09T01:46:40+00:00 reason=a:1: Connection refused: "
        "it is tried again until it answers"
    )
    assert reach.is_away and reach.failed(1_000_000_001.0, "again") is None
    assert reach.answered(1_000_000_012.4) == "event=source_back address=a:1,b:2 away_s=12"
    assert reach.answered(1_000_000_013.0) is None and not reach.is_away


def test_a_reason_of_the_last_time_is_not_told_again() -> None:
    reach = Reach("a:1")
    reach.troubled("TLS")
    reach.answered(1.0)
    assert "reason=no broker can be reached:" in (reach.failed(2.0) or "")
    reach.answered(3.0)
    assert "reason=the source does not answer:" in (reach.failed(2.0, "the source does not answer") or "")
