"""Tests curl with an agent in front of Node's HTTP servers and of nginx."""

import hashlib
import json
import os
import re
import unittest

from agent import Agent, Node, Running, folder, free_port, run

CURL = ["curl", "-sS", "--max-time", "20"]
NGINX = """
daemon off; error_log stderr; pid {folder}/pid; worker_processes 1;
events {{ }}
http {{
  access_log off; client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
  uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
  server {{ listen 127.0.0.1:{port}; root {folder}/www; }}
}}
"""


class Curl(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        app = cls.enterClassContext(Node())
        cls.agent = cls.enterClassContext(Agent(app.port, {"/limited": 2}))

    def url(self, path="/seen"):
        return f"http://127.0.0.1:{self.agent.port}{path}"

    def seen(self, *flags, path="/seen"):
        return json.loads(run([*CURL, *flags, self.url(path)]))

    def upload(self, size):
        path = os.path.join(self.enterContext(folder()), "body")
        content = os.urandom(size)
        with open(path, "wb") as file:
            file.write(content)
        return path, {"bytes": size, "sha256": hashlib.sha256(content).hexdigest()}

    def test_http_1_0_and_1_1_and_2(self):
        for flag, version in [("--http1.0", "HTTP/1.1 200"), ("--http1.1", "HTTP/1.1 200"), ("--http2-prior-knowledge", "HTTP/2 200")]:
            with self.subTest(flag):
                said = run([*CURL, "-i", flag, self.url()])
                # A server sends its own version (RFC 9110 section 6.2).
                self.assertTrue(said.startswith(version) or flag == "--http1.0" and said.startswith("HTTP/1.0 200"), said)

    def test_an_upgrade_to_h2c_is_not_taken_and_the_request_is_answered(self):
        said = run([*CURL, "-i", "--http2", self.url()])
        self.assertTrue(said.startswith("HTTP/1.1 200"), said)

    def test_an_upload_that_waits_for_100_continue(self):
        path, whole = self.upload(3_000_000)
        said = run([*CURL, "-v", "-o", "/dev/null", "-H", "expect: 100-continue", "--data-binary", f"@{path}", self.url(), "--stderr", "-"])
        self.assertIn("HTTP/1.1 100 Continue", said)
        self.assertIn("HTTP/1.1 200", said)
        seen = self.seen("-H", "expect: 100-continue", "--expect100-timeout", "15", "--data-binary", f"@{path}")
        self.assertEqual({name: seen[name] for name in whole}, whole)

    def test_a_refusal_comes_in_place_of_100_continue(self):
        path, _ = self.upload(3_000_000)
        for _ in range(3):
            flags = ["-w", "%{http_code} %{size_upload}", "-o", "/dev/null", "-H", "expect: 100-continue", "--expect100-timeout", "15"]
            said = run([*CURL, *flags, "--data-binary", f"@{path}", self.url("/limited")])
        self.assertEqual(said, "429 0")

    def test_chunked_uploads(self):
        for flag in ["--http1.1", "--http2-prior-knowledge"]:
            with self.subTest(flag):
                path, whole = self.upload(5_000_000)
                with open(path, "rb") as body:
                    seen = json.loads(run([*CURL, flag, "-T", "-", "-H", "expect:", self.url()], stdin=body))
                self.assertEqual({name: seen[name] for name in whole}, whole)
                self.assertEqual(seen["method"], "PUT")

    def test_head_and_204_have_no_body(self):
        said = run([*CURL, "-I", self.url("/large")])
        self.assertIn("HTTP/1.1 200", said)
        for flag in ["--http1.1", "--http2-prior-knowledge"]:
            self.assertEqual(run([*CURL, flag, "-w", "%{http_code}", self.url("/empty")]), "204")

    def test_one_connection_for_many_requests(self):
        # HTTP/2 is not tested: curl 7.88 with prior knowledge fails at the second request, even
        # without an agent.
        said = run([*CURL, "-w", "%{num_connects} ", "-o", "/dev/null", self.url("/[1-20]")])
        self.assertEqual(sum(map(int, said.split())), 1, said)

    def test_trailers(self):
        for flag in ["--http1.1", "--http2-prior-knowledge"]:
            with self.subTest(flag):
                # The output of -D contains the trailers, too.
                self.assertIn("x-after: it", run([*CURL, flag, "-H", "te: trailers", "-D", "-", self.url("/trailers")]).lower())

    def test_forwarding_headers(self):
        seen = self.seen("-H", "X-Forwarded-For: 10.1.2.3", "-H", "Connection: x-own", "-H", "X-Own: 1")
        self.assertEqual(seen["headers"]["x-forwarded-for"], "10.1.2.3, 127.0.0.1")
        self.assertNotIn("x-own", seen["headers"])

    def test_limits_are_told(self):
        codes = run([*CURL, "-w", "%{http_code} ", "-o", "/dev/null", self.url("/limited?[1-5]")])
        self.assertTrue(codes.endswith("429 429 429 "), codes)

    def test_connect_is_refused(self):
        said = run(["sh", "-c", f"curl -sS --max-time 20 -p -x {self.url('')} http://example.test/ -v 2>&1; true"])
        self.assertRegex(said, r"HTTP/1.1 4\d\d|HTTP/1.1 5\d\d")


class Nginx(unittest.TestCase):
    def test_ranges_and_conditions(self):
        with folder() as path:
            os.mkdir(f"{path}/www")
            with open(f"{path}/www/file", "w") as file:
                file.write("0123456789" * 1000)
            with open(f"{path}/nginx.conf", "w") as file:
                file.write(NGINX.format(folder=path, port=(port := free_port())))
            with Running(["nginx", "-c", f"{path}/nginx.conf"], port) as app, Agent(app.port) as agent:
                url = f"http://127.0.0.1:{agent.port}/file"
                self.assertEqual(run([*CURL, "-r", "5-14", url]), "5678901234")
                self.assertEqual(run([*CURL, "-r", "-3", url]), "789")
                said = run([*CURL, "-i", "-r", "0-1,4-5", url])
                self.assertIn("multipart/byteranges", said)
                self.assertEqual(run([*CURL, "-r", "99999-", "-o", "/dev/null", "-w", "%{http_code}", url]), "416")
                tag = re.search(r'etag: (".*")', run([*CURL, "-I", url]), re.IGNORECASE)[1]
                code = run([*CURL, "-H", f"if-none-match: {tag}", "-o", "/dev/null", "-w", "%{http_code}", url])
                self.assertEqual(code, "304")
                head = run([*CURL, "-I", url])
                self.assertIn("content-length: 10000", head.lower())


class Http2App(unittest.TestCase):
    def test_both_protocols_to_an_app_that_speaks_http2_alone(self):
        with Node(http2=True) as app, Agent(app.port, flags=["--upstream-http2", "always"]) as agent:
            url = f"http://127.0.0.1:{agent.port}"
            for flag in ["--http1.1", "--http2-prior-knowledge"]:
                with self.subTest(flag):
                    seen = json.loads(run([*CURL, flag, "-d", "abc", f"{url}/seen"]))
                    self.assertEqual((seen["version"], seen["bytes"], seen["method"]), ("2.0", 3, "POST"))
                    self.assertEqual(len(run([*CURL, flag, f"{url}/large"])), 1 << 20)
            self.assertIn("x-after: it", run([*CURL, "--http2-prior-knowledge", "-D", "-", f"{url}/trailers"]))


if __name__ == "__main__":
    unittest.main()
