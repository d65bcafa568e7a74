"""Runs windows on a clock of made-up times, and writes their decisions: see ../README.md.

The sliding window log and counter are from the package `limits`. The fixed window of that package starts with the first
request, and its counter rounds. So this program has its own fixed window, aligned to the clock, and its own exact counter,
written from their definitions.
"""

import random
import time
from fractions import Fraction

SECOND = 1_000_000_000
START = 1_000_000 * SECOND  # so early that a float still has a resolution of 0.2 ns

now = START
time.time = lambda: now / SECOND

from limits import RateLimitItemPerSecond  # noqa: E402  the package uses the time.time above
from limits.storage import MemoryStorage  # noqa: E402
from limits.strategies import MovingWindowRateLimiter, SlidingWindowCounterRateLimiter  # noqa: E402


class Unswept(MemoryStorage):
    """A storage without the thread that sweeps by the wall clock: each request ignores expired entries."""

    def _MemoryStorage__schedule_expiry(self):
        pass


class FixedWindow:
    def __init__(self, requests, period):
        self.requests, self.period, self.window, self.used = requests, period, None, 0

    def hit(self, cost):
        window = now // self.period
        if window != self.window:
            self.window, self.used = window, 0
        if self.used + cost > self.requests:
            return False
        self.used += cost
        return True


class ExactCounter:
    """A request passes if the weighted sum of both windows, including this request, is within the limit."""

    def __init__(self, requests, period):
        self.requests, self.period, self.admitted = requests, period, {}

    def hit(self, cost):
        window = now // self.period
        rest = Fraction(self.period - now % self.period, self.period)
        current = self.admitted.get(window, 0) + cost
        if self.admitted.get(window - 1, 0) * rest + current > self.requests:
            return False
        self.admitted[window] = current
        return True


class Limits:
    def __init__(self, strategy, requests, period):
        self.strategy = strategy(Unswept())
        self.item = RateLimitItemPerSecond(requests, period // SECOND)

    def hit(self, cost):
        return self.strategy.hit(self.item, "key", cost=cost)


class SlidingWindowLog(Limits):
    def __init__(self, requests, period):
        super().__init__(MovingWindowRateLimiter, requests, period)


class SlidingWindowCounter(Limits):
    """`limits` rounds the weighted sum down before it adds the cost, so it exceeds the limit by less than one request.
    Each request comes at a time at which the rounding makes no difference, also three nanoseconds earlier or later."""

    def __init__(self, requests, period):
        super().__init__(SlidingWindowCounterRateLimiter, requests, period)
        self.requests, self.period, self.admitted = requests, period, {}

    def is_disputed(self, cost):
        window = now // self.period
        previous, current = self.admitted.get(window - 1, 0), self.admitted.get(window, 0)
        if previous == 0 or cost > self.requests:
            return False  # all numbers are whole, so nothing is rounded
        rest = Fraction(self.period - now % self.period, self.period)
        over = previous * rest + current + cost - self.requests
        return -Fraction(3 * self.requests, self.period) < over < 1 + Fraction(3 * self.requests, self.period) and over != 0

    def hit(self, cost):
        admitted = super().hit(cost)
        if admitted:
            window = now // self.period
            self.admitted[window] = self.admitted.get(window, 0) + cost
        return admitted


LIMITS = [(1, SECOND), (10, SECOND), (100, SECOND), (3, 10 * SECOND), (7, SECOND), (50, 60 * SECOND), (5, 86_400 * SECOND)]


def steady(requests, period, each):
    return period * each // requests + random.choice([-1, 0, 1]), each


def hurried(requests, period, each):
    return random.randrange(period * each // requests), each


def bursts(requests, period, each):
    return (random.randrange(2 * period) if random.random() < 0.2 else 0), random.randint(1, max(1, requests // 3))


def costs(requests, period, each):
    cost = random.randint(1, requests + 1)
    return random.randrange(2 * period * cost // requests), cost


def boundaries(requests, period, each):
    """Requests at the end of a window, and at its start."""
    return random.choice([0, 1, period - now % period - 1, period - now % period]), random.randint(1, max(1, requests // 2))


print("# Fixed window and exact counter by definition, and limits 5.8.0, written by python/main.py; the lines are explained in README.md")
for strategy in (FixedWindow, ExactCounter, SlidingWindowCounter, SlidingWindowLog):
    for requests, period in LIMITS:
        for pattern in (steady, hurried, bursts, costs, boundaries):
            now = START
            random.seed(f"{requests} {period} {pattern.__name__}")
            name = strategy.__name__.replace("Exact", "SlidingWindow")
            print("=", name, requests, period, 0, pattern.__name__)
            limiter, last = strategy(requests, period), 0
            for _ in range(35):
                wait, cost = pattern(requests, period, max(1, requests // 8))
                now += wait
                while strategy is SlidingWindowCounter and limiter.is_disputed(cost):
                    now += max(1, period // 1000)
                print(now - last, "allow", cost, "yes" if limiter.hit(cost) else "no")
                last = now
