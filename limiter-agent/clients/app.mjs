// An app that responds with a description of the request, over HTTP/1.1 or over HTTP/2 with prior knowledge.
import http from "node:http";
import http2 from "node:http2";
import { createHash } from "node:crypto";

const [port, protocol] = process.argv.slice(2);

function answer(request, response) {
  const path = request.url.split("?")[0];
  const hash = createHash("sha256");
  let bytes = 0;
  request.on("data", (data) => {
    bytes += data.length;
    hash.update(data);
  });
  request.on("end", () => {
    if (path === "/trailers") {
      // Node sends trailers only if the head announces them.
      if (request.httpVersionMajor === 1) response.setHeader("trailer", "x-after");
      response.writeHead(200);
      response.write("body");
      response.addTrailers({ "x-after": "it" });
      response.end();
    } else if (path === "/early") {
      response.writeEarlyHints({ link: "</a.css>; rel=preload" });
      response.end("after hints");
    } else if (path === "/large") {
      response.end(Buffer.alloc(1 << 20, "x"));
    } else if (path === "/empty") {
      response.writeHead(204).end();
    } else {
      const seen = {
        method: request.method, url: request.url, version: request.httpVersion, headers: request.headers,
        trailers: request.trailers, bytes, sha256: hash.digest("hex"),
      };
      response.setHeader("content-type", "application/json");
      response.end(JSON.stringify(seen));
    }
  });
}

const server = protocol === "h2" ? http2.createServer(answer) : http.createServer(answer);
server.listen(Number(port), "127.0.0.1");
