//! Agents that keep reporting, and when they are asked again.

use super::*;

/// Where an agent is told what to say.
#[derive(Clone)]
pub(in crate::link) struct Lines(mpsc::Sender<Bytes>);

impl Lines {
    pub(in crate::link) async fn say(&self, line: impl Into<Bytes>) {
        self.0.send(line.into()).await.unwrap();
    }

    /// Nobody listens any more.
    pub(in crate::link) async fn closed(&self) {
        self.0.closed().await;
    }
}

/// An agent that takes whatever it is sent, and goes on telling: whenever it is asked to, what it was asked and where it is
/// told what to say. With it, whom it believes.
pub(in crate::link) async fn telling_agent() -> (SocketAddr, mpsc::Receiver<(String, Lines)>, Held) {
    let ours = authorities();
    let (address, questions) = teller(tls(good(&ours), &ours, b"h2")).await;
    (address, questions, watch::channel(Some(credentials(&ours))).1)
}

async fn teller(server: ServerConfig) -> (SocketAddr, mpsc::Receiver<(String, Lines)>) {
    let acceptor = TlsAcceptor::from(Arc::new(server));
    let (asked, questions) = mpsc::channel(16);
    let address = listen(move |stream| {
        let (acceptor, asked) = (acceptor.clone(), asked.clone());
        async move {
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let service = hyper::service::service_fn(move |request: Request<hyper::body::Incoming>| {
                let asked = asked.clone();
                async move {
                    if request.method() == Method::PUT {
                        let put = request.into_body().collect().await.unwrap().to_bytes();
                        let Snapshot { sequence, revision, .. } = serde_json::from_slice(&put).unwrap();
                        let in_force = InForce { sequence, revision, since_unix_millis: 1 };
                        let reply = serde_json::to_vec(&ApplyReply { in_force }).unwrap();
                        return Response::builder().body(Either::Left(Full::new(Bytes::from(reply))));
                    }
                    let (lines, told) = mpsc::channel(2000);
                    asked.send((request.uri().to_string(), Lines(lines))).await.unwrap();
                    let frames = futures::stream::unfold(told, |mut told: mpsc::Receiver<Bytes>| async move {
                        let line = told.recv().await?;
                        Some((Ok::<_, std::convert::Infallible>(hyper::body::Frame::data(line)), told))
                    });
                    Response::builder().header(CONTENT_TYPE, STATUS_LINES).body(Either::Right(StreamBody::new(frames)))
                }
            });
            let io = hyper_util::rt::TokioIo::new(stream);
            let executor = hyper_util::rt::TokioExecutor::new();
            drop(hyper::server::conn::http2::Builder::new(executor).serve_connection(io, service).await);
        }
    })
    .await;
    (address, questions)
}

/// A pod whose agent goes on telling, how often it was asked to and where it is told what to say next.
async fn followed(timing: Timing) -> (Client, Pace, Lines) {
    let (address, mut questions, held) = telling_agent().await;
    let mut client = Client::new(&format!("https://{address}"), pod("web"), Some(held));
    let pace = Pace::new(timing);
    let answers = async {
        let (asked, lines) = questions.recv().await.unwrap();
        assert_eq!(asked.split_once("/v1/").unwrap().1, format!("status?everyMillis={}", timing.poll.as_millis()));
        for part in STATUS.split_inclusive(',').chain(["\n"]) {
            lines.say(part).await;
        }
        lines
    };
    let (told, lines) = tokio::join!(client.status(None, &pace, LIMIT), answers);
    assert!(matches!(told.unwrap(), Told::Status { .. }) && client.is_following());
    // A second request gets no answer.
    tokio::spawn(async move {
        let mut unanswered = Vec::new();
        while let Some(question) = questions.recv().await {
            unanswered.push(question);
        }
    });
    (client, pace, lines)
}

fn seldom() -> Timing {
    Timing { poll: Duration::from_secs(60), ..Timing::default() }
}

