//! Tests the relay. Both peers use another implementation, or send bytes that were checked by hand against the
//! standard. Time is paused and advances only when every task waits.

use std::cell::Cell;

use futures::{SinkExt, StreamExt};
use tokio::io::DuplexStream;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Bytes, Message,
        protocol::{
            CloseFrame, Role,
            frame::{
                Frame,
                coding::{CloseCode, Data, OpCode},
            },
        },
    },
};

use super::{super::between::MAX_NOTICES, *};

/// Admits this many messages.
struct Quota {
    left: Cell<usize>,
    refused: Cell<usize>,
    close: bool,
}

impl Quota {
    fn of(left: usize) -> Self {
        Self { left: Cell::new(left), refused: Cell::new(0), close: false }
    }

    fn decide(&self) -> Result<(), MessageRefusal> {
        if let Some(left) = self.left.get().checked_sub(1) {
            self.left.set(left);
            return Ok(());
        }
        self.refused.set(self.refused.get() + 1);
        Err(MessageRefusal { notice: format!("refused {}", self.refused.get()), close: self.close })
    }
}

/// Runs a relay. `test` acts as both peers. Each direction of a connection buffers `buffer` bytes.
async fn relayed(
    quota: &Quota,
    buffer: usize,
    drain: &CancellationToken,
    test: impl AsyncFnOnce(DuplexStream, DuplexStream),
) -> io::Result<()> {
    let (client, client_end) = tokio::io::duplex(buffer);
    let (app, app_end) = tokio::io::duplex(buffer);
    tokio::join!(relay(client_end, app_end, || quota.decide(), drain), test(client, app)).0
}

/// Runs a relay between two peers of another implementation.
async fn conversing(
    quota: &Quota,
    buffer: usize,
    test: impl AsyncFnOnce(WebSocketStream<DuplexStream>, WebSocketStream<DuplexStream>),
) -> io::Result<()> {
    relayed(quota, buffer, &CancellationToken::new(), async |client, app| {
        let client = WebSocketStream::from_raw_socket(client, Role::Client, None).await;
        let app = WebSocketStream::from_raw_socket(app, Role::Server, None).await;
        test(client, app).await;
    })
    .await
}

/// A client's frame, masked with zeros.
fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
    let length = u8::try_from(payload.len()).expect("short");
    [&[first, 0x80 | length, 0, 0, 0, 0], payload].concat()
}

fn plain(first: u8, payload: &[u8]) -> Vec<u8> {
    [&[first, u8::try_from(payload.len()).expect("short")], payload].concat()
}

/// A close frame without its mask.
fn closing(code: u16, reason: &str) -> Vec<u8> {
    plain(0x88, &[&code.to_be_bytes(), reason.as_bytes()].concat())
}

async fn expect(from: &mut DuplexStream, bytes: &[u8]) {
    let mut read = vec![0; bytes.len()];
    from.read_exact(&mut read).await.expect("enough bytes");
    assert_eq!(String::from_utf8_lossy(&read), String::from_utf8_lossy(bytes));
}

/// Expects a masked frame with this content.
async fn expect_masked(from: &mut DuplexStream, bytes: &[u8]) {
    let mut read = vec![0; bytes.len() + 4];
    from.read_exact(&mut read).await.expect("enough bytes");
    assert_eq!(read[1] & 0x80, 0x80, "masked");
    let mask: [u8; 4] = read[2..6].try_into().expect("four");
    let payload: Vec<u8> = read[6..].iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask).collect();
    assert_eq!([&[read[0], read[1] & 0x7f][..], &payload].concat(), bytes);
}

async fn expect_end(from: &mut DuplexStream) {
    let mut rest = Vec::new();
    from.read_to_end(&mut rest).await.expect("the end of the stream");
    assert_eq!(rest, b"");
}

