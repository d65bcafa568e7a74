"""Tests grpcio's client and server with an agent between them."""

import concurrent.futures
import unittest

import grpc

from agent import Agent, free_port

IDENTITY = {"request_serializer": bytes, "response_deserializer": bytes}
DEADLINE = 20
CALLS = 10


def unary(request, context):
    if request == b"fail":
        context.set_trailing_metadata((("x-why-bin", b"\x00\xff"), ("x-why", "asked")))
        context.abort(grpc.StatusCode.NOT_FOUND, "nothing \u2713 there")
    context.send_initial_metadata((("x-initial", "1"),))
    context.set_trailing_metadata((("x-trailing", "2"),))
    return request[::-1]


def server_stream(request, _context):
    for number in range(int(request)):
        yield str(number).encode() * 1000


def client_stream(requests, _context):
    return str(sum(len(request) for request in requests)).encode()


def both(requests, _context):
    for request in requests:
        yield request[::-1]


class Handler(grpc.GenericRpcHandler):
    def service(self, details):
        return {
            "/t.T/Unary": grpc.unary_unary_rpc_method_handler(unary),
            "/t.T/Limited": grpc.unary_unary_rpc_method_handler(unary),
            "/t.T/LimitedStream": grpc.unary_stream_rpc_method_handler(server_stream),
            "/t.T/ServerStream": grpc.unary_stream_rpc_method_handler(server_stream),
            "/t.T/ClientStream": grpc.stream_unary_rpc_method_handler(client_stream),
            "/t.T/Both": grpc.stream_stream_rpc_method_handler(both),
        }.get(details.method)


class Grpc(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        port = free_port()
        server = grpc.server(concurrent.futures.ThreadPoolExecutor(8))
        server.add_generic_rpc_handlers((Handler(),))
        server.add_insecure_port(f"127.0.0.1:{port}")
        server.start()
        cls.addClassCleanup(server.stop, None)
        agent = cls.enterClassContext(Agent(port, {"/t.T/Limited": 3, "/t.T/LimitedStream": 1}))
        cls.channel = cls.enterClassContext(grpc.insecure_channel(f"127.0.0.1:{agent.port}"))

    def test_unary_with_initial_and_trailing_metadata(self):
        answer, call = self.channel.unary_unary("/t.T/Unary", **IDENTITY).with_call(b"abc", timeout=DEADLINE)
        self.assertEqual(answer, b"cba")
        self.assertIn(("x-initial", "1"), call.initial_metadata())
        self.assertIn(("x-trailing", "2"), call.trailing_metadata())

    def test_unary_of_four_megabytes_less_a_bit(self):
        message = bytes(4 * 1024 * 1024 - 100)
        self.assertEqual(self.channel.unary_unary("/t.T/Unary", **IDENTITY)(message, timeout=DEADLINE), message)

    def test_an_error_of_the_app_keeps_its_status_and_trailers(self):
        with self.assertRaises(grpc.RpcError) as raised:
            self.channel.unary_unary("/t.T/Unary", **IDENTITY)(b"fail", timeout=DEADLINE)
        error = raised.exception
        self.assertEqual((error.code(), error.details()), (grpc.StatusCode.NOT_FOUND, "nothing \u2713 there"))
        self.assertIn(("x-why-bin", b"\x00\xff"), error.trailing_metadata())

    def test_a_method_that_there_is_not(self):
        with self.assertRaises(grpc.RpcError) as raised:
            self.channel.unary_unary("/t.T/None", **IDENTITY)(b"", timeout=DEADLINE)
        self.assertEqual(raised.exception.code(), grpc.StatusCode.UNIMPLEMENTED)

    def test_server_stream(self):
        answers = list(self.channel.unary_stream("/t.T/ServerStream", **IDENTITY)(b"500", timeout=DEADLINE))
        self.assertEqual(answers, [str(number).encode() * 1000 for number in range(500)])

    def test_client_stream(self):
        requests = (bytes(10_000) for _ in range(300))
        self.assertEqual(self.channel.stream_unary("/t.T/ClientStream", **IDENTITY)(requests, timeout=DEADLINE), b"3000000")

    def test_both_streams_answer_by_turns(self):
        answers = self.channel.stream_stream("/t.T/Both", **IDENTITY)
        ready = concurrent.futures.Future()
        received = []

        def requests():
            yield b"ab"
            # The second message is sent after the first answer: the agent must not wait for the end
            # of the stream.
            ready.result(DEADLINE)
            yield b"cd"

        for answer in answers(requests(), timeout=DEADLINE):
            received.append(answer)
            if not ready.done():
                ready.set_result(None)
        self.assertEqual(received, [b"ba", b"dc"])

    def test_beyond_the_limit_is_resource_exhausted(self):
        call = self.channel.unary_unary("/t.T/Limited", **IDENTITY)
        codes = []
        for _ in range(CALLS):
            try:
                call(b"x", timeout=DEADLINE)
                codes.append(grpc.StatusCode.OK)
            except grpc.RpcError as error:
                codes.append(error.code())
                self.assertTrue(error.details())
        expected = [grpc.StatusCode.OK] * 3 + [grpc.StatusCode.RESOURCE_EXHAUSTED] * (CALLS - 3)
        self.assertEqual(codes, expected)

    def test_a_stream_beyond_the_limit_is_resource_exhausted(self):
        call = self.channel.unary_stream("/t.T/LimitedStream", **IDENTITY)
        self.assertEqual(len(list(call(b"3", timeout=DEADLINE))), 3)
        with self.assertRaises(grpc.RpcError) as raised:
            list(call(b"3", timeout=DEADLINE))
        self.assertEqual(raised.exception.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)

    def test_a_deadline_ends_a_stream_and_the_channel_goes_on(self):
        def forever():
            yield b"a"
            concurrent.futures.Future().result(2)

        with self.assertRaises(grpc.RpcError) as raised:
            self.channel.stream_unary("/t.T/ClientStream", **IDENTITY)(forever(), timeout=0.3)
        self.assertEqual(raised.exception.code(), grpc.StatusCode.DEADLINE_EXCEEDED)
        self.assertEqual(self.channel.unary_unary("/t.T/Unary", **IDENTITY)(b"abc", timeout=DEADLINE), b"cba")

    def test_a_hundred_calls_at_once(self):
        call = self.channel.unary_unary("/t.T/Unary", **IDENTITY)
        futures = [call.future(str(number).encode(), timeout=DEADLINE) for number in range(100)]
        self.assertEqual([future.result() for future in futures], [str(number).encode()[::-1] for number in range(100)])


if __name__ == "__main__":
    unittest.main()