#[tokio::test]
async fn who_goes_on_telling_is_heard_without_being_asked() {
    let (mut client, pace, lines) = followed(seldom()).await;
    for line in ["\n", "\n", STATUS, "\n", "\n"] {
        lines.say(line).await;
    }
    let heard = timeout(LIMIT, client.hears(&pace)).await.unwrap();
    assert!(matches!(&heard, Heard::Status(status) if status.instance == "a"), "{heard:?}");
    // That it is there is heard and not told, and what is not waited for is not lost.
    timeout(Duration::from_millis(50), client.hears(&pace)).await.expect_err("nothing is new");
    assert!(client.is_following());
    drop(lines);
    assert!(matches!(timeout(LIMIT, client.hears(&pace)).await.unwrap(), Heard::Stopped));
    assert!(!client.is_following() && client.is_connected());
}

#[tokio::test]
async fn who_stops_telling_or_tells_nonsense_is_left() {
    let quick = Timing { poll: Duration::from_millis(200), timeout: Duration::from_millis(100), ..Timing::default() };
    let (mut client, pace, _lines) = followed(quick).await;
    let heard = timeout(LIMIT, client.hears(&pace)).await.expect("it is noticed");
    assert!(matches!(heard, Heard::Silent) && !client.is_connected(), "{heard:?}");

    for (what, said, expected) in [
        ("no JSON", &["nonsense\n"][..], "expected"),
        ("no status", &["{}\n"], "missing field"),
        ("too much", &["\n"; 1100], "more often than it was asked to"),
    ] {
        let (mut client, pace, lines) = followed(seldom()).await;
        for line in said {
            lines.say(*line).await;
        }
        let heard = timeout(LIMIT, client.hears(&pace)).await.unwrap_or_else(|_| panic!("{what}"));
        let Heard::Nonsense(error) = heard else { panic!("{what}: {heard:?}") };
        assert!(error.to_string().contains(expected) && !client.is_connected(), "{what}: {error}");
    }
}

#[tokio::test]
async fn who_tells_more_or_less_often_than_it_should_is_asked_again() {
    let (mut client, pace, lines) = followed(Timing::default()).await;
    pace.spread(10_000);
    lines.say("\n").await;
    let heard = timeout(LIMIT, client.hears(&pace)).await.unwrap();
    assert!(matches!(heard, Heard::Stopped) && client.is_connected(), "{heard:?}");
}

/// A connection is used no longer than the certificates that it was made with, whatever is told over it.
#[tokio::test]
async fn who_goes_on_telling_is_asked_again_before_its_certificate_ends() {
    let ours = authorities();
    for more in ["", STATUS] {
        // It ends in a few seconds: made nearly an hour ago, for an hour.
        let short = certificate(&ours, &pod("web"), ExtendedKeyUsagePurpose::ServerAuth, now() + 3 - HOUR);
        let (address, mut questions) = teller(tls(short, &ours, b"h2")).await;
        let (_, held) = watch::channel(Some(credentials(&ours)));
        let mut client = Client::new(&format!("https://{address}"), pod("web"), Some(held));
        let telling = tokio::spawn(async move {
            let (_, lines) = questions.recv().await.unwrap();
            lines.say(format!("{STATUS}\n")).await;
            while lines.0.send(format!("{more}\n").into()).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
        client.status(None, &pace(), LIMIT).await.unwrap();
        let ended = async {
            loop {
                match client.hears(&pace()).await {
                    Heard::Status(_) => assert_eq!(more, STATUS),
                    heard => return heard,
                }
            }
        };
        let heard = timeout(LIMIT, ended).await.expect("it is noticed");
        assert!(matches!(heard, Heard::Stopped), "{heard:?}");
        telling.abort();
    }
}

/// A call ends what was told before, and is answered over the same connection.
#[tokio::test]
async fn a_call_ends_what_goes_on() {
    let (mut client, pace, lines) = followed(seldom()).await;
    let again = client.status(None, &pace, Duration::from_millis(200)).await;
    assert!(matches!(again, Err(ContactError::Timeout(_))), "{again:?}");
    timeout(LIMIT, lines.closed()).await.expect("the first one was given up");
}