#[tokio::test(start_paused = true)]
async fn ten_of_a_hundred_messages_pass_a_limit_of_ten() {
    let quota = Quota::of(10);
    let ended = conversing(&quota, 1 << 16, async |mut client, mut app| {
        for number in 0..100 {
            client.feed(Message::text(format!("message {number}"))).await.expect("sent");
        }
        client.send(Message::Ping("all".into())).await.expect("sent");
        for number in 0..10 {
            let message = app.next().await.expect("a message").expect("a message");
            assert_eq!(message.into_text().expect("text"), format!("message {number}"));
        }
        for number in 1..=90 {
            let notice = client.next().await.expect("a notice").expect("a notice");
            assert_eq!(notice, Message::text(format!("refused {number}")));
        }
        // Control frames are not counted.
        assert_eq!(app.next().await.expect("a ping").expect("a ping"), Message::Ping("all".into()));
        app.flush().await.expect("answered");
        assert_eq!(client.next().await.expect("a pong").expect("a pong"), Message::Pong("all".into()));
        client.close(None).await.expect("sent");
        assert!(app.next().await.expect("a close").expect("a close").is_close());
        assert!(app.next().await.is_none());
        drop(app);
        assert!(client.next().await.expect("a close").expect("a close").is_close());
        assert!(client.next().await.is_none());
    })
    .await;
    ended.expect("a clean close");
    assert_eq!(quota.refused.get(), 90);
}

#[tokio::test(start_paused = true)]
async fn a_refused_message_closes_the_connection_if_configured() {
    let quota = Quota { close: true, ..Quota::of(1) };
    let ended = conversing(&quota, 1 << 10, async |mut client, mut app| {
        client.feed(Message::text("one")).await.expect("sent");
        client.feed(Message::text("two")).await.expect("sent");
        client.send(Message::text("three")).await.expect("sent");
        let reason = CloseFrame { code: CloseCode::Policy, reason: "refused 1".into() };
        assert_eq!(client.next().await.expect("a close").expect("a close"), Message::Close(Some(reason)));
        assert_eq!(app.next().await.expect("a message").expect("a message"), Message::text("one"));
        let reason = CloseFrame { code: CloseCode::Away, reason: "closed by a rate limit".into() };
        assert_eq!(app.next().await.expect("a close").expect("a close"), Message::Close(Some(reason)));
        // Both peers answer, and the connections close immediately: no time passes.
        let begun = tokio::time::Instant::now();
        assert!(app.next().await.is_none());
        assert!(client.next().await.is_none());
        assert!(begun.elapsed().is_zero());
    })
    .await;
    ended.expect("a clean close");
    assert_eq!(quota.refused.get(), 1, "there is no decision on the third message");
}

#[tokio::test(start_paused = true)]
async fn a_notice_waits_for_the_end_of_a_message() {
    let quota = Quota::of(1);
    let ended = relayed(&quota, 1 << 16, &CancellationToken::new(), async |mut client, mut app| {
        // The app sends an incomplete frame.
        app.write_all(&[0x01, 4, b'a', b'b']).await.expect("sent");
        expect(&mut client, &[0x01, 4, b'a', b'b']).await;
        client.write_all(&masked(0x81, b"first")).await.expect("sent");
        client.write_all(&masked(0x01, b"refu")).await.expect("sent");
        client.write_all(&masked(0x8a, b"pong")).await.expect("sent");
        client.write_all(&masked(0x80, b"sed")).await.expect("sent");
        client.write_all(&masked(0x82, b"refused too")).await.expect("sent");
        client.write_all(&masked(0x89, b"ping")).await.expect("sent");
        for frame in [masked(0x81, b"first"), masked(0x8a, b"pong"), masked(0x89, b"ping")] {
            expect(&mut app, &frame).await;
        }
        // The app sends the rest of the frame, control frames, other frames of the message, and another message, all at
        // once.
        let frames =
            [&b"cd"[..], &plain(0x8a, b"ping"), &plain(0x00, b""), &plain(0x80, b"e"), &plain(0x82, b"next")].concat();
        app.write_all(&frames).await.expect("sent");
        expect(&mut client, &frames[..frames.len() - 6]).await;
        for frame in [plain(0x81, b"refused 1"), plain(0x81, b"refused 2"), plain(0x82, b"next")] {
            expect(&mut client, &frame).await;
        }
    })
    .await;
    ended.expect("both peers have closed");
}

