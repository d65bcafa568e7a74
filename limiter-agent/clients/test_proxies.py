"""Tests nginx, HAProxy and Envoy as clients of the agent, and nginx and HAProxy as its app."""

import concurrent.futures
import http.client
import json
import os
import unittest

from agent import Agent, Node, Running, folder, free_port

NGINX = """
daemon off; error_log stderr; pid {folder}/pid; worker_processes 1;
events {{ }}
http {{
  access_log off; client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
  uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
  upstream next {{ server 127.0.0.1:{to}; keepalive 8; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{ proxy_pass http://next; proxy_http_version 1.1; proxy_set_header connection ""; }}
  }}
}}
"""
HAPROXY = """
defaults
  mode http
  timeout connect 5s
  timeout client 20s
  timeout server 20s
  retries 3
frontend in
  bind 127.0.0.1:{port}
  default_backend next
backend next
  http-reuse always
  server next 127.0.0.1:{to} {proto}
"""
ENVOY = """
static_resources:
  listeners:
  - address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: in
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{ "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }}
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes:
              - match: {{ prefix: / }}
                route:
                  cluster: next
                  retry_policy: {{ retry_on: "connect-failure,reset,refused-stream", num_retries: 2 }}
  clusters:
  - name: next
    connect_timeout: 5s
    load_assignment:
      cluster_name: next
      endpoints:
      - lb_endpoints:
        - endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {to} }} }} }}
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {{ {proto}: {{}} }}
"""

WORKERS = 8
EACH = 50


def start(template, words, path, **values):
    port = free_port()
    file = os.path.join(path, f"{port}.conf")
    with open(file, "w") as config:
        config.write(template.format(folder=path, port=port, **values))
    return Running([*words, file], port)


def nginx(path, to, proto=None):
    return start(NGINX, ["nginx", "-c"], path, to=to)


def haproxy(path, to, proto=""):
    return start(HAPROXY, ["haproxy", "-db", "-f"], path, to=to, proto=proto)


def envoy(path, to, proto="http_protocol_options"):
    words = ["envoy", "--disable-hot-restart", "--concurrency", "1", "--log-level", "error", "-c"]
    # Envoy recognizes YAML by the file's name.
    port = free_port()
    file = os.path.join(path, f"{port}.yaml")
    with open(file, "w") as config:
        config.write(ENVOY.format(port=port, to=to, proto=proto))
    return Running([*words, file], port)


def ask_on_one_connection(port, worker):
    """Sends requests of several kinds one after another. Returns those with a wrong response."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    wrong = []
    for number in range(EACH):
        body = b"x" * (number * 700)
        chunked = number % 3 == 0
        path = f"/w{worker}/{number}"
        connection.request("POST", path, iter([body]) if chunked else body, encode_chunked=chunked)
        response = connection.getresponse()
        said = response.read()
        seen = json.loads(said) if response.status == 200 else {}
        if (seen.get("url"), seen.get("bytes")) != (path, len(body)):
            wrong.append((path, response.status, said[:200]))
    connection.request("GET", "/large")
    if len(connection.getresponse().read()) != 1 << 20:
        wrong.append("/large")
    connection.close()
    return wrong


class Proxies(unittest.TestCase):
    def crowd(self, port):
        with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
            for wrong in pool.map(lambda worker: ask_on_one_connection(port, worker), range(WORKERS)):
                self.assertEqual(wrong, [])

    def front(self, proxy, limits=None, **more):
        with folder() as path, Node() as app, Agent(app.port, {"/limited": 2}) as agent, proxy(path, agent.port, **more) as front:
            self.crowd(front.port)
            codes = []
            for _ in range(5):
                connection = http.client.HTTPConnection("127.0.0.1", front.port, timeout=20)
                connection.request("GET", "/limited")
                response = connection.getresponse()
                response.read()
                codes.append(response.status)
                connection.close()
            # The proxies must not retry a refused request.
            self.assertEqual(codes, [200, 200, 429, 429, 429])

    def test_nginx_before_the_agent(self):
        self.front(nginx)

    def test_haproxy_before_the_agent(self):
        self.front(haproxy)

    def test_haproxy_before_the_agent_with_http2(self):
        self.front(haproxy, proto="proto h2")

    def test_envoy_before_the_agent(self):
        self.front(envoy)

    def test_envoy_before_the_agent_with_http2(self):
        self.front(envoy, proto="http2_protocol_options")

    def test_nginx_behind_the_agent(self):
        with folder() as path, Node() as app, nginx(path, app.port) as proxy, Agent(proxy.port) as agent:
            self.crowd(agent.port)

    def test_haproxy_behind_the_agent(self):
        with folder() as path, Node() as app, haproxy(path, app.port) as proxy, Agent(proxy.port) as agent:
            self.crowd(agent.port)

    def test_the_agent_ends_well_though_envoy_keeps_its_connections(self):
        with folder() as path, Node() as app, Agent(app.port) as agent, envoy(path, agent.port) as front:
            self.crowd(front.port)
            agent.process.terminate()
            self.assertEqual(agent.process.wait(20), 0)


if __name__ == "__main__":
    unittest.main()
