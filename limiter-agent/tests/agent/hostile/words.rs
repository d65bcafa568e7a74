//! The parts of the messages in `tables.rs`.

/// Paths that apps read in different ways, and paths with invalid bytes.
#[rustfmt::skip]
pub(super) const PATHS_REFUSED: &[&str] = &[
    "/api%2fx", "/api%2Fx", "/%2fapi/x", "/%2Fapi%2Fx", "/z%2f..%2fapi/x", "/z%2F%2e%2e%2Fapi/x", "/api/x%2f",
    "/api/%2f", "/api/..%2fadmin", "/api/%2e%2e%2fadmin", "/z/..;/api/x", "/z/..;a=b/api/x", "/z/%2e%2e;/api/x",
    "/z/%2e%2e;a=b/api/x", "/z/.%2e;/api/x", "/.;/api/x", "/.;x=1/api/x", "/%2e;/api/x", "/api/..;/admin", "/api/x/..;",
    "/api%5cx", "/api%5Cx", "/z%5C..%5Capi/x", "/z%5c%2e%2e%5capi/x", "/api/x%5c", "/z\\..\\api/x", "/api\\x",
    "\\api\\x", "/\\api/x", "/api/x\\", "/api%00/x", "/api/x%00", "/%00", "/api/x%00.html", "/a b", "/api/x ",
    " /api/x", "/a\tb", "/\t", "/a\u{7f}", "/a\0b", "/a\u{b}b", "/a\u{1}", "api/x", "", "?q=v", "*", "**", "#", "#y",
    "/api/./x", "/api/../x", "/../api/x", "/../../api/x", "/api/x/.", "/api/x/..", "/x/../api/x", "/%2e/api/x",
    "/%2e%2e/api/x", "/z/%2e%2e/api/x", "/z/.%2e/api/x", "/api/%2e/x",
    ".", "..", ";", "%2fapi/x", "%61", "@", "api", "x:y",
];

#[rustfmt::skip]
pub(super) const PATHS_PASS: &[&str] = &[
    "/", "//", "///", "//api/x", "/api//x", "/api/x/", "/api/x//", "/%61pi/x", "/%61%70%69/%78", "/api/%78",
    "/api/%252e", "/api/%252fx", "/api%252fx", "/api/x%20",
    "/api/%20x", "/api/x%09", "/api/x%0a", "/api/x%0d%0a", "/api/x%7f", "/api/x%80", "/api/%c3%a9", "/api/%c0%af",
    "/api/%c0%ae%c0%ae/x", "/api/%e0%80%af", "/api/%ff", "/api;x", "/api;x=1/x", "/api/x;", "/api/x;y=1", "/;/api/x",
    "/api/x;a=..;b", "/api/...", "/api/..x", "/api/.x", "/api/x..", "/api/~x", "/api/x@y", "/api/x:80", "/:80/api",
    "/@api/x", "/a@b/api/x", "/api/x!", "/api/x$", "/api/x&y", "/api/x'y", "/api/(x)", "/api/x*", "/*", "/**", "/api/*",
    "/api/x+y", "/api/x,y", "/api/x=y", "/API/x", "/Api/X", "/api/x?", "/api/x??", "/api/x?q", "/api/x?q=", "/api/x?=v",
    "/api/x?q=v&q=w", "/api/x?q=w&q=v", "/api/x?Q=v", "/api/x?%71=v", "/api/x?q=%76", "/api/x?q=v%00", "/api/x?q=%",
    "/api/x?q=%zz", "/api/x?q=%2", "/api/x?q=v;q=w", "/api/x?q=v&", "/api/x?&q=v", "/api/x?&&q=v", "/api/x?q+=v",
    "/api/x?q=+v", "/api/x?q=v+", "/api/x?q=%20v", "/api/x?q=v%20", "/api/x?q[]=v", "/api/x?q%5b%5d=v", "/api/x?q=a=b",
    "/api/x?q=/../../x", "/api/x?q=%2f%5c..;/", "/api/x?..;/", "/api/x?x\\y", "/?/api/x", "/api/x?http://b/",
    "/http://b/api/x", "/api/x?q=%ff", "/api/x?%ff=v", "/api/x?q=v?q=w", "/api/x#y", "/api/x?q=v#", "/#/../x", "/api/%",
    "/api/%x", "/api/%2", "/api/%zz/x",
];

