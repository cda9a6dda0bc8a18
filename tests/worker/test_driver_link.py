"""A worker's link to its driver, which is a pipe of the test."""

from __future__ import annotations

import os

import pytest

from sweeper.core.protocol import NOTHING, SHARED, LeaseGrant, LeaseNews, LeaseRequest
from sweeper.worker.driver_link import DriverLink


def test_grants_answer_requests_and_a_stop_is_heard_as_soon_as_the_clock_is_read() -> None:
    asked: list[LeaseRequest] = []
    read, write = os.pipe()
    link = DriverLink(read, asked.append)
    lease = link.lease
    lease.may_share = True

    def tell(news: LeaseNews) -> None:
        os.write(write, news.dumps().encode())

    tell(LeaseNews(1.0, LeaseGrant(neighbours=(7,))))
    link._hear()
    lease.take(SHARED)
    assert lease.neighbours == {7}
    before_s = lease.clock()
    tell(LeaseNews(6.0))
    tell(LeaseNews(8.0))
    assert lease.clock() - before_s == pytest.approx(-7.0, abs=0.5)
    lease.leave()
    assert [request.wants for request in asked] == [SHARED, NOTHING]
    os.close(write)
