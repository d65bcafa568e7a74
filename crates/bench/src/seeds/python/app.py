"""The app of `cargo xtask bench seeds` and `shared`: alone, with traffik, or with slowapi.

WEIR_SEEDS_LIMITER names the limiter, and WEIR_SEEDS_STORE the URL of its counters. WEIR_SEEDS_PLAN has the routes and
their limits as JSON; the agent gets its policy from the same plan. Every limiter counts by the header x-key.
"""

import json
import os
import re

from fastapi import Depends, FastAPI, Request, Response, WebSocket, WebSocketDisconnect

LIMITER = os.environ["WEIR_SEEDS_LIMITER"]
STORE = os.environ["WEIR_SEEDS_STORE"]
ROUTES = json.loads(os.environ["WEIR_SEEDS_PLAN"])["routes"]
KEY = "x-key"


def plain(app, route, **options):
    @app.get(route["path"], **options)
    async def answer():
        return {"status": "ok"}


def echo(app, route, passes):
    """Sends back each message for which `passes` is true."""

    @app.websocket(route["path"])
    async def messages(socket: WebSocket):
        await socket.accept()
        try:
            while True:
                text = await socket.receive_text()
                if passes is None or await passes(socket):
                    await socket.send_text(text)
        except WebSocketDisconnect:
            pass


def alone():
    app = FastAPI()
    for route in ROUTES:
        if route["messages"]:
            echo(app, route, None)
        else:
            plain(app, route)
    return app


def with_traffik(in_middleware):
    from traffik import HTTPThrottle, WebSocketThrottle, is_throttled, strategies
    from traffik.backends.inmemory import InMemoryBackend
    from traffik.headers import DEFAULT_HEADERS_ALWAYS, Header, Headers
    from traffik.middleware import MiddlewareThrottle, ThrottleMiddleware
    from traffik.rates import Rate
    from traffik.registry import Bypass, Rule
    from traffik.strategies.custom import GCRAStrategy

    async def client(connection):
        return connection.headers[KEY]

    # Several processes share the counters of a store, so none of them clears the counters.
    if STORE.startswith("redis:"):
        from traffik.backends.redis import RedisBackend

        backend = RedisBackend(STORE, namespace="bench", identifier=client, persistent=True)
    elif STORE.startswith("memcached:"):
        from traffik.backends.memcached import MemcachedBackend

        backend = MemcachedBackend(STORE, namespace="bench", identifier=client, persistent=True)
    else:
        # As in traffik's own benchmarks.
        backend = InMemoryBackend(namespace="bench", identifier=client, persistent=False, number_of_shards=5)
    app = FastAPI(lifespan=backend.lifespan)

    def strategy(limit):
        burst = limit["burst"]
        match limit["strategy"]:
            case "FixedWindow":
                return strategies.FixedWindowStrategy()
            case "SlidingWindowCounter":
                return strategies.SlidingWindowCounterStrategy()
            case "SlidingWindowLog":
                return strategies.SlidingWindowLogStrategy()
            case "TokenBucket":
                return strategies.TokenBucketStrategy(burst_size=burst)
            case "TokenBucketWithDebt":
                return strategies.TokenBucketWithDebtStrategy(burst_size=burst, max_debt=limit["debt"])
            case "LeakyBucket":
                return strategies.LeakyBucketStrategy()
            case "GCRA":
                return GCRAStrategy(burst_tolerance_ms=(burst - 1) * limit["millis"] / limit["requests"])

    def headers(fields):
        if fields == "None":
            return None
        if fields == "Standard":
            return DEFAULT_HEADERS_ALWAYS
        values = {
            "{limit}": Header.LIMIT(when="always"),
            "{remaining}": Header.REMAINING(when="always"),
            "{resetAfter}": Header.RESET_SECONDS(when="always"),
        }
        return Headers({name: values.get(value) or Header(value, when="always") for name, value in fields["Own"]})

    def rule(gate):
        path = re.compile(gate["path"]) if gate["regex"] else gate["path"]
        return (Bypass if gate["bypass"] else Rule)(path=path, methods=["GET"])

    def answer_with_headers(route, throttle):
        @app.get(route["path"], dependencies=[Depends(throttle)])
        async def answer(request: Request, response: Response):
            await throttle.set_headers(response, request)
            return {"status": "ok"}

    def passes(throttle):
        async def check(socket):
            # Sends a notice if the message is beyond the limit.
            await throttle(socket)
            return not is_throttled(socket)

        return check

    throttles = []
    for number, route in enumerate(ROUTES):
        limit = route["limit"]
        if limit is None:
            plain(app, route)
            continue
        throttle = (WebSocketThrottle if route["messages"] else HTTPThrottle)(
            uid=f"bench-{number}",
            rate=Rate(limit=limit["requests"], milliseconds=limit["millis"]),
            backend=backend,
            strategy=strategy(limit),
            headers=headers(route["fields"]),
            rules=[rule(gate) for gate in route["gates"]],
        )
        if route["messages"]:
            echo(app, route, passes(throttle))
        elif in_middleware:
            throttles.append(MiddlewareThrottle(throttle, path=f"^{route['path']}$"))
            plain(app, route)
        elif route["fields"] != "None":
            answer_with_headers(route, throttle)
        else:
            plain(app, route, dependencies=[Depends(throttle)])
    if in_middleware:
        app.add_middleware(ThrottleMiddleware, middleware_throttles=throttles, backend=backend)
    return app


def with_slowapi(in_middleware):
    from slowapi import Limiter, _rate_limit_exceeded_handler
    from slowapi.errors import RateLimitExceeded
    from slowapi.middleware import SlowAPIASGIMiddleware

    strategies = {
        "FixedWindow": "fixed-window",
        "SlidingWindowLog": "moving-window",
        "SlidingWindowCounter": "sliding-window-counter",
    }

    def limiter_of(route, defaults):
        return Limiter(
            key_func=lambda request: request.headers[KEY],
            strategy=strategies[route["limit"]["strategy"]],
            headers_enabled=route["fields"] == "Standard",
            default_limits=defaults,
            storage_uri=STORE,
        )

    def limit(route):
        return f"{route['limit']['requests']} per {route['limit']['millis'] // 1000} second"

    def endpoint(number):
        # `response` is for the headers. slowapi keeps limits by the name of the function.
        async def answer(request: Request, response: Response):
            return {"status": "ok"}

        answer.__name__ = f"answer_{number}"
        return answer

    app = FastAPI()
    limited = [route for route in ROUTES if route["limit"]]
    # A middleware has one limit for all paths.
    app.state.limiter = limiter_of(limited[0], [limit(limited[0])] if in_middleware else [])
    app.add_exception_handler(RateLimitExceeded, _rate_limit_exceeded_handler)
    if in_middleware:
        app.add_middleware(SlowAPIASGIMiddleware)
    for number, route in enumerate(ROUTES):
        answer = endpoint(number)
        if route["limit"] is None:
            answer = app.state.limiter.exempt(answer)
        elif not in_middleware:
            answer = limiter_of(route, []).limit(limit(route))(answer)
        app.get(route["path"])(answer)
    return app


name, _, how = LIMITER.partition("-")
make = {"none": lambda _: alone(), "traffik": with_traffik, "slowapi": with_slowapi}[name]
app = make(how == "middleware")
