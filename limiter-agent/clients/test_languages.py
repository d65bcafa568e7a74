"""Tests the HTTP clients of Node's and Go's standard libraries."""

import os
import unittest

from agent import HERE, Agent, Node, run


class Languages(unittest.TestCase):
    def test_node(self):
        with Node() as app, Agent(app.port) as agent:
            run(["node", os.path.join(HERE, "client.mjs"), agent.port])
            # The agent must have closed all cancelled connections. Node closes its idle connections
            # when it ends.
            agent.wait_until_nobody_is_connected()

    def test_go(self):
        with Node() as app, Agent(app.port, {"/limited": 2}) as agent:
            run(["go", "run", os.path.join(HERE, "client.go"), agent.port])
            agent.wait_until_nobody_is_connected()


if __name__ == "__main__":
    unittest.main()
