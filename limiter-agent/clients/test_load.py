"""Sends many concurrent requests with wrk and h2load. Each is answered, and no more are admitted than the limit allows."""

import re
import unittest

from agent import Agent, Node, run

LIMIT = 1_000


class Load(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.app = cls.enterClassContext(Node())

    def h2load(self, *flags):
        with Agent(self.app.port, {"/limited": LIMIT}) as agent:
            said = run(["h2load", *flags, f"http://127.0.0.1:{agent.port}/limited"])
        counts = re.search(r"status codes: (\d+) 2xx, (\d+) 3xx, (\d+) 4xx, (\d+) 5xx", said)
        done = re.search(r"requests: (\d+) total.* (\d+) errored, (\d+) timeout", said)
        self.assertEqual(done.groups()[1:], ("0", "0"), said)
        self.assertEqual([int(count) for count in counts.groups()], [LIMIT, 0, int(done[1]) - LIMIT, 0])

    def test_h2load_http2(self):
        self.h2load("-n5000", "-c20", "-m20")

    def test_h2load_http1(self):
        self.h2load("--h1", "-n5000", "-c50")

    def test_h2load_http1_pipelined(self):
        self.h2load("--h1", "-n5000", "-c10", "-m8")

    def test_wrk(self):
        with Agent(self.app.port, {"/limited": LIMIT}) as agent:
            said = run(["wrk", "-t2", "-c50", "-d2s", f"http://127.0.0.1:{agent.port}/limited"])
        self.assertNotIn("Socket errors", said)
        total = int(re.search(r"(\d+) requests in", said)[1])
        refused = int(re.search(r"Non-2xx or 3xx responses: (\d+)", said)[1])
        # wrk does not count requests that are in flight when its time is over.
        self.assertTrue(LIMIT - 50 <= total - refused <= LIMIT, said)


if __name__ == "__main__":
    unittest.main()
