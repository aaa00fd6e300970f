"""Who gets a place: shares of keys, of tenants, of those without a key, and what is kept for operators."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack

import pytest

from service.access.places import (
    FOLLOWERS,
    FOLLOWERS_OF_KEY,
    FOLLOWERS_OF_TENANT,
    LATELY_S,
    LAYER_FETCHES,
    SCRAPES,
    NoPlace,
    Places,
)
from service.access.principal import OPEN, Principal, Role

OPERATOR = Principal("default", Role.ADMIN, "operator")


def holder(key: str, tenant: str = "acme") -> Principal:
    return Principal(tenant, Role.WRITE, key)


@pytest.fixture
def held() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def take(held: ExitStack, place: AbstractContextManager[None]) -> None:
    held.enter_context(place)


def full(places: Places, who: Principal | None, *, held: ExitStack, address: str = "a") -> tuple[int, str]:
    """How many places this caller gets, and what it is told then."""
    for count in range(1000):
        try:
            take(held, places.request(who, address=address))
        except NoPlace as error:
            return count, error.kind
    raise AssertionError("it gets everything")


def contested(total: int) -> Places:
    """Places that another key asked for lately."""
    places = Places(total, has_keys=True)
    with places.request(holder("another"), address="a"):
        return places


def test_a_key_gets_half_and_a_tenant_three_quarters(held: ExitStack) -> None:
    places = contested(64)
    assert full(places, holder("a"), held=held) == (32, "key")
    assert full(places, holder("b"), held=held) == (12, "tenant")
    assert full(places, holder("c", "other"), held=held) == (8, "all")
    assert full(places, OPERATOR, held=held) == (8, "all")
    assert full(places, None, held=held) == (0, "all")


def test_the_last_few_places_are_for_keys_that_hold_none(held: ExitStack) -> None:
    places = Places(64, has_keys=True)
    assert full(places, holder("loud"), held=held) == (44, "key")
    for quiet in range(4):
        take(held, places.request(holder(f"quiet {quiet}"), address="b"))
    with pytest.raises(NoPlace, match="48 requests of this tenant"):
        places.request(holder("late"), address="b")
    assert full(places, holder("loud too", "other"), held=held) == (4, "all")
    for quiet in range(4):
        take(held, places.request(holder(f"other {quiet}", "other"), address="b"))
    with pytest.raises(NoPlace):
        places.request(holder("late", "other"), address="b")


def test_a_key_that_is_alone_gets_what_its_tenant_may_have_until_another_asks(held: ExitStack) -> None:
    now = [0.0]
    places = Places(64, has_keys=True, clock=lambda: now[0])
    with ExitStack() as first:
        assert full(places, holder("a"), held=first) == (44, "key")
        take(held, places.request(holder("b", "other"), address="b"))  # there is room for whoever comes
    assert full(places, holder("a"), held=held) == (32, "key")
    now[0] = LATELY_S + 1
    assert full(places, holder("a"), held=held) == (44 - 32, "key")


def test_who_has_no_key_gets_a_quarter_and_one_address_half_of_it(held: ExitStack) -> None:
    places = Places(64, has_keys=True)
    assert full(places, None, held=held) == (8, "address")
    assert full(places, None, held=held, address="b") == (8, "address")
    assert full(places, None, held=held, address="c") == (0, "anonymous")


def test_without_keys_one_caller_gets_everything(held: ExitStack) -> None:
    assert full(Places(5, has_keys=False), OPEN, held=held) == (5, "all")


@pytest.mark.parametrize("total", [1, 2, 3])
def test_everybody_gets_a_place_of_very_few(total: int) -> None:
    for who in (holder("a"), OPERATOR, None):
        with Places(total, has_keys=True).request(who, address="a"):
            pass


def test_who_has_left_is_not_counted_any_more(held: ExitStack) -> None:
    places = contested(64)
    with ExitStack() as gone:
        assert full(places, holder("a"), held=gone) == (32, "key")
        assert places.taken == 32
    assert places.taken == 0
    assert full(places, holder("a"), held=held) == (32, "key")


def test_followers_scrapes_and_fetches_take_no_places(held: ExitStack) -> None:
    places = Places(64, has_keys=True)
    for tenant in range(FOLLOWERS // FOLLOWERS_OF_TENANT):
        for number in range(FOLLOWERS_OF_TENANT):
            take(held, places.follower(holder(f"{tenant}-{number // FOLLOWERS_OF_KEY}", str(tenant))))
    for who, kind in ((holder("0-0", "0"), "key"), (holder("b", "0"), "tenant")):
        with pytest.raises(NoPlace) as refused:
            places.follower(who)
        assert refused.value.kind == f"followers_of_{kind}"
    with pytest.raises(NoPlace, match="end one of them"):
        places.follower(holder("c", "another"))
    for _ in range(SCRAPES):
        take(held, places.scrape())
    with pytest.raises(NoPlace):
        places.scrape()
    for _ in range(LAYER_FETCHES):
        take(held, places.fetch())
    with pytest.raises(NoPlace):
        places.fetch()
    assert (places.taken, places.followers) == (0, FOLLOWERS)
