//! Sends HTTP/2 frames that no request of `message.rs` uses: frames in the wrong place, of the wrong length, or with
//! invalid HPACK. The app must receive at most one request, and never a complete request if the end was missing.

use self::End::{Either, Passes, Refused};
use super::{
    Answer,
    frames::{PREFACE, block, data, field, flag, frame, greeting, headers, kind},
    lane::Trial,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The app receives one request and answers it.
    Passes,
    /// The app does not answer. It may have received the start of a request with an invalid body.
    Refused,
    /// Both outcomes are allowed.
    Either,
}

/// A path that the app must never receive.
const HIDDEN: &str = "/hidden";

fn get(path: &str) -> Vec<u8> {
    block([(":method", "GET"), (":scheme", "http"), (":path", path), (":authority", "a")])
}

fn post(length: Option<&str>) -> Vec<u8> {
    let mut fields = vec![(":method", "POST"), (":scheme", "http"), (":path", "/"), (":authority", "a")];
    fields.extend(length.map(|length| ("content-length", length)));
    headers(1, &block(fields), false)
}

fn settings(id: u16, value: u32) -> Vec<u8> {
    frame(kind::SETTINGS, 0, 0, &[id.to_be_bytes().as_slice(), &value.to_be_bytes()].concat())
}

/// A valid frame before a request.
fn before(frame: &[u8]) -> Vec<u8> {
    [frame, &headers(1, &get("/"), true)].concat()
}

/// A request with these encoded fields, not all of which are literals.
fn coded(bytes: &[u8]) -> Vec<u8> {
    headers(1, &[&get("/"), bytes].concat(), true)
}

fn pseudo(fields: &[(&str, &str)]) -> Vec<u8> {
    headers(1, &block(fields.iter().copied()), true)
}

/// A request with these four pseudo-header fields.
fn asking(method: &str, scheme: &str, path: &str, host: &str) -> Vec<u8> {
    pseudo(&[(":method", method), (":scheme", scheme), (":path", path), (":authority", host)])
}

