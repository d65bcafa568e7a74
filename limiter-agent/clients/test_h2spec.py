"""Runs h2spec, which tests the requirements of RFC 9113 and RFC 7541 for a server one by one."""

import os
import unittest
import xml.etree.ElementTree as xml

from agent import Agent, Node, folder, run

H2SPEC = "github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible"

# A port that also supports HTTP/1.1 answers an invalid HTTP/2 preface with 400 in HTTP/1.1, and
# closes.
KNOWN = {"Sends invalid connection preface"}


class H2spec(unittest.TestCase):
    def one(self, app, *flags):
        with folder() as path, Agent(app.port, flags=flags) as agent:
            report = os.path.join(path, "report.xml")
            # h2spec fails if any case fails.
            words = ["go", "run", H2SPEC, "-h", "127.0.0.1", "-p", agent.port, "-P", "/seen", "-o", "5", "-j", report]
            run(["sh", "-c", '"$@" || test -s "$0"', report, *words], env={**os.environ, "GOFLAGS": "-mod=mod"})
            cases = xml.parse(report).getroot().findall(".//testcase")
        wrong = {
            case.get("classname") for case in cases if case.find("failure") is not None or case.find("error") is not None
        }
        self.assertGreater(len(cases), 140)
        self.assertEqual(wrong, KNOWN)

    def test_with_an_app_that_speaks_http1(self):
        with Node() as app:
            self.one(app)

    def test_with_an_app_that_speaks_http2(self):
        with Node(http2=True) as app:
            self.one(app, "--upstream-http2", "always")


if __name__ == "__main__":
    unittest.main()
