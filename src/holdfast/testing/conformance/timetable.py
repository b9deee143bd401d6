"""Schedules: written only over the version that was seen."""

from holdfast.port.store import ScheduleRecord
from holdfast.testing.lab import Lab


def a_schedule_is_kept_as_it_was_saved(lab: Lab) -> None:
    now = lab.clock.now()
    records = [
        ScheduleRecord("b'ü", '{"cron":"0 8 * * *","tz":"Europe/Berlin"}', now),
        ScheduleRecord("a", "{}", now + 1, now - 1, paused=True),
        ScheduleRecord("C", '{"every":5}', 0, None, paused=False, version=7),
    ]
    assert lab.store.schedules() == []
    assert [lab.store.save_schedule(record, None) for record in records] == [True] * 3
    expected = sorted(record._replace(version=1) for record in records)
    assert lab.store.schedules() == lab.other.schedules() == expected


def a_schedule_is_written_over_the_version_that_was_seen(lab: Lab) -> None:
    assert lab.store.save_schedule(ScheduleRecord("daily", "{}", 5), None)
    fired = ScheduleRecord("daily", '{"n":2}', 9, 5, paused=True)
    assert lab.store.save_schedule(fired, 1)
    assert lab.store.schedules() == [fired._replace(version=2)]
    assert lab.store.save_schedule(ScheduleRecord("daily", "{}", 10, 9), 2)
    assert lab.store.schedules() == [ScheduleRecord("daily", "{}", 10, 9, paused=False, version=3)]


def a_schedule_that_changed_meanwhile_stays_as_it_is(lab: Lab) -> None:
    for seen in (None, 1):
        assert lab.store.save_schedule(ScheduleRecord("daily", "{}", 5), seen)
    before = lab.store.schedules()
    for seen in (None, 0, 1, 3):
        assert not lab.store.save_schedule(ScheduleRecord("daily", '"late"', 6), seen)
    assert not lab.store.save_schedule(ScheduleRecord("nightly", "{}", 6), 1)
    assert lab.store.schedules() == before


def a_removed_schedule_can_be_made_anew(lab: Lab) -> None:
    assert not lab.store.remove_schedule("daily")
    lab.store.save_schedule(ScheduleRecord("daily", "{}", 5), None)
    lab.store.save_schedule(ScheduleRecord("daily", "{}", 6), 1)
    lab.store.save_schedule(ScheduleRecord("other", "{}", 6), None)
    assert lab.store.remove_schedule("daily")
    assert not lab.store.remove_schedule("daily")
    assert [record.name for record in lab.store.schedules()] == ["other"]
    assert not lab.store.save_schedule(ScheduleRecord("daily", "{}", 7), 2), "a firing must not bring it back"
    assert lab.store.save_schedule(ScheduleRecord("daily", "{}", 7), None)
    assert lab.store.schedules()[0].version == 1