/// Invalid or ambiguous hosts.
#[rustfmt::skip]
pub(super) const HOSTS_REFUSED: &[&str] = &[
    "shop.example.com:80]", "shop.example.com:]", "shop.example.com]", "shop.example.com[", "[shop.example.com]",
    "shop.example.com:80:80", "shop.example.com::80", "shop.example.com:x", "shop.example.com:+80",
    "shop.example.com:-80", "shop.example.com:8_0", "shop.example.com:80x", "shop.example.com: 80",
    "shop.example.com :80", "shop.example.com:80 ,a", "shop.example.com..", "shop..example.com", ".shop.example.com",
    "shop%2eexample.com", "shop.example.com%00", "shop.example.com\0", "shop.example.com/", "shop.example.com/x",
    "shop.example.com?", "shop.example.com?x", "shop.example.com#", "shop.example.com\\", "shop.example.com\\x",
    "a@shop.example.com", "shop.example.com@a", "a:b@shop.example.com", "@shop.example.com", "shop.example.com, a",
    "shop.example.com,a", "a,shop.example.com", "shop.example.com a", "shop.example.com\ta", "http://shop.example.com",
    "//shop.example.com", "\"shop.example.com\"", "<shop.example.com>", "shop.example.com|a", "shop.example.com^",
    "shop.example.com`", "{shop.example.com}", "shop.example.com\u{7f}", "shop.example.com\u{80}",
    "shop.ex\u{e4}mple.com", "\u{ff}", ":80", ":", "::1", "[::1", "::1]", "[]", "[x]", "[x]y", "[::1]y", "[::1]80",
    "[::1]:80]", "[::1]:x", "[[::1]]", "[fe80::1%25eth0]", "[fe80::1%eth0]", "[v1.x]", "a[::1]", "[::1].a", "[1.2.3.4]",
    "[::1:80", "a:80:", "*:x", "shop.example.com:80/x", "shop.example.com:80@a", "shop.example.com:80#a",
    "shop.example.com:\u{661}", "shop.example.com\u{1}", ".", "..",
];

#[rustfmt::skip]
pub(super) const HOSTS_PASS: &[&str] = &[
    "shop.example.com", "SHOP.example.com", "Shop.Example.Com", "shop.example.com.", "shop.example.com:80",
    "shop.example.com:", "shop.example.com.:80", "shop.example.com:0", "shop.example.com:080", "shop.example.com:99999",
    "a", "a.b", "example.com", "x.shop.example.com", "xn--bcher-kva.example.com", "shop_example.com", "-", "a-", "1",
    "127.0.0.1", "127.0.0.1:80", "0x7f.1", "[::1]", "[::1]:80", "[2001:DB8::1]", "[::ffff:192.0.2.1]:1", "[::1]:",
    "shop.example.com;a", "'shop.example.com", "shop.example.com!", "shop(example).com", "shop~.example.com",
];

/// Values of fields that rules use.
#[rustfmt::skip]
pub(super) const KEYS_PASS: &[&str] = &[
    "ann", "Ann", "ANN", "", "a", "ann,bob", "ann, bob", "ann;x", "ann\tbob", "ann  bob", "\"ann\"", "'ann'", "(ann)",
    "ann=", "=ann", "ann%20", "%61nn", "ann\u{80}", "\u{ff}ann", "\u{e4}", "\u{c3}\u{a4}", "\u{c3}",
    "\u{f0}\u{9f}\u{98}\u{80}", "\u{a0}ann", "ann\u{a0}", "\u{85}", "ann:80", "\\ann", "ann\\", "<ann>", "{ann}",
    "[ann]", "ann|bob", "ann&bob", "ann#", "ann?", "ann/../bob", "*", "**", "^ann$", "true", "null", "0", "-1", "1e9",
    ",", ",,", ", ,", ";",
    // The protocols treat whitespace at the ends of a value differently.
    " ann", "ann ", "\tann", "ann\t", "  ann  ", " ", "\t", "ann \t ", " \tann",
];

