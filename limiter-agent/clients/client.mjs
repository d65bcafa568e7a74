// Tests Node's own clients: http.Agent with keep-alive, fetch, raw pipelining and http2. Ends with an error at the
// first difference.
import assert from "node:assert/strict";
import http from "node:http";
import http2 from "node:http2";
import net from "node:net";

const port = Number(process.argv[2]);
const url = `http://127.0.0.1:${port}`;

function request(options, body) {
  return new Promise((resolve, reject) => {
    const sent = http.request({ host: "127.0.0.1", port, ...options }, (response) => {
      let text = "";
      response.on("data", (data) => (text += data));
      response.on("end", () => resolve({ response, text, reused: sent.reusedSocket }));
      response.on("error", reject);
    });
    sent.on("error", reject);
    sent.end(body);
  });
}

const tests = {
  async "keep-alive uses one socket again"() {
    const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
    for (let count = 0; count < 50; count++) {
      const { response, text, reused } = await request({ agent, path: `/${count}`, method: "POST" }, "x".repeat(count));
      assert.equal(response.statusCode, 200);
      assert.equal(JSON.parse(text).bytes, count);
      assert.equal(reused, count > 0);
    }
    agent.destroy();
  },
  async "200 at once on 20 sockets"() {
    const agent = new http.Agent({ keepAlive: true, maxSockets: 20 });
    const all = Array.from({ length: 200 }, (_, count) => request({ agent, path: `/${count}` }));
    const answers = await Promise.all(all);
    answers.forEach(({ text }, count) => assert.equal(JSON.parse(text).url, `/${count}`));
    agent.destroy();
  },
  async "fetch with a streaming body"() {
    const pieces = new ReadableStream({
      async start(controller) {
        for (let count = 0; count < 100; count++) controller.enqueue(new Uint8Array(10_000));
        controller.close();
      },
    });
    const response = await fetch(`${url}/seen`, { method: "POST", body: pieces, duplex: "half" });
    const seen = await response.json();
    assert.equal(seen.bytes, 1_000_000);
    assert.equal(seen.headers["transfer-encoding"], "chunked");
  },
  async "fetch that is aborted in the middle, and the next that is not"() {
    const controller = new AbortController();
    const response = await fetch(`${url}/large`, { signal: controller.signal });
    controller.abort();
    await assert.rejects(response.text());
    assert.equal((await (await fetch(`${url}/large`)).text()).length, 1 << 20);
  },
  async "request and response trailers"() {
    const answer = await new Promise((resolve, reject) => {
      const sent = http.request({ host: "127.0.0.1", port, path: "/seen", method: "POST", headers: { trailer: "x-end" } }, (response) => {
        let text = "";
        response.on("data", (data) => (text += data));
        response.on("end", () => resolve(JSON.parse(text)));
      });
      sent.on("error", reject);
      sent.write("abc");
      sent.addTrailers({ "x-end": "1" });
      sent.end();
    });
    assert.equal(answer.bytes, 3);
    assert.equal(answer.trailers["x-end"], "1");
    const { response } = await request({ path: "/trailers", headers: { te: "trailers" } });
    assert.equal(response.trailers["x-after"], "it");
  },
  async "pipelined requests are answered in order"() {
    const count = 50;
    const text = await new Promise((resolve, reject) => {
      const socket = net.connect(port, "127.0.0.1");
      let read = "";
      socket.on("data", (data) => (read += data));
      socket.on("end", () => resolve(read));
      socket.on("error", reject);
      let all = "";
      for (let number = 0; number < count; number++) {
        const last = number === count - 1 ? "connection: close\r\n" : "";
        const [method, body] = number % 2 ? ["POST", "body"] : ["GET", ""];
        all += `${method} /p${number} HTTP/1.1\r\nhost: app\r\ncontent-length: ${body.length}\r\n${last}\r\n${body}`;
      }
      socket.write(all);
    });
    const urls = [...text.matchAll(/"url":"(\/p\d+)"/g)].map((match) => match[1]);
    assert.deepEqual(urls, Array.from({ length: count }, (_, number) => `/p${number}`));
  },
  async "HTTP/2: 100 streams, one of them cancelled, and trailers"() {
    const session = http2.connect(url);
    const one = (headers, body) =>
      new Promise((resolve, reject) => {
        const stream = session.request(headers);
        let text = "";
        let trailers = {};
        stream.on("data", (data) => (text += data));
        stream.on("trailers", (fields) => (trailers = fields));
        stream.on("end", () => resolve({ text, trailers }));
        stream.on("error", reject);
        stream.end(body);
      });
    const cancelled = session.request({ ":path": "/large" });
    cancelled.close(http2.constants.NGHTTP2_CANCEL);
    const all = Array.from({ length: 100 }, (_, count) => one({ ":path": `/${count}`, ":method": "POST" }, "x".repeat(count)));
    (await Promise.all(all)).forEach(({ text }, count) => assert.equal(JSON.parse(text).bytes, count));
    const { trailers } = await one({ ":path": "/trailers", te: "trailers" });
    assert.equal(trailers["x-after"], "it");
    session.close();
  },
};

for (const [name, test] of Object.entries(tests)) {
  await test();
  console.log(`passed: ${name}`);
}