pub(super) fn connections() -> Vec<(String, Vec<u8>, End)> {
    let request = headers(1, &get("/"), true);
    let open = frame(kind::HEADERS, flag::END_STREAM, 1, &get("/"));
    let rest = |flags, stream, fields: &[u8]| frame(kind::CONTINUATION, flags, stream, fields);
    let hidden = headers(3, &get(HIDDEN), true);
    let padded = |by: u8, padding: usize| {
        let payload = [&[by], get("/").as_slice(), &vec![0; padding]].concat();
        frame(kind::HEADERS, flag::END_STREAM | flag::END_HEADERS | flag::PADDED, 1, &payload)
    };
    let padded_data =
        |by: u8, rest: &[u8]| frame(kind::DATA, flag::END_STREAM | flag::PADDED, 1, &[&[by], rest].concat());
    let depends = |on: u32, block: &[u8]| {
        let payload = [on.to_be_bytes().as_slice(), &[15], block].concat();
        frame(kind::HEADERS, flag::END_STREAM | flag::END_HEADERS | flag::PRIORITY, 1, &payload)
    };
    let long = "y".repeat(70_000);
    let many: Vec<u8> = (0..5_000).flat_map(|number| field(&format!("x-{number}"), "y")).collect();
    let ack = frame(kind::SETTINGS, flag::ACK, 0, &[]);
    let (five, x) = (data(1, b"hello", true), data(1, b"x", true));
    let reset = |code: &[u8]| frame(kind::RST_STREAM, 0, 1, code);
    let end = rest(flag::END_HEADERS, 1, &[]);
    let trailers = |ends| headers(1, &block([("x", "y")]), ends);
    let pushed = [&[0, 0, 0, 2], get(HIDDEN).as_slice()].concat();
    let whole = get("/");
    let (begin, more) = whole.split_at(9);
    let pieces = [(&b"he"[..], false), (b"", false), (b"llo", false), (b"", true)];
    let pieces = pieces.map(|(bytes, ends)| data(1, bytes, ends)).concat();
    let another = b"GET /hidden HTTP/1.1\r\nhost: a\r\n\r\n".as_slice();
    let [method, scheme, path, host] = [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "a")];
    let all: Vec<(&str, Vec<u8>, End)> = vec![
        ("a request", request.clone(), Passes),
        // Streams.
        ("DATA of an idle stream", data(1, b"hello", true), Refused),
        ("DATA of the connection", [data(0, b"hello", true), request.clone()].concat(), Refused),
        ("HEADERS of the connection", [headers(0, &get(HIDDEN), true), request.clone()].concat(), Refused),
        ("a stream number of the server", [headers(2, &get(HIDDEN), true), request.clone()].concat(), Refused),
        ("a reset of an idle stream", before(&frame(kind::RST_STREAM, 0, 1, &[0, 0, 0, 8])), Refused),
        ("a reset of the connection", before(&frame(kind::RST_STREAM, 0, 0, &[0, 0, 0, 8])), Refused),
        ("a reset of three bytes", [post(None), reset(&[0, 0, 8]), five.clone()].concat(), Refused),
        ("DATA after a reset", [post(None), reset(&[0, 0, 0, 8]), x.clone(), frame(0, 0, 0, &[])].concat(), Refused),
        ("DATA after the end", [request.clone(), data(1, b"x", true)].concat(), Either),
        ("HEADERS after the end", [request.clone(), headers(1, &get(HIDDEN), true)].concat(), Either),
        ("a lower stream number", [headers(5, &get("/"), true), headers(1, &get(HIDDEN), true)].concat(), Either),
        ("a pushed request", before(&frame(kind::PUSH_PROMISE, flag::END_HEADERS, 1, &pushed)), Refused),
        // Header blocks in pieces.
        (
            "a block in two pieces",
            [frame(kind::HEADERS, flag::END_STREAM, 1, begin), rest(flag::END_HEADERS, 1, more)].concat(),
            Passes,
        ),
        ("an empty piece", [open.clone(), rest(flag::END_HEADERS, 1, &[])].concat(), Passes),
        ("a block that never ends", [open.clone(), data(1, b"x", true)].concat(), Refused),
        ("another stream within a block", [open.clone(), hidden, end.clone()].concat(), Refused),
        ("a piece of another stream", [open.clone(), rest(flag::END_HEADERS, 3, &get(HIDDEN))].concat(), Refused),
        ("a ping within a block", [open.clone(), frame(kind::PING, 0, 0, &[0; 8]), end.clone()].concat(), Refused),
        ("an unknown frame within a block", [open.clone(), frame(0xee, 0, 1, b"x"), end.clone()].concat(), Refused),
        ("a piece without a beginning", before(&rest(flag::END_HEADERS, 1, &get(HIDDEN))), Refused),
        ("a piece after the last", [request.clone(), rest(flag::END_HEADERS, 1, &get(HIDDEN))].concat(), Either),
        ("endless empty pieces", [open.clone(), rest(0, 1, &[]).repeat(20_000)].concat(), Refused),
        ("a block too long", headers(1, &[get("/"), field("x", &long)].concat(), true), Refused),
        ("a name too long", headers(1, &[get("/"), field(&long, "x")].concat(), true), Refused),
        ("a path too long", headers(1, &get(&format!("/{long}")), true), Refused),
        ("too many fields", headers(1, &[get("/"), many].concat(), true), Refused),
        // Trailers.
        ("trailers that are not the end", [post(None), trailers(false), five.clone()].concat(), Refused),
        ("DATA after trailers", [post(None), trailers(true), x.clone()].concat(), Either),
        ("trailers twice", [post(None), trailers(true), headers(1, &get(HIDDEN), true)].concat(), Either),
        ("trailers with a pseudo-header field", [post(None), headers(1, &get(HIDDEN), true)].concat(), Either),
        // Lengths of frames and padding.
        ("padding", padded(5, 5), Passes),
        ("no padding", padded(0, 0), Passes),
        ("only padding", padded(255, 0), Refused),
        ("padding longer than the frame", frame(kind::HEADERS, 0x0d, 1, &[9, 0]), Refused),
        ("DATA with only padding", [post(Some("0")), padded_data(4, &[0; 4])].concat(), Passes),
        ("DATA with more padding than bytes", [post(None), padded_data(9, &[0; 4])].concat(), Refused),
        ("padding that is counted as a body", [post(Some("5")), padded_data(4, b"h\0\0\0\0")].concat(), Refused),
        ("a frame that is too long", [post(None), data(1, &[b'x'; 16_385], true)].concat(), Refused),
        ("a stream that depends on itself", depends(1, &get("/")), Either),
        ("a stream that depends on another", depends(0x8000_0003, &get("/")), Passes),
        ("a priority of four bytes", before(&frame(kind::PRIORITY, 0, 1, &[0; 4])), Refused),
        ("a priority of the connection", before(&frame(kind::PRIORITY, 0, 0, &[0; 5])), Refused),
        // The connection.
        ("settings of five bytes", before(&frame(kind::SETTINGS, 0, 0, &[0; 5])), Refused),
        ("settings of a stream", before(&frame(kind::SETTINGS, 0, 1, &[])), Refused),
        ("an acknowledgement with bytes", before(&frame(kind::SETTINGS, flag::ACK, 0, &[0; 6])), Refused),
        ("one acknowledgement too many", before(&[ack.clone(), ack.clone(), ack].concat()), Either),
        ("an ENABLE_PUSH of 2", before(&settings(2, 2)), Refused),
        ("a window of 2^31", before(&settings(4, 1 << 31)), Refused),
        ("a frame size of one byte", before(&settings(5, 1)), Refused),
        ("a frame size of 2^24", before(&settings(5, 1 << 24)), Refused),
        ("an unknown setting", before(&settings(0xfafa, 1)), Passes),
        ("a table of 4 GiB", before(&settings(1, u32::MAX)), Passes),
        ("a ping of seven bytes", before(&frame(kind::PING, 0, 0, &[0; 7])), Refused),
        ("a ping of a stream", before(&frame(kind::PING, 0, 1, &[0; 8])), Refused),
        ("a window update of zero", before(&frame(kind::WINDOW_UPDATE, 0, 0, &[0; 4])), Refused),
        ("a window of more than 2^31", before(&frame(kind::WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0xff, 0xff])), Refused),
        ("a window update of three bytes", before(&frame(kind::WINDOW_UPDATE, 0, 0, &[0, 0, 1])), Refused),
        ("a GOAWAY of a stream", before(&frame(kind::GOAWAY, 0, 1, &[0; 8])), Refused),
        ("a GOAWAY of seven bytes", before(&frame(kind::GOAWAY, 0, 0, &[0; 7])), Refused),
        ("an unknown frame", before(&frame(0xee, 0xff, 0, b"x")), Passes),
        ("an unknown frame of a stream", before(&frame(0xee, 0xff, 7, b"x")), Passes),
        // HPACK.
        ("field 0", coded(&[0x80]), Refused),
        ("a field index that does not exist", coded(&[0xbe]), Refused),
        ("a name index that does not exist", coded(&[0x7f, 0x00, 1, b'x']), Refused),
        ("an endless number", coded(&[&[0xff; 11][..], &[0x7f]].concat()), Refused),
        ("an incomplete number", coded(&[0xff, 0x80]), Refused),
        ("an incomplete literal", coded(&[0x00, 1, b'x', 5, b'y']), Refused),
        ("a name without a value", coded(&[0x00, 1, b'x']), Refused),
        ("Huffman's end of string", coded(&[0x00, 1, b'x', 0x84, 0xff, 0xff, 0xff, 0xff]), Refused),
        ("a Huffman code with eight bits too many", coded(&[0x00, 1, b'x', 0x82, 0x1f, 0xff]), Refused),
        ("a Huffman code padded with zeros", coded(&[0x00, 1, b'x', 0x81, 0x18]), Refused),
        ("a line end in a Huffman code", coded(&[0x00, 1, b'x', 0x84, 0xff, 0xff, 0xff, 0xf3]), Refused),
        ("a table that is too large", coded(&[0x3f, 0xff, 0xff, 0xff, 0x7f]), Refused),
        ("a table size that changes after a field", coded(&[0x20]), Refused),
        ("an indexed field, twice", coded(&[0x40, 1, b'x', 1, b'y', 0xbe]), Passes),
        ("an indexed field that was evicted", coded(&[0x40, 1, b'x', 1, b'y', 0x20, 0xbe]), Refused),
        // Lengths of bodies.
        ("a body", [post(Some("5")), five.clone()].concat(), Passes),
        ("a body in pieces", [post(Some("5")), pieces].concat(), Passes),
        ("a body that is too long", [post(Some("4")), five.clone()].concat(), Refused),
        ("a body that is too short", [post(Some("6")), five.clone()].concat(), Refused),
        (
            "a body that trailers end too early",
            [post(Some("6")), data(1, b"hello", false), trailers(true)].concat(),
            Refused,
        ),
        ("a missing body", [post(Some("5")), data(1, b"", true)].concat(), Refused),
        (
            "a body of another request",
            [post(Some("44")), data(1, b"x", false), data(1, another, true)].concat(),
            Refused,
        ),
        ("chunks in DATA", [post(None), data(1, &[b"0\r\n\r\n", another].concat(), true)].concat(), Passes),
        // Pseudo-header fields.
        ("no method", pseudo(&[scheme, path, host]), Refused),
        ("no scheme", pseudo(&[method, path, host]), Refused),
        ("no path", pseudo(&[method, scheme, host]), Refused),
        ("no host", pseudo(&[method, scheme, path]), Refused),
        ("nothing", pseudo(&[]), Refused),
        ("no pseudo-header field", pseudo(&[("host", "a")]), Refused),
        ("an empty method", asking("", "http", "/", "a"), Refused),
        ("an empty scheme", asking("GET", "", "/", "a"), Refused),
        ("an empty path", asking("GET", "http", "", "a"), Refused),
        ("an empty host", asking("GET", "http", "/", ""), Either),
        ("another scheme", asking("GET", "ftp", "/", "a"), Refused),
        ("an invalid scheme", asking("GET", "http://b/?", "/", "a"), Refused),
        ("https, which another proxy has terminated", asking("GET", "https", "/", "a"), Passes),
        ("the method twice", coded(&field(":method", "GET")), Refused),
        ("the scheme twice", coded(&field(":scheme", "http")), Refused),
        ("the path twice", coded(&field(":path", HIDDEN)), Refused),
        ("the host twice", coded(&field(":authority", "a")), Refused),
        ("a path after the fields", pseudo(&[method, scheme, host, ("x", "y"), (":path", "/")]), Refused),
        ("a host after the fields", pseudo(&[method, scheme, path, ("x", "y"), host]), Refused),
        ("an unknown pseudo-header field", coded(&field(":x", "y")), Refused),
        ("a status", coded(&field(":status", "200")), Refused),
        ("a protocol", coded(&field(":protocol", "websocket")), Refused),
        ("a name that is a colon", coded(&field(":", "y")), Refused),
        ("CONNECT with a path", asking("CONNECT", "http", "/", "a:80"), Refused),
        ("CONNECT", pseudo(&[(":method", "CONNECT"), (":authority", "a:80")]), Refused),
        (
            "CONNECT for WebSocket",
            pseudo(&[(":method", "CONNECT"), (":protocol", "websocket"), scheme, path, host]),
            Refused,
        ),
        ("a whole URL as the path", asking("GET", "http", "http://a/hidden", "a"), Refused),
        ("another URL as the path", asking("GET", "http", "//b/x", "a"), Passes),
        ("a star", asking("OPTIONS", "http", "*", "a"), Passes),
        ("a star that is not for OPTIONS", asking("GET", "http", "*", "a"), Refused),
    ];
    let mut all: Vec<_> =
        all.into_iter().map(|(name, bytes, end)| (name.to_owned(), [greeting(), bytes].concat(), end)).collect();
    // A line end inside a value does not end a line in HTTP/2. It must not end a line either when the agent forwards
    // the request over HTTP/1.1.
    for (place, text) in
        ["\r", "\n", "\r\n", "\r\nx: y", "\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n"].into_iter().enumerate()
    {
        for name in [
            ":method", ":scheme", ":path", ":authority", "x-key", "cookie", "host", "x-forwarded-for",
            "content-length", "te",
        ] {
            let fields = [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "a")];
            let own = fields
                .map(|(known, value)| (known, if known == name { format!("{value}{text}") } else { value.to_owned() }));
            let more = (!name.starts_with(':')).then(|| (name, format!("a{text}")));
            let fields: Vec<_> = own.into_iter().chain(more).collect();
            let block = block(fields.iter().map(|(name, value)| (*name, value.as_str())));
            all.push((format!("line end {place} in {name}"), [greeting(), headers(1, &block, true)].concat(), Refused));
        }
        let block = [get("/"), field(&format!("x{text}"), "y")].concat();
        all.push((format!("line end {place} in a name"), [greeting(), headers(1, &block, true)].concat(), Refused));
    }
    // h2 does not require the SETTINGS that a client must send first (RFC 9113 section 3.4).
    all.push(("no settings".into(), [PREFACE, &request].concat(), Either));
    all
}

/// Checks that the outcome is allowed.
pub(super) fn check(trial: &Trial, end: End) -> Result<(), String> {
    let passed = trial.answer == Answer::Status(200);
    let whole = trial.heard.iter().filter(|heard| heard.as_ref().is_ok_and(|message| message.whole)).count();
    let hidden = trial.heard.iter().flatten().any(|message| message.head.target() == HIDDEN);
    let nonsense = trial.heard.iter().any(Result::is_err);
    let held = match end {
        Passes => passed && whole == 1 && trial.heard.len() == 1,
        Refused => !passed && whole == 0 && trial.heard.len() <= 1,
        Either => trial.heard.len() <= 1,
    };
    if held && !hidden && !nonsense { Ok(()) } else { Err(format!("{end:?}: {trial:?}")) }
}
