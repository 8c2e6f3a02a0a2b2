"""What is asked for at the same time shares a trip, and nobody is left behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from api.convoy import Convoy


class Carrier:
    """Carries numbers, each trip when it is let go."""

    def __init__(self) -> None:
        self.trips: list[list[int]] = []
        self.go = threading.Semaphore(0)

    def __call__(self, numbers: Sequence[int]) -> list[int]:
        self.trips.append(list(numbers))
        assert self.go.acquire(timeout=10)
        if 13 in numbers:
            raise ValueError("thirteen")
        return [10 * number for number in numbers]


async def under_way(carrier: Carrier, trips: int) -> None:
    async with asyncio.timeout(10):
        while len(carrier.trips) < trips:
            await asyncio.sleep(0)


def test_those_who_come_while_a_trip_is_under_way_share_the_next_by_tens():
    async def story() -> None:
        carrier = Carrier()
        convoy = Convoy(carrier, most=3)
        first = convoy.join(0)
        await under_way(carrier, 1)
        rest = [convoy.join(number) for number in range(1, 6)]
        carrier.go.release(3)
        assert await asyncio.gather(first, *rest) == [0, 10, 20, 30, 40, 50]
        assert carrier.trips == [[0], [1, 2, 3], [4, 5]]

    asyncio.run(story())


def test_a_trip_that_hangs_does_not_hold_up_the_next_one():
    async def story() -> None:
        carrier = Carrier()
        convoy = Convoy(carrier, most=1, trips=2)
        answers = [convoy.join(1)]
        await under_way(carrier, 1)
        answers.append(convoy.join(2))
        await under_way(carrier, 2)
        answers.append(convoy.join(3))
        carrier.go.release(3)
        assert await asyncio.gather(*answers) == [10, 20, 30]

    asyncio.run(story())


def test_everybody_of_a_failed_trip_hears_why_and_the_next_trip_goes():
    async def story() -> None:
        carrier = Carrier()
        carrier.go.release(3)
        convoy = Convoy(carrier, most=2)
        answers = [convoy.join(13), convoy.join(1), convoy.join(2)]
        for told in answers[:2]:
            with pytest.raises(ValueError, match="thirteen"):
                await told
        assert await answers[2] == 20

    asyncio.run(story())


def test_who_joins_at_the_very_end_of_a_trip_is_taken_along():
    async def story() -> None:
        carrier = Carrier()
        carrier.go.release(2000)
        convoy = Convoy(carrier, most=10)
        for number in range(1000):
            # The answer wakes this task in the turn of the loop in which the trip ends.
            async with asyncio.timeout(10):
                assert await convoy.join(number + 100) == 10 * (number + 100)

    asyncio.run(story())