#[rustfmt::skip]
pub(super) const VALUES_REFUSED: &[&str] = &[
    "ann\0", "\0", "\0ann", "a\0nn", "ann\u{1}", "ann\u{7}", "ann\u{8}", "ann\u{b}", "ann\u{c}", "ann\u{e}",
    "ann\u{1b}[0m", "ann\u{1f}", "ann\u{7f}", "\u{7f}", "\u{1}", "ann\u{0}\u{0}", "ann\rbob", "ann\nbob", "\rann",
    "\nann", "ann\r", "ann\n", "ann\r\r\n", "ann\n\n",
];

#[rustfmt::skip]
pub(super) const COOKIES: &[&str] = &[
    "a=1", "a=1; b=2", "b=2; a=1", "a=1;b=2", "a=1 ;b=2", "a=1;  b=2", "a=1,b=2", "a=1, b=2", "a=\"1\"",
    "a=\"1; b=3\"; b=2", "a=", "=1", "a", ";", ";;", "; a=1", "a=1;", "a=1; ", "A=1", "a =1", "a= 1", "a\t=1",
    "a=1; a=2", "a=2; a=1", "$Version=1; a=1", "a=1; $Path=/", "__Host-a=1", "%61=1", "a=%31", "a=1%3b b=2", "a=1=2",
    "a==1", "a=\u{e4}", "\u{e4}=1; a=1", "a=1; b", "b; a=1", "a=1\tb=2", "a=1; b=2; a=3", "a=\"", "a=\"1", "{\"a\":1}",
    "a=1; b=2\u{ff}",
];

/// Header values that name the client's address, from proxies or clients.
#[rustfmt::skip]
pub(super) const FORWARDED_FOR: &[&str] = &[
    "192.0.2.1", "198.51.100.1, 192.0.2.1", "198.51.100.1,192.0.2.1", "198.51.100.1 , 192.0.2.1",
    "198.51.100.1,\t192.0.2.1", "198.51.100.1;192.0.2.1", ", 192.0.2.1", "192.0.2.1,", "192.0.2.1, ", ",", ",,", ", ,",
    "", "192.0.2.1, , 192.0.2.2", "unknown", "_hidden", "192.0.2.1, unknown", "unknown, 192.0.2.1", "192.0.2.1:8080",
    "[2001:db8::1]", "[2001:db8::1]:80", "2001:db8::1", "2001:DB8:0::1", "2001:db8::1, 192.0.2.1", "::ffff:192.0.2.1",
    "::ffff:c000:201", "\"192.0.2.1\"", "\"192.0.2.1\", 192.0.2.2", "for=192.0.2.1", "192.0.2.01", "192.0.2",
    "192.0.2.256", "0300.0.2.1", "3221225985", "0xc0000201", "1.1.1.1.1", "192.0.2.1 192.0.2.2", "192.0.2.1%00",
    "\u{e4}, 192.0.2.1", "\u{80}, 192.0.2.1", "6.6.6.6 \u{ff}, 192.0.2.1", "\u{ff},\u{ff}", "192.0.2.1\u{80}",
    "192.0.2.1, \u{e4}", "\u{e4}, 198.51.100.1, 192.0.2.1", "198.51.100.1, \u{e4}, 192.0.2.1",
    "198.51.100.1, 192.0.2.1, \u{e4}", "127.0.0.1", "127.0.0.1, 127.0.0.1", "0.0.0.0", "::", "fe80::1%eth0",
    "255.255.255.255, 192.0.2.1", "192.0.2.1\t", " 192.0.2.1", "a, b, c, d, e, f, g",
    "192.0.2.1,192.0.2.2,192.0.2.3,192.0.2.4",
];