#[tokio::test(start_paused = true)]
async fn messages_of_any_length_go_through_buffers_of_any_length() {
    const PARTS: u32 = 32;
    let part = |number: u32| Bytes::from(vec![u8::try_from(number).expect("small"); 100_000]);
    let frame = |number| {
        let opcode = OpCode::Data(if number == 0 { Data::Binary } else { Data::Continue });
        Message::Frame(Frame::message(part(number), opcode, number + 1 == PARTS))
    };
    let quota = Quota::of(1);
    let ended = conversing(&quota, 1000, async |mut client, app| {
        let (mut app_writes, mut app_reads) = app.split();
        let client_talks = async move {
            // The first message passes, and the second is refused.
            for number in (0..PARTS).chain(0..PARTS) {
                client.send(frame(number)).await.expect("sent");
            }
            let mut received = Vec::new();
            for _ in 0..2 {
                received.push(client.next().await.expect("a message").expect("a message"));
            }
            // The notice can arrive before the echo.
            received.sort_by_key(Message::len);
            assert_eq!(received[0], Message::text("refused 1"));
            let mut echo = received.remove(1).into_data();
            for number in 0..PARTS {
                assert!(echo.split_to(100_000) == part(number), "part {number}");
            }
        };
        let app_echoes = async {
            let message = app_reads.next().await.expect("a message").expect("a message");
            assert_eq!(message.len(), 100_000 * PARTS as usize);
            app_writes.send(message).await.expect("sent");
            // The app gets no byte of the refused message.
            assert!(app_reads.next().await.expect("the end of the stream").is_err());
        };
        tokio::join!(client_talks, app_echoes);
    })
    .await;
    ended.expect("both peers have closed");
}

#[tokio::test(start_paused = true)]
async fn invalid_frames_are_answered_with_1002_and_do_not_reach_the_app() {
    let quota = Quota::of(9);
    let garbage: &[&[u8]] = &[b"GET / HTTP/1.1\r\n\r\n", &[0x81, 1, b'x'], &[0xff; 100], &masked(0x81, b"")];
    for bytes in garbage {
        let ended = relayed(&quota, 1 << 10, &CancellationToken::new(), async |mut client, mut app| {
            client.write_all(&[&masked(0x01, b"a"), &masked(0x89, b""), *bytes].concat()).await.expect("sent");
            let mut head = [0; 4];
            client.read_exact(&mut head).await.expect("a close");
            assert_eq!((head[0], &head[2..]), (0x88, &1002_u16.to_be_bytes()[..]));
            let mut reason = vec![0; usize::from(head[1]) - 2];
            client.read_exact(&mut reason).await.expect("a reason");
            expect_end(&mut client).await;
            client.write_all(&[0; 5000]).await.expect("the relay reads and discards more bytes");
            drop(client);

            expect(&mut app, &[masked(0x01, b"a"), masked(0x89, b"")].concat()).await;
            expect_masked(&mut app, &closing(1001, "the client broke the protocol")).await;
            app.write_all(&closing(1001, "")).await.expect("sent");
            expect_end(&mut app).await;
        })
        .await;
        ended.expect("a clean close");
    }
}

