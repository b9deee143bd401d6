"""Pages: written only over the version that was seen, listed by name, and gone when their time is over."""

from holdfast.domain.moments import SECOND
from holdfast.port.store import Page
from holdfast.testing.lab import Lab


def a_page_is_kept_as_it_was_written(lab: Lab) -> None:
    now = lab.clock.now()
    pages = [
        Page("tokens", "b'ü", '{"a":"ü\\u0000%s"}'),
        Page("tokens", "a%b", "[]", expires_at=now + 1),
        Page("trail", "a%b", '"other"', version=7),
    ]
    assert lab.store.page("tokens", "a%b") is None
    assert [lab.store.write_page(page, None) for page in pages] == [True] * 3
    for page in pages:
        kept = page._replace(version=1)
        assert lab.store.page(page.book, page.name) == lab.other.page(page.book, page.name) == kept
    assert lab.store.page("tokens", "a") is None
    assert lab.store.page("trail", "b'ü") is None


def pages_are_listed_by_name_book_by_book(lab: Lab) -> None:
    names = ["1", "10", "2", "B", "a", "a b", "z", "ü", "𝄞"]
    for name in reversed(names):
        lab.store.write_page(Page("book", name, "{}"), None)
    lab.store.write_page(Page("book 2", "9", "{}"), None)
    assert [page.name for page in lab.store.pages("book")] == names
    assert [page.name for page in lab.store.pages("book", newest=True)] == names[::-1]
    assert [page.name for page in lab.other.pages("book 2")] == ["9"]
    assert lab.store.pages("boo") == lab.store.pages("nothing") == []


def a_list_of_pages_goes_on_behind_a_name(lab: Lab) -> None:
    for number in range(7):
        lab.store.write_page(Page("book", f"{number}", "{}"), None)

    def names(after: str | None, limit: int, *, newest: bool = False) -> str:
        return "".join(page.name for page in lab.store.pages("book", after, limit, newest))

    assert names(None, 3) == "012"
    assert names("2", 3) == "345"
    assert names("5", 3) == "6"
    assert names("6", 3) == ""
    assert names("33", 2) == "45", "the name need not be there"
    assert names(None, 3, newest=True) == "654"
    assert names("4", 3, newest=True) == "321"
    assert names("0", 3, newest=True) == ""
    assert names("3", 0) == ""


def a_page_is_written_over_the_version_that_was_seen(lab: Lab) -> None:
    later = lab.clock.now() + SECOND
    assert lab.store.write_page(Page("book", "p", "1"), None)
    assert lab.other.write_page(Page("book", "p", "2", expires_at=later), 1)
    assert lab.store.page("book", "p") == Page("book", "p", "2", 2, later)
    assert lab.store.write_page(Page("book", "p", "3"), 2)
    assert lab.store.page("book", "p") == Page("book", "p", "3", 3)


def a_page_that_changed_meanwhile_stays_as_it_is(lab: Lab) -> None:
    for seen in (None, 1):
        assert lab.store.write_page(Page("book", "p", "{}"), seen)
    for seen in (None, 0, 1, 3):
        assert not lab.store.write_page(Page("book", "p", '"late"', expires_at=0), seen)
    assert not lab.store.write_page(Page("book", "q", "{}"), 1)
    assert lab.store.pages("book") == [Page("book", "p", "{}", 2)]


def a_removed_page_can_be_made_anew(lab: Lab) -> None:
    assert not lab.store.remove_page("book", "p")
    for name in ("p", "q"):
        lab.store.write_page(Page("book", name, "{}"), None)
    lab.store.write_page(Page("book", "p", "{}"), 1)
    assert not lab.store.remove_page("cook", "p")
    assert lab.store.remove_page("book", "p")
    assert not lab.other.remove_page("book", "p")
    assert lab.store.pages("book") == [Page("book", "q", "{}")]
    assert not lab.store.write_page(Page("book", "p", "{}"), 2)
    assert lab.store.write_page(Page("book", "p", "[]"), None)
    assert lab.store.page("book", "p") == Page("book", "p", "[]")


def a_page_whose_time_is_over_is_not_there(lab: Lab) -> None:
    now = lab.clock.now()
    for number in range(6):
        lab.store.write_page(Page("book", f"{number}", "{}", expires_at=now + (number % 2) * SECOND), None)
    assert [page.name for page in lab.store.pages("book", None, 2)] == ["1", "3"]
    lab.clock.advance(seconds=1)
    assert lab.store.page("book", "1") is None
    assert lab.store.pages("book") == lab.store.pages("book", newest=True) == []
    assert not lab.store.remove_page("book", "1")
    assert not lab.store.write_page(Page("book", "1", "[]"), 1)
    assert lab.store.write_page(Page("book", "1", "[]", expires_at=now + 9 * SECOND), None)
    assert not lab.store.write_page(Page("book", "1", "{}"), None)
    assert lab.other.pages("book") == [Page("book", "1", "[]", 1, now + 9 * SECOND)]


def pages_whose_time_is_over_are_purged_some_at_a_time(lab: Lab) -> None:
    now = lab.clock.now()
    for number in range(7):
        lab.store.write_page(Page(f"book {number % 2}", f"{number}", "{}", expires_at=now + SECOND), None)
    stays = Page("book 0", "stays", "{}"), Page("book 0", "stays too", "{}", expires_at=now + 2 * SECOND)
    longer = Page("book 0", "written over", "{}", expires_at=now + SECOND)
    for page in (*stays, longer):
        lab.store.write_page(page, None)
    lab.store.write_page(longer._replace(expires_at=now + 2 * SECOND), 1)
    assert lab.store.purge(100).pages == 0
    lab.clock.advance(seconds=1)
    removed = []
    while number := lab.other.purge(3).pages:
        removed.append(number)
    assert (max(removed), sum(removed)) == (3, 7)
    assert [page.name for page in lab.store.pages("book 0")] == ["stays", "stays too", "written over"]
    assert lab.store.pages("book 1") == []