#[rustfmt::skip]
pub(super) const FORWARDED: &[&str] = &[
    "for=192.0.2.1", "for=\"[2001:db8::1]\"", "for=192.0.2.1;proto=https", "FOR=192.0.2.1",
    "for=192.0.2.1, for=192.0.2.2", "for=_x;host=\"a\"", "for=\"", "for=\"a, for=b", "", ";", ",", "for", "=",
    "for=192.0.2.1;;", "for=\"\\\"\"", "\u{e4}",
];

#[rustfmt::skip]
pub(super) const TOKENS: &[&str] = &[
    "Bearer a.eyJzdWIiOiJhbm4ifQ.c", "bearer a.eyJzdWIiOiJhbm4ifQ.c", "a.eyJzdWIiOiJhbm4ifQ.c",
    "Bearer  a.eyJzdWIiOiJhbm4ifQ.c", "Bearer a.eyJzdWIiOiJhbm4ifQ==.c", "Bearer a.eyJzdWIiOiJhbm4ifQ",
    "Bearer a.eyJzdWIiOiJhbm4ifQ.c.d", "Bearer ..", "Bearer .", "Bearer", "", "Basic eDp5", "Bearer a.!!.c",
    "Bearer a.bnVsbA.c", "Bearer a.W10.c", "Bearer a.eyJzdWIiOm51bGx9.c", "Bearer a.eyJzdWIiOnt9fQ.c",
    "Bearer a.eyJzdWIiOjF9.c", "Bearer a.eyJzdWIiOiJhIiwic3ViIjoiYiJ9.c", "Bearer a.\u{ff}.c",
    "Bearer a.eyJzdWIiOiL_In0.c", "Bearer a.e30.c, Bearer a.eyJzdWIiOiJhbm4ifQ.c",
];

/// Hop-by-hop fields: removed in HTTP/1.1, malformed in HTTP/2.
#[rustfmt::skip]
pub(super) const OF_CONNECTION: &[(&str, &str)] = &[
    ("connection", "close"), ("connection", "keep-alive"), ("connection", "x-key"), ("connection", "X-Key"),
    ("connection", "close, x-key"), ("connection", "cookie"), ("connection", "host"), ("connection", "content-length"),
    ("connection", "x-forwarded-for"), ("connection", "forwarded"),
    ("connection", "x-forwarded-proto, x-forwarded-host"), ("connection", "authorization"), ("connection", "te"),
    ("connection", ""), ("connection", ","), ("connection", "\"x-key\""), ("connection", "x-key;q=1"),
    ("connection", "\u{e4}, x-key"), ("connection", ":path"), ("connection", "x key"), ("keep-alive", "timeout=5"),
    ("keep-alive", ""), ("proxy-connection", "keep-alive"), ("proxy-connection", "close"), ("upgrade", "h2c"),
    ("upgrade", "x"), ("upgrade", "websocket"), ("te", "gzip"), ("te", "trailers, gzip"), ("te", "trailers;q=0"),
    ("te", "Trailers"), ("te", ""), ("te", ", trailers"), ("te", "chunked"), ("Connection", "X-KEY"),
    ("Keep-Alive", "x"), ("TE", "trailers"),
];

/// Other fields, added to those of the request.
#[rustfmt::skip]
pub(super) const MORE: &[(&str, &str)] = &[
    ("te", "trailers"), ("x-key", "bob"), ("x-key", ""), ("x-b", "1"), ("cookie", "a=3"), ("cookie", "c=1"),
    ("cookie", ""), ("x-forwarded-for", "6.6.6.6"), ("x-forwarded-for", ""), ("x-forwarded-for", "\u{e4}"),
    ("x-forwarded-proto", "https"), ("x-forwarded-proto", "gopher"), ("x-forwarded-host", "b"),
    ("x-forwarded-host", "b, c"), ("x-real-ip", "6.6.6.6"), ("x-original-url", "/admin"), ("x-rewrite-url", "/admin"),
    ("x-http-method-override", "DELETE"), ("proxy-authorization", "Basic x"), ("proxy-authenticate", "x"),
    ("proxy", "http://b"), ("via", "1.1 a"), ("x-host", "b"), ("x_key", "bob"), ("x-key_", "bob"), ("x.key", "bob"),
    ("x~key", "1"), ("x!#$%&'*+-.^_`|~", "1"), ("http2-settings", "AAMAAABkAAQ"), ("content_length", "5"),
    ("content-type", "text/plain"), ("transfer_encoding", "chunked"), ("x-transfer-encoding", "chunked"),
    ("trailer", "x-sum"), ("range", "bytes=0-0"), ("max-forwards", "1"), ("X-Key", "bob"), ("X-B", "1"),
    ("Cookie", "c=1"), ("X-Forwarded-For", "6.6.6.6"), ("host-x", "b"), ("x-", "1"), ("-", "1"), ("1", "1"),
    ("accept", "*/*"), ("early-data", "1"), ("priority", "u=0"), ("expect", "x"), ("date", "x"), ("age", "x"),
    ("authorization", ""),
];