#[tokio::test(start_paused = true)]
async fn a_drain_sends_a_close_to_both_sides() {
    let drain = CancellationToken::new();
    let ended = relayed(&Quota::of(9), 1 << 10, &drain, async |mut client, mut app| {
        // Both peers have sent only a part of a message's frame.
        client.write_all(&[0x01, 0x82, 0, 0, 0, 0, b'a']).await.expect("sent");
        app.write_all(&[0x01, 2, b'A']).await.expect("sent");
        expect(&mut app, &[0x01, 0x82, 0, 0, 0, 0, b'a']).await;
        expect(&mut client, &[0x01, 2, b'A']).await;
        drain.cancel();
        client.write_all(b"b").await.expect("sent");
        app.write_all(&[&b"B"[..], &plain(0x80, b"not told any more")].concat()).await.expect("sent");
        expect(&mut app, b"b").await;
        expect_masked(&mut app, &closing(1001, "the proxy is shutting down")).await;
        expect(&mut client, b"B").await;
        expect(&mut client, &closing(1001, "the server is shutting down")).await;
        client.write_all(&masked(0x88, &1001_u16.to_be_bytes())).await.expect("sent");
        app.write_all(&closing(1001, "")).await.expect("sent");
        expect_end(&mut client).await;
        expect_end(&mut app).await;
    })
    .await;
    ended.expect("a clean close");
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_does_not_answer_a_close_is_disconnected() {
    let drain = CancellationToken::new();
    drain.cancel();
    let begun = tokio::time::Instant::now();
    let ended = relayed(&Quota::of(9), 1 << 10, &drain, async |mut client, mut app| {
        expect(&mut client, &closing(1001, "the server is shutting down")).await;
        expect_masked(&mut app, &closing(1001, "the proxy is shutting down")).await;
        expect_end(&mut client).await;
        expect_end(&mut app).await;
    })
    .await;
    assert_eq!(ended.expect_err("a silent peer").kind(), io::ErrorKind::TimedOut);
    assert_eq!(begun.elapsed().as_secs(), CLOSE_TIMEOUT.as_secs());
}

#[tokio::test(start_paused = true)]
async fn a_client_does_not_outlive_the_app() {
    let begun = tokio::time::Instant::now();
    let (quota, drain) = (Quota::of(9), CancellationToken::new());
    let relay = relayed(&quota, 1 << 10, &drain, async |mut client, mut app| {
        app.write_all(&plain(0x81, b"bye")).await.expect("sent");
        app.shutdown().await.expect("closed");
        expect(&mut client, &plain(0x81, b"bye")).await;
        expect_end(&mut client).await;
        client.write_all(&masked(0x81, b"late")).await.expect("sent");
        expect(&mut app, &masked(0x81, b"late")).await;
        expect_end(&mut app).await;
    });
    // Without a time limit, a failure would hang.
    let ended = tokio::time::timeout(Duration::from_secs(60), relay).await.expect("an end");
    assert_eq!(ended.expect_err("a silent client").kind(), io::ErrorKind::TimedOut);
    assert_eq!(begun.elapsed().as_secs(), CLOSE_TIMEOUT.as_secs());
}

#[tokio::test(start_paused = true)]
async fn an_endless_message_of_the_app_does_not_block_the_client() {
    let quota = Quota::of(0);
    let ended = relayed(&quota, 100, &CancellationToken::new(), async |mut client, mut app| {
        app.write_all(&plain(0x01, b"a")).await.expect("sent");
        expect(&mut client, &plain(0x01, b"a")).await;
        for _ in 0..10_000 {
            client.write_all(&masked(0x81, b"refused")).await.expect("the relay reads the bytes");
        }
        client.write_all(&masked(0x89, b"still here")).await.expect("the relay reads the bytes");
        expect(&mut app, &masked(0x89, b"still here")).await;
        app.write_all(&plain(0x80, b"b")).await.expect("sent");
        expect(&mut client, &plain(0x80, b"b")).await;
        drop(app);
        let mut notices = Vec::new();
        client.read_to_end(&mut notices).await.expect("the end of the stream");
        assert!(notices.starts_with(&[plain(0x81, b"refused 1"), plain(0x81, b"refused 2")].concat()));
        assert!(notices.len() <= MAX_NOTICES && notices.len() > MAX_NOTICES - 20, "{}", notices.len());
    })
    .await;
    ended.expect("both peers have closed");
    assert_eq!(quota.refused.get(), 10_000);
}

#[tokio::test(start_paused = true)]
async fn the_relay_stops_reading_a_client_that_does_not_read() {
    let ended = relayed(&Quota::of(0), 100, &CancellationToken::new(), async |mut client, app| {
        let mut sent = 0;
        let stuck = tokio::time::timeout(Duration::from_secs(3600), async {
            loop {
                client.write_all(&masked(0x81, b"")).await.expect("the relay reads the bytes");
                sent += 1;
            }
        });
        stuck.await.expect_err("the relay stops reading");
        // The messages sent until then fill the queue of notices, a window, and the streams' buffers.
        assert!((300..1000).contains(&sent), "{sent}");
        // As soon as the client reads, the relay reads from it again, and every message gets its notice.
        let (mut reads, mut writes) = tokio::io::split(client);
        let more = async {
            // The test does not know how much of the last frame it wrote, so it starts no new frame.
            writes.shutdown().await.expect("the end of the stream");
            drop(app);
        };
        let mut notices = Vec::new();
        let (_, read) = tokio::join!(more, reads.read_to_end(&mut notices));
        read.expect("the end of the stream");
        let last = format!("refused {sent}");
        assert!(notices.ends_with(&plain(0x81, last.as_bytes())), "{sent}");
    })
    .await;
    ended.expect("both peers have closed");
}

#[tokio::test(start_paused = true)]
async fn each_side_may_end_its_half() {
    let ended = relayed(&Quota::of(1), 1 << 10, &CancellationToken::new(), async |mut client, mut app| {
        client.write_all(&[masked(0x81, b"a"), masked(0x81, b"b")].concat()).await.expect("sent");
        client.shutdown().await.expect("the end of the stream");
        expect(&mut app, &masked(0x81, b"a")).await;
        expect_end(&mut app).await;
        expect(&mut client, &plain(0x81, b"refused 1")).await;
        app.write_all(&plain(0x81, b"c")).await.expect("sent");
        drop(app);
        expect(&mut client, &plain(0x81, b"c")).await;
        expect_end(&mut client).await;
    })
    .await;
    ended.expect("both peers have closed");
}

#[tokio::test(start_paused = true)]
async fn frames_sent_before_the_app_left_reach_the_client() {
    let ended = relayed(&Quota::of(usize::MAX), 1 << 10, &CancellationToken::new(), async |mut client, mut app| {
        app.write_all(&closing(1009, "too big")).await.expect("sent");
        drop(app);
        for _ in 0..10 {
            client.write_all(&masked(0x81, b"on and on")).await.expect("sent");
        }
        expect(&mut client, &closing(1009, "too big")).await;
        expect_end(&mut client).await;
    })
    .await;
    ended.expect("both peers have closed");
}

#[tokio::test(start_paused = true)]
async fn nothing_follows_a_close() {
    let quota = Quota::of(0);
    let ended = relayed(&quota, 1 << 10, &CancellationToken::new(), async |mut client, mut app| {
        app.write_all(&closing(1000, "")).await.expect("sent");
        expect(&mut client, &closing(1000, "")).await;
        // This message is refused, and no notice is allowed after the close.
        client.write_all(&masked(0x81, b"a")).await.expect("sent");
        client.write_all(&masked(0x88, &1000_u16.to_be_bytes())).await.expect("sent");
        client.write_all(&masked(0x81, b"not asked about")).await.expect("sent");
        expect(&mut app, &masked(0x88, &1000_u16.to_be_bytes())).await;
        drop(app);
        expect_end(&mut client).await;
    })
    .await;
    ended.expect("both peers have closed");
    assert_eq!(quota.refused.get(), 1);
}
