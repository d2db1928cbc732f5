"""No order in which threads get ready can make ranks start their collectives in different orders."""

from __future__ import annotations

import json
import threading
from collections import Counter

import pytest

from trainer.engine.sync.turns import Turns, in_order


@pytest.mark.parametrize(
    ("ranks", "words", "ways"),
    [(2, (), {"int4+8", "powersgd", "diloco"}), (4, ("cpu", "2"), {"fp32", "int4+8", "powersgd", "diloco"})],
    ids=["two nodes", "two ranks on each of two nodes"],
)
def test_collectives_in_one_queue_per_rank_do_not_wait_for_each_other_for_ever(
    ranks: int, words: tuple[str, ...], ways: set[str], forked
) -> None:
    run = forked(ranks, *words, module="tests.trainer.one_queue").result()
    assert run.code == 0, run.out + run.err
    data = json.loads(run.out.splitlines()[-1])
    assert set(data) == ways
    for way, found in data.items():
        assert found["collectives"] > 0, way
        assert found["one order"], way
        assert found["as without the queue"], way
        assert found["alike"], way


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
@pytest.mark.parametrize("collectives", [[2], [2] * 9, [4] * 9, [4, 2, 4, 2, 2, 4, 4], [2, 2]])
def test_every_collective_has_its_turn_before_its_threads_next_bucket(collectives: list[int], threads: int) -> None:
    order = in_order(collectives, threads)
    assert Counter(order) == dict(enumerate(collectives))
    for bucket in range(len(collectives) - threads):
        last = len(order) - 1 - order[::-1].index(bucket)
        assert last < order.index(bucket + threads)


def test_the_next_bucket_sets_out_while_one_is_decoded() -> None:
    assert in_order([2] * 4, 4) == [0, 1, 0, 2, 1, 3, 2, 3]


def test_a_thread_that_fails_takes_those_that_wait_for_it_with_it() -> None:
    turns, raised = Turns([2, 2], 2), []

    def wait() -> None:
        try:
            with turns.take(1):
                pass
        except ConnectionError as failure:
            raised.append(str(failure))

    waiting = threading.Thread(target=wait)
    waiting.start()
    turns.fail(ConnectionError("Connection closed by peer"))
    waiting.join(10)
    assert raised == ["Connection closed by peer"]