/// Invalid names.
#[rustfmt::skip]
pub(super) const NAMES_REFUSED: &[&str] = &[
    "", " ", "x y", " x", "x ", "x\t", "\tx", "x\0", "\0x", "x\u{1}", "x\u{7f}", "x\u{80}", "\u{e4}", "x(y)", "x@y",
    "x/y", "x[y]", "x\\y", "x?y", "x=y", "x{y}", "x<y>", "x,y", "x;y", "\"x\"", "x\u{b}", "content-length ",
    "transfer-encoding ", "host ", " host", "\u{ff}", "x\u{c}y", "content-length\t", "x\r", "\rx", "x\ny", "x\r\ny",
];

#[rustfmt::skip]
pub(super) const METHODS_REFUSED: &[&str] = &[
    "", " ", "G T", "GET ", " GET", "GET\t", "G\0T", "G(T", "G@T", "G/T", "\u{e4}", "G\u{7f}T", "G:T", "G,T", "G;T",
    "G\"T", "G\\T", "G[T", "G=T", "G?T", "G{T", "G<T", "CONNECT",
];

#[rustfmt::skip]
pub(super) const METHODS_PASS: &[&str] = &[
    "GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "PURGE", "get", "Get", "M-SEARCH", "X",
    "connect", "PRI", "QUERY", "G!T", "G#$%&'*+-.^_`|~T", "GETT", "0",
];

/// Values of `Content-Length` that are invalid or contradict the body, which has five bytes.
#[rustfmt::skip]
pub(super) const LENGTHS_REFUSED: &[&str] = &[
    "+5", "-5", "0x5", "5 5", "5, 5", "5,5", "5,", ",5", "5;", "5.0", "5e0", "\"5\"", "", "x", "18446744073709551621",
    "99999999999999999999999", "\u{b2}", "5\t6", "5_0", "'5'", "five", "5\0", "0b101", "٥", "5 ; x", "-0", "+0", "0x",
    "NaN", "inf", "5\u{a0}", "\u{b}5",
];

#[rustfmt::skip]
pub(super) const LENGTHS_PASS: &[&str] = &[
    "5", "05", "005", "0000000000000005",
];

/// Valid trailers. The agent removes those that are valid only in a head.
#[rustfmt::skip]
pub(super) const TRAILERS: &[(&str, &str)] = &[
    ("x-sum", "1"), ("grpc-status", "0"), ("host", "b"), ("x-forwarded-for", "6.6.6.6"), ("authorization", "x"),
    ("connection", "x-key"), ("upgrade", "h2c"), ("te", "trailers"), ("trailer", "x"), ("cookie", "a=9"),
    ("x-key", "bob"), ("forwarded", "for=6.6.6.6"), ("expect", "100-continue"), ("X-Sum", "1"), ("x-sum", " 1"),
    ("x-sum", "\u{e4}"),
];

#[rustfmt::skip]
pub(super) const TRAILERS_REFUSED: &[(&str, &str)] = &[
    ("transfer-encoding", "chunked"), ("content-length", "5"), (":path", "/admin"), (":status", "200"), ("x y", "1"),
    ("", "1"), ("x", "a\0b"), ("x\0", "y"), ("x", "a\nb"), (" x", "y"), ("x\u{e4}", "y"),
];
