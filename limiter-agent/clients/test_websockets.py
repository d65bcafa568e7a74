"""Tests the library `websockets` as client and app, with an agent between them."""

import asyncio
import contextlib
import json
import threading
import unittest

import websockets
from websockets.sync.client import connect
from websockets.sync.server import serve

from agent import Agent


class WebSockets(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        def echo(socket):
            with contextlib.suppress(websockets.exceptions.ConnectionClosed):
                for message in socket:
                    socket.send(message)

        def chat_if_offered(_connection, offered):
            return "chat" if "chat" in offered else None

        server = serve(echo, "127.0.0.1", 0, max_size=1 << 24, select_subprotocol=chat_if_offered)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.socket.getsockname()[1]
        limits = {"/messages": 3, "/opening": 1}
        cls.addClassCleanup(server.shutdown)
        cls.agent = cls.enterClassContext(Agent(port, limits, per={"/messages": "Message"}))

    def url(self, path):
        return f"ws://127.0.0.1:{self.agent.port}{path}"

    def test_echo_with_compression_and_a_subprotocol(self):
        with connect(self.url("/plain"), subprotocols=["chat"]) as socket:
            self.assertEqual(socket.subprotocol, "chat")
            for message in ["text \u2713", b"\x00\xff", "x" * 100_000, ""]:
                socket.send(message)
                self.assertEqual(socket.recv(20), message)

    def test_a_message_of_eight_megabytes_in_pieces(self):
        with connect(self.url("/plain"), max_size=1 << 24, compression=None) as socket:
            socket.send(["x" * (1 << 20)] * 8)
            self.assertEqual(len(socket.recv(20)), 8 << 20)

    def test_ping_and_close_code(self):
        with connect(self.url("/plain")) as socket:
            self.assertTrue(socket.ping().wait(20))
            socket.close(4001, "bye")
            self.assertEqual((socket.close_code, socket.close_reason), (4001, "bye"))

    def test_messages_beyond_the_limit_get_a_notice(self):
        with connect(self.url("/messages")) as socket:
            answers = []
            for number in range(5):
                socket.send(f"m{number}")
                answers.append(socket.recv(20))
        self.assertEqual(answers[:3], ["m0", "m1", "m2"])
        for notice in answers[3:]:
            self.assertIsInstance(json.loads(notice), dict)

    def test_a_connection_beyond_the_limit_is_refused(self):
        with connect(self.url("/opening")):
            pass
        with self.assertRaises(websockets.exceptions.InvalidStatus) as raised:
            self.enterContext(connect(self.url("/opening")))
        self.assertEqual(raised.exception.response.status_code, 429)

    def test_fifty_connections_at_once(self):
        async def one(number):
            async with websockets.connect(self.url("/plain")) as socket:
                await socket.send(str(number))
                return await asyncio.wait_for(socket.recv(), 20)

        async def all_of_them():
            return await asyncio.gather(*(one(number) for number in range(50)))

        self.assertEqual(asyncio.run(all_of_them()), [str(number) for number in range(50)])


if __name__ == "__main__":
    unittest.main()
