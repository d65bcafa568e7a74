//! Faults of Redis: a server that is restarted, emptied, full or slow, a failover to another server, and a cluster
//! whose slots move.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio::task::JoinSet;
use weir_core::{Quota, Strategy};
use weir_fuzz::Random;
use weir_seats::{Key, Level, Reply, StoreError, Take, terms::StoreTerms};

use super::{
    servers::{Port, Server, wait_until},
    suite::{key, redis_at},
};
use crate::{
    backend::Backend,
    client::{StoreClient, StoreParts},
    lock::lock,
    memcached::MemcachedStore,
    redis::{Credentials, InvalidRedis, RedisConfig, RedisStore, RedisTls, Topology},
};

const DEADLINE: Duration = Duration::from_secs(20);

fn five() -> StoreTerms {
    let quota = Quota::new(Strategy::FixedWindow, 5, Duration::from_secs(900_000_000), None).expect("a quota");
    StoreTerms::new(1, &[(0, quota)]).expect("terms")
}

async fn take(store: &RedisStore, question: &Take<'_>) -> Result<Reply, StoreError> {
    store.take(&key(1), question, DEADLINE).await
}

/// Repeats the question until the store answers. Every error before must be one of a lost store.
async fn until_answered(store: &RedisStore, question: &Take<'_>) -> Reply {
    until_answered_at(store, &key(1), question).await
}

async fn until_answered_at(store: &RedisStore, key: &Key, question: &Take<'_>) -> Reply {
    loop {
        match store.take(key, question, Duration::from_secs(1)).await {
            Ok(reply) => return reply,
            Err(StoreError::Lost(_) | StoreError::Late | StoreError::Refused(_)) => tokio::task::yield_now().await,
            Err(error) => panic!("{error}"),
        }
    }
}

fn level(reply: Reply) -> Level {
    reply.level
}

#[tokio::test]
async fn a_forgotten_script_is_sent_again() {
    let server = Server::redis(&[]);
    let store = redis_at(Topology::Standalone, std::slice::from_ref(&server));
    let terms = five();
    for _ in 0..3 {
        assert_eq!(take(&store, &Take::new(&terms)).await.map(|reply| reply.granted), Ok(1));
        assert!(server.send_line("SCRIPT FLUSH").starts_with("+OK"));
    }
}

#[tokio::test]
async fn an_emptied_store_begins_a_new_history() {
    let server = Server::redis(&[]);
    let store = redis_at(Topology::Standalone, std::slice::from_ref(&server));
    let terms = five();
    let all = Take { requests: 5, ..Take::new(&terms) };
    let first = take(&store, &all).await.expect("an answer");
    assert_eq!(first.granted, 5);
    assert!(server.send_line("FLUSHALL").starts_with("+OK"));

    // The caller sends the level that it has seen.
    let again = take(&store, &Take { seen: Some(&first.level), ..all }).await.expect("an answer");
    assert_eq!(again.granted, 0);

    // Without a seen level, the count begins again, and returned seats of the old history free no units.
    assert!(server.send_line("FLUSHALL").starts_with("+OK"));
    assert_eq!(take(&store, &all).await.map(|reply| reply.granted), Ok(5));
    let returned = take(&store, &Take { returned: first.served.as_ref(), ..all }).await.expect("an answer");
    assert_eq!(returned.granted, 0);
}

#[tokio::test]
async fn a_killed_store_is_found_again() {
    let mut server = Server::redis(&[]);
    let store = redis_at(Topology::Standalone, std::slice::from_ref(&server));
    let terms = five();
    let question = Take { requests: 3, ..Take::new(&terms) };
    let seen = level(take(&store, &question).await.expect("an answer"));
    server.kill();
    for _ in 0..3 {
        let lost = take(&store, &question).await;
        assert!(matches!(lost, Err(StoreError::Lost(_))), "{lost:?}");
    }
    server.restart();
    // The store has lost three admissions. The seen level restores them.
    let reply = until_answered(&store, &Take { seen: Some(&seen), ..question }).await;
    assert_eq!(reply.granted, 2);
}

#[tokio::test]
async fn a_stalled_store_is_late_and_then_asked_over_another_connection() {
    let server = Server::redis(&[]);
    let store = redis_at(Topology::Standalone, std::slice::from_ref(&server));
    let terms = five();
    assert!(take(&store, &Take::new(&terms)).await.is_ok());
    let connections = || server.send_line("INFO stats").split("total_connections_received:").nth(1).map(str::to_owned);
    let before = connections().expect("a count of connections");
    assert!(server.send_line("CLIENT PAUSE 60000 WRITE").starts_with("+OK"));
    for _ in 0..3 {
        let late = store.take(&key(1), &Take::new(&terms), Duration::from_millis(30)).await;
        assert_eq!(late.map(|reply| reply.granted), Err(StoreError::Late));
    }
    assert!(server.send_line("CLIENT UNPAUSE").starts_with("+OK"));
    assert!(take(&store, &Take::new(&terms)).await.is_ok());
    let after = connections().expect("a count of connections");
    let number = |text: &str| text.split('\r').next().and_then(|text| text.parse::<u32>().ok()).expect("a number");
    // Three connections are from the lines that the test sent, and one is from the store.
    assert_eq!(number(&after) - number(&before), 4, "{before} {after}");
}

#[tokio::test]
async fn a_server_that_follows_another_one_is_left() {
    let server = Server::redis(&[]);
    let store = redis_at(Topology::Standalone, std::slice::from_ref(&server));
    let terms = five();
    assert!(take(&store, &Take::new(&terms)).await.is_ok());
    let silent = Port::reserve();
    assert!(server.send_line(&format!("REPLICAOF 127.0.0.1 {}", silent.number)).starts_with("+OK"));
    let refused = take(&store, &Take::new(&terms)).await;
    assert!(
        matches!(&refused, Err(StoreError::Refused(text)) if text.contains("READONLY") || text.contains("read")),
        "{refused:?}"
    );
    assert!(!store.is_connected());
    assert!(server.send_line("REPLICAOF NO ONE").starts_with("+OK"));
    assert_eq!(take(&store, &Take { requests: 9, ..Take::new(&terms) }).await.map(|reply| reply.granted), Ok(4));
}

#[tokio::test]
async fn a_full_store_refuses() {
    let server = Server::redis(&["--maxmemory", "1kb", "--maxmemory-policy", "noeviction"]);
    let store = redis_at(Topology::Standalone, std::slice::from_ref(&server));
    let terms = five();
    let refused = take(&store, &Take::new(&terms)).await;
    assert!(matches!(&refused, Err(StoreError::Refused(text)) if text.contains("OOM")), "{refused:?}");
}

#[tokio::test]
async fn users_and_their_rights() {
    let server = Server::redis(&[]);
    assert!(server.send_line("ACL SETUSER weir on >secret ~{limits* +@all -@dangerous").starts_with("+OK"));
    let store = |password: &str| {
        let credentials = Credentials { username: Some("weir".to_owned()), password: password.to_owned() };
        assert!(!format!("{credentials:?}").contains(password));
        let config = RedisConfig {
            topology: Topology::Standalone,
            endpoints: vec![server.endpoint()],
            tls: None,
            credentials: Some(credentials),
        };
        RedisStore::new(config).expect("a configuration")
    };
    let terms = five();
    assert!(take(&store("secret"), &Take::new(&terms)).await.is_ok());
    let refused = take(&store("wrong"), &Take::new(&terms)).await;
    assert!(matches!(refused, Err(StoreError::Refused(_))), "{refused:?}");
}

/// The new password is in the file before the server refuses the old one and closes the connections.
#[tokio::test(flavor = "multi_thread")]
async fn no_question_fails_when_a_password_is_changed() {
    // After 16 answers, a client knows how fast its store is, and gives up after 250 ms. On a busy machine, a new
    // connection can take longer. So all questions together are fewer.
    const QUESTIONS: usize = 3;
    let server = Server::redis(&[]);
    let rights = |change: &str| {
        assert!(server.send_line(&format!("ACL SETUSER weir on {change} ~* +@all")).starts_with("+OK"));
    };
    rights(">old >new");
    let (file, endpoint) = (Arc::new(Mutex::new("old")), server.endpoint());
    let password = Arc::clone(&file);
    let open = move || {
        let password = (*lock(&password)).to_owned();
        let credentials = Some(Credentials { username: Some("weir".to_owned()), password });
        let endpoints = vec![endpoint.clone()];
        let config = RedisConfig { topology: Topology::Standalone, endpoints, tls: None, credentials };
        RedisStore::new(config).map(Backend::Redis).map_err(|invalid| invalid.to_string())
    };
    let start = Instant::now();
    let client = StoreClient::start(StoreParts::new("shop/limits", open, move || start.elapsed()));
    let ask_all = || async {
        let mut tasks = JoinSet::new();
        for hash in 0..QUESTIONS as u128 {
            let client = Arc::clone(&client);
            tasks.spawn(async move {
                client.ask(&key(hash), &Take::new(&five())).await.map(|answered| answered.reply.granted)
            });
        }
        tasks.join_all().await
    };
    assert_eq!(ask_all().await, vec![Ok(1); QUESTIONS]);
    // While the server accepts the old password, a wrong one in the file changes nothing.
    *lock(&file) = "wrong";
    assert_eq!(server.send_line("CLIENT KILL USER weir"), ":1\r\n");
    assert_eq!(ask_all().await, vec![Ok(1); QUESTIONS]);
    *lock(&file) = "new";
    rights("<old");
    assert_eq!(server.send_line("CLIENT KILL USER weir"), ":1\r\n");
    assert_eq!(ask_all().await, vec![Ok(1); QUESTIONS]);
    assert!(client.condition().reached);
    // An error on a good connection has another cause, so the wrong password does not replace this connection.
    *lock(&file) = "wrong";
    assert_eq!(server.send_line(&format!("LPUSH {} x", key(99).as_str())), ":1\r\n");
    assert!(client.ask(&key(99), &Take::new(&five())).await.is_err());
    assert_eq!(ask_all().await, vec![Ok(1); QUESTIONS]);
}

/// The rights in docs/guides/scope.md.
const RIGHTS: &str = "-@all +eval +evalsha +time +getrange +set +setrange +del +pexpireat";

fn with_user(topology: Topology, endpoint: String) -> RedisStore {
    let credentials = Some(Credentials { username: Some("weir".to_owned()), password: "secret".to_owned() });
    RedisStore::new(RedisConfig { topology, endpoints: vec![endpoint], tls: None, credentials })
        .expect("a configuration")
}

#[tokio::test]
async fn the_documented_rights_are_enough() {
    let server = Server::redis(&[]);
    let user = format!("ACL SETUSER weir on >secret resetkeys ~{{limits.shop/* ~{{weir.probe.* {RIGHTS}");
    assert!(server.send_line(&user).starts_with("+OK"));
    let store = with_user(Topology::Standalone, server.endpoint());
    for (hash, from) in (0..).zip(Strategy::ALL) {
        // A change of the terms also needs the right to delete the value.
        for (stamp, strategy, requests) in [(1, from, 5), (2, from, 9), (3, Strategy::SlidingWindowLog, 9)] {
            let quota = Quota::new(strategy, requests, Duration::from_secs(900_000), None).expect("a quota");
            let terms = StoreTerms::new(stamp, &[(0, quota)]).expect("terms");
            let reply = store.take(&key(hash), &Take { requests: 2, ..Take::new(&terms) }, DEADLINE).await;
            assert!(reply.is_ok(), "{from:?} {stamp}: {reply:?}");
        }
    }
}

#[tokio::test]
async fn the_documented_rights_are_enough_in_a_cluster_and_with_sentinel() {
    let bus = Port::reserve();
    let node = Server::redis(&["--cluster-enabled", "yes", "--cluster-port", &bus.number.to_string()]);
    assert!(node.send_line("CLUSTER ADDSLOTSRANGE 0 16383").starts_with("+OK"));
    wait_until("the cluster is up", || node.send_line("CLUSTER INFO").contains("cluster_state:ok"));
    let leader = Server::redis(&[]);
    let sentinel = Server::sentinel(leader.port);
    let of_cluster = format!("{RIGHTS} +cluster|slots +ping +asking");
    let of_leader = format!("{RIGHTS} +role");
    let servers = [(&node, &*of_cluster), (&leader, &*of_leader), (&sentinel, "-@all +sentinel|masters +role")];
    for (server, rights) in servers {
        let user = format!("ACL SETUSER weir on >secret resetkeys ~{{limits.shop/* {rights}");
        assert!(server.send_line(&user).starts_with("+OK"));
    }
    let credentials = Some(Credentials { username: Some("weir".to_owned()), password: "secret".to_owned() });
    let sentinels = Topology::Sentinel { service: "limits".to_owned(), credentials };
    for store in [with_user(Topology::Cluster, node.endpoint()), with_user(sentinels, sentinel.endpoint())] {
        assert_eq!(take(&store, &Take::new(&five())).await.map(|reply| reply.granted), Ok(1));
    }
    for (server, _) in servers {
        // Newer servers know `CLIENT SETINFO`, which only names the client. Its refusal changes nothing.
        let log = server.send_line("ACL LOG");
        let named = log.matches("object\r\n$14\r\nclient|setinfo\r\n").count();
        assert_eq!(log.matches("object\r\n").count(), named, "the server has refused a command: {log}");
    }
}

/// The rights are enough for the probe and for other strategies.
#[tokio::test]
async fn a_refusal_of_all_questions_of_a_rule_is_reported() {
    let server = Server::redis(&[]);
    let rights = |rights: &str| {
        assert!(server.send_line(&format!("ACL SETUSER weir on >secret ~* {rights}")).starts_with("+OK"));
    };
    rights("-@all +eval +evalsha +time +getrange +set");
    let (start, later, endpoint) = (Instant::now(), Arc::new(AtomicU64::new(0)), server.endpoint());
    let clock = Arc::clone(&later);
    let open = move || Ok(Backend::Redis(with_user(Topology::Standalone, endpoint.clone())));
    let clock = move || start.elapsed() + Duration::from_secs(clock.load(Relaxed));
    let client = StoreClient::start(StoreParts::new("shop/limits", open, clock));
    let quota = Quota::new(Strategy::SlidingWindowLog, 5, Duration::from_secs(900), None).expect("a quota");
    let log = StoreTerms::new(1, &[(0, quota)]).expect("terms");
    let other = Key::new("limits shop/api.other", 1).expect("a key");
    for seconds in [0, 4] {
        later.store(seconds, Relaxed);
        let refused = client.ask(&key(1), &Take::new(&log)).await;
        assert!(matches!(refused, Err(StoreError::Refused(_))), "{refused:?}");
        assert!(client.ask(&other, &Take::new(&five())).await.is_ok());
    }
    let condition = client.condition();
    let error = condition.error.expect("an error");
    let begin = "the store refuses questions of limits.shop/api.test; allow its user EVAL, EVALSHA, TIME, GETRANGE, \
                 SET, SETRANGE, DEL and PEXPIREAT: ";
    let reasons = ["can't run this command", "no permissions to run the 'setrange' command"];
    assert!(error.starts_with(begin) && reasons.iter().any(|reason| error.contains(reason)), "{error}");
    assert!(!condition.reached);
    rights(RIGHTS);
    assert!(client.ask(&key(1), &Take::new(&log)).await.is_ok());
    assert!(client.condition().reached);
}

#[tokio::test]
async fn connections_are_secured_by_tls() {
    let mut params = CertificateParams::new(vec![]).expect("a certificate");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority");
    let server_key = KeyPair::generate().expect("a key");
    let names = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("a certificate");
    let certificate = names.signed_by(&server_key, &issuer).expect("a certificate");
    let files = tempfile::tempdir().expect("a directory");
    let write = |name: &str, text: String| {
        let path = files.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.display().to_string()
    };
    let authority = write("ca.pem", issuer.pem());
    let (certificate, private) = (write("tls.pem", certificate.pem()), write("key.pem", server_key.serialize_pem()));
    let port = Port::reserve();
    let files = format!("--tls-cert-file {certificate} --tls-key-file {private} --tls-ca-cert-file {authority}");
    let arguments = format!("--tls-port {} --tls-auth-clients no {files}", port.number);
    let server = Server::redis(&arguments.split(' ').collect::<Vec<_>>());
    let store = |tls| {
        let endpoints = vec![format!("127.0.0.1:{}", port.number)];
        let config = RedisConfig { topology: Topology::Standalone, endpoints, tls, credentials: None };
        RedisStore::new(config).expect("a configuration")
    };
    let terms = five();
    let trusted = RedisTls { authorities: Some(issuer.pem().into_bytes()), identity: None };
    assert_eq!(take(&store(Some(trusted)), &Take::new(&terms)).await.map(|reply| reply.granted), Ok(1));
    let stranger = take(&store(Some(RedisTls::default())), &Take::new(&terms)).await;
    assert!(matches!(stranger, Err(StoreError::Lost(_))), "{stranger:?}");
    drop(server);
}

#[tokio::test]
async fn sentinel_names_the_server_that_leads() {
    let mut leader = Server::redis(&[]);
    let replica = Server::redis(&["--replicaof", "127.0.0.1", &leader.port.to_string()]);
    let sentinel = Server::sentinel(leader.port);
    wait_until("the replica follows", || replica.send_line("INFO replication").contains("master_link_status:up"));
    wait_until("the sentinel knows the replica", || sentinel.send_line("INFO sentinel").contains("slaves=1"));
    let topology = Topology::Sentinel { service: "limits".to_owned(), credentials: None };
    let store = redis_at(topology, std::slice::from_ref(&sentinel));
    let terms = five();
    let question = Take { requests: 2, ..Take::new(&terms) };
    let first = take(&store, &question).await.expect("an answer");
    // The replica does not grant the replicated requests again.
    wait_until("the key is replicated", || replica.send_line("DBSIZE").starts_with(":1"));
    assert!(replica.send_line("CONFIG SET replica-serve-stale-data yes").starts_with("+OK"));
    leader.kill();
    let second = until_answered(&store, &question).await;
    assert_eq!((first.granted, second.granted), (2, 2));
    let third = take(&store, &Take { requests: 5, ..question }).await.expect("an answer");
    assert_eq!(third.granted, 1);
}

/// A node can fail that has both the first Sentinel and the leader.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_store_is_found_again_while_its_first_sentinel_is_silent() {
    let mut leader = Server::redis(&[]);
    let sentinel = Server::sentinel(leader.port);
    // The kernel accepts connections to this socket, and no program reads from them.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoints = vec![silent.local_addr().expect("an address").to_string(), sentinel.endpoint()];
    let open = move || {
        let topology = Topology::Sentinel { service: "limits".to_owned(), credentials: None };
        let config = RedisConfig { topology, endpoints: endpoints.clone(), tls: None, credentials: None };
        RedisStore::new(config).map(Backend::Redis).map_err(|invalid| invalid.to_string())
    };
    let start = Instant::now();
    let client = StoreClient::start(StoreParts::new("shop/limits", open, move || start.elapsed()));
    let terms = five();
    while client.ask(&key(1), &Take::new(&terms)).await.is_err() {}
    leader.kill();
    wait_until("the store is lost", || !client.condition().reached);
    leader.restart();
    wait_until("the store is reached", || client.condition().reached);
}

/// Starts a cluster of three nodes with these arguments.
fn cluster(arguments: &[&str]) -> Vec<Server> {
    // The bus has a separate port, because the default one, which is 10,000 higher, is possibly in use.
    let buses = [(); 3].map(|()| Port::reserve());
    let node = |bus: &Port| {
        let port = bus.number.to_string();
        Server::redis(&[&["--cluster-enabled", "yes", "--cluster-port", &port], arguments].concat())
    };
    let nodes: Vec<Server> = buses.iter().map(node).collect();
    for ((node, slots), epoch) in nodes.iter().zip(["0 5460", "5461 10922", "10923 16383"]).zip(1..) {
        // With equal epochs, the nodes would choose new ones during the test, and could undo the move of a slot.
        assert!(node.send_line(&format!("CLUSTER SET-CONFIG-EPOCH {epoch}")).starts_with("+OK"));
        assert!(node.send_line(&format!("CLUSTER ADDSLOTSRANGE {slots}")).starts_with("+OK"));
        let meet = format!("CLUSTER MEET 127.0.0.1 {} {}", nodes[0].port, buses[0].number);
        assert!(node.send_line(&meet).starts_with("+OK"));
    }
    for node in &nodes {
        wait_until("the cluster is up", || {
            let info = node.send_line("CLUSTER INFO");
            ["state:ok", "known_nodes:3", "current_epoch:3"].iter().all(|it| info.contains(&format!("cluster_{it}\r")))
        });
    }
    nodes
}

#[tokio::test]
async fn a_cluster_is_followed_as_slots_move() {
    let nodes = cluster(&[]);
    let store = redis_at(Topology::Cluster, &nodes);
    let terms = five();
    let mut granted = vec![0; 60];
    let mut used = 0;
    for round in 0..3 {
        for (hash, granted) in (0..).zip(&mut granted) {
            let reply = store.take(&key(hash), &Take { requests: 3, ..Take::new(&terms) }, DEADLINE).await;
            *granted += reply.expect("an answer").granted;
        }
        if round == 0 {
            used = nodes.iter().filter(|node| !node.send_line("DBSIZE").starts_with(":0")).count();
            // A slot with a key moves from its node to the next one. During and after the move, the servers redirect
            // the client to the new node.
            let slot = slot(&nodes, 7);
            let [from, to] = places(&nodes, slot);
            begin_move([from, to], slot, key(7).as_str());
            let reply = store.take(&key(7), &Take::new(&terms), DEADLINE).await;
            granted[7] += reply.expect("an answer").granted;
            end_move(&nodes, [from, to], slot);
        }
    }
    assert_eq!(used, 3, "keys are on all nodes");
    assert!(granted.iter().all(|&granted| granted == 5), "{granted:?}");

    // The client of a cluster can repeat a question, so a cluster takes no seats back.
    let all = Take { requests: 5, ..Take::new(&terms) };
    let first = store.take(&key(99), &all, DEADLINE).await.expect("an answer");
    let returned = Take { returned: first.served.as_ref(), ..all };
    assert_eq!(store.take(&key(99), &returned, DEADLINE).await.map(|reply| reply.granted), Ok(0));
}

fn slot(nodes: &[Server], hash: u128) -> u16 {
    let slot = nodes[0].send_line(&format!("CLUSTER KEYSLOT {}", key(hash).as_str()));
    slot.trim_start_matches(':').trim().parse().expect("a slot")
}

/// Returns keys on the last node, and keys on the other ones.
fn keys_on_last(nodes: &[Server]) -> (Vec<u128>, Vec<u128>) {
    (0..60).partition(|hash| slot(nodes, *hash) > 10_922)
}

/// With `cluster-require-full-coverage no`, the other masters serve their slots while one master is away.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_without_full_coverage_serves_the_slots_of_its_other_nodes() {
    let arguments = ["--cluster-require-full-coverage", "no", "--cluster-node-timeout", "500"];
    let mut nodes = cluster(&arguments);
    let store = redis_at(Topology::Cluster, &nodes);
    let (on_last, others) = keys_on_last(&nodes);
    let (terms, most) = (five(), Duration::from_secs(5));
    for &hash in on_last.iter().chain(&others) {
        assert!(store.take(&key(hash), &Take::new(&terms), DEADLINE).await.is_ok());
    }
    nodes[2].kill();
    wait_until("the others notice it", || nodes[0].send_line("CLUSTER INFO").contains("cluster_slots_fail:5461"));
    for (&away, &there) in on_last[..3].iter().zip(&others) {
        let refused = store.take(&key(away), &Take::new(&terms), most).await;
        assert!(matches!(refused, Err(StoreError::Lost(_) | StoreError::Late | StoreError::Refused(_))), "{refused:?}");
        let reply = store.take(&key(there), &Take::new(&terms), most).await;
        assert!(reply.is_ok(), "{reply:?}");
    }
    nodes[2].restart();
    until_answered_at(&store, &key(on_last[0]), &Take::new(&terms)).await;
}

/// The client opens new connections because of the late answers. Meanwhile, the other nodes answer over the old ones.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_node_of_a_cluster_does_not_stop_the_others() {
    let nodes = cluster(&[]);
    let store = redis_at(Topology::Cluster, &nodes);
    let (on_last, others) = keys_on_last(&nodes);
    let terms = five();
    for &hash in on_last.iter().chain(&others) {
        assert!(store.take(&key(hash), &Take::new(&terms), DEADLINE).await.is_ok());
    }
    nodes[2].signal("STOP");
    let mut late = JoinSet::new();
    for &hash in &on_last[..4] {
        let (store, terms) = (Arc::clone(&store), terms.clone());
        late.spawn(async move {
            for _ in 0..20 {
                let answer = store.take(&key(hash), &Take::new(&terms), Duration::from_millis(50)).await;
                assert!(answer.is_err(), "the node is silent");
            }
        });
    }
    // A new connection to the silent node fails after two seconds.
    let deadline = Duration::from_millis(1_500);
    while !late.is_empty() {
        while let Some(done) = late.try_join_next() {
            done.expect("no answer of the silent node");
        }
        let reply = store.take(&key(others[0]), &Take::new(&terms), deadline).await;
        assert!(reply.is_ok(), "{reply:?}");
    }
    nodes[2].signal("CONT");
    until_answered_at(&store, &key(on_last[0]), &Take::new(&terms)).await;
}

/// Returns the node of a slot, and another node.
fn places(nodes: &[Server], slot: u16) -> [&Server; 2] {
    let from = match slot {
        0..=5_460 => 0,
        5_461..=10_922 => 1,
        _ => 2,
    };
    [&nodes[from], &nodes[(from + 1) % 3]]
}

fn id(node: &Server) -> String {
    node.send_line("CLUSTER MYID").split("\r\n").nth(1).expect("an id").to_owned()
}

fn begin_move([from, to]: [&Server; 2], slot: u16, key: &str) {
    assert!(to.send_line(&format!("CLUSTER SETSLOT {slot} IMPORTING {}", id(from))).starts_with("+OK"));
    assert!(from.send_line(&format!("CLUSTER SETSLOT {slot} MIGRATING {}", id(to))).starts_with("+OK"));
    assert!(from.send_line(&format!("MIGRATE 127.0.0.1 {} {key} 0 5000", to.port)).starts_with("+OK"));
}

/// The new owner is the first to get the slot, as with redis-cli.
fn end_move(nodes: &[Server], [from, to]: [&Server; 2], slot: u16) {
    let others = nodes.iter().filter(|node| ![from.port, to.port].contains(&node.port));
    for node in [to, from].into_iter().chain(others) {
        assert!(node.send_line(&format!("CLUSTER SETSLOT {slot} NODE {}", id(to))).starts_with("+OK"));
    }
}

#[tokio::test]
async fn questions_share_one_connection() {
    let server = Server::redis(&[]);
    let store = redis_at(Topology::Standalone, std::slice::from_ref(&server));
    let tasks: Vec<_> = (0..200)
        .map(|_| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { take(&store, &Take::new(&five())).await.map(|reply| reply.granted) })
        })
        .collect();
    let mut granted = 0;
    for task in tasks {
        granted += task.await.expect("no panic").expect("an answer");
    }
    assert_eq!(granted, 5);
    // The store has one connection. The other one is the test's.
    assert!(server.send_line("INFO clients").contains("connected_clients:2"), "{}", server.send_line("INFO clients"));
}

#[test]
fn what_cannot_be_a_store_is_refused() {
    let config = |topology, endpoints: &[&str]| {
        let endpoints = endpoints.iter().map(ToString::to_string).collect();
        RedisStore::new(RedisConfig { topology, endpoints, tls: None, credentials: None }).map(|_| ())
    };
    assert_eq!(config(Topology::Standalone, &[]), Err(InvalidRedis::Endpoints));
    assert_eq!(config(Topology::Standalone, &["a:1", "b:1"]), Err(InvalidRedis::Endpoints));
    assert_eq!(config(Topology::Cluster, &["a"]), Err(InvalidRedis::Endpoint("a".to_owned())));
    assert_eq!(config(Topology::Cluster, &[":1"]), Err(InvalidRedis::Endpoint(":1".to_owned())));
    assert_eq!(config(Topology::Cluster, &["a:1", "[::1]:6379"]), Ok(()));
}

#[tokio::test]
async fn a_killed_memcached_is_found_again() {
    let mut server = Server::memcached(&[]);
    let store = MemcachedStore::new(&[server.endpoint()]).expect("a store");
    let bucket = Quota::new(Strategy::TokenBucket, 5, Duration::from_secs(900_000_000), None).expect("a quota");
    for terms in [five(), StoreTerms::new(1, &[(0, bucket)]).expect("terms")] {
        let question = Take { requests: 3, ..Take::new(&terms) };
        let now = 1_790_000_000_000_000;
        let first = store.take(&key(1), &question, || now, DEADLINE).await.expect("an answer");
        assert_eq!(first.granted, 3);
        server.kill();
        for _ in 0..3 {
            let lost = store.take(&key(1), &question, || now, DEADLINE).await;
            assert!(matches!(lost, Err(StoreError::Lost(_))), "{lost:?}");
        }
        server.restart();
        let again = Take { seen: Some(&first.level), ..question };
        let second = store.take(&key(1), &again, || now, DEADLINE).await.expect("an answer");
        assert_eq!(second.granted, 2, "the seen level restores three admissions");
        server.send_line("flush_all");
    }
}

/// Without version numbers, each write with a condition would fail, and the question would start again until its deadline.
#[tokio::test]
async fn a_memcached_without_cas_refuses_what_needs_it() {
    let server = Server::memcached(&["-C"]);
    let store = MemcachedStore::new(&[server.endpoint()]).expect("a store");
    let take = async |terms: &StoreTerms| {
        let reply = store.take(&key(1), &Take::new(terms), || 1_790_000_000_000_000, DEADLINE).await;
        reply.map(|reply| reply.granted)
    };
    let bucket = Quota::new(Strategy::TokenBucket, 5, Duration::from_secs(900), None).expect("a quota");
    let bucket = StoreTerms::new(1, &[(0, bucket)]).expect("terms");
    assert_eq!(take(&bucket).await, Ok(1), "the first write has another condition");
    let text = "Memcached runs without CAS: remove its option -C".to_owned();
    assert_eq!(take(&bucket).await, Err(StoreError::Refused(text)));
    assert_eq!(take(&five()).await, Ok(1));
}

/// If the clocks of callers differ, the limit admits at most `rate * difference` more.
#[tokio::test]
async fn clocks_that_differ_admit_the_stated_bound() {
    let server = Server::memcached(&[]);
    let store = MemcachedStore::new(&[server.endpoint()]).expect("a store");
    let quota = Quota::new(Strategy::TokenBucket, 100, Duration::from_secs(1), None).expect("a quota");
    let terms = StoreTerms::new(1, &[(0, quota)]).expect("terms");
    let (question, mut granted) = (Take { requests: 1_000, ..Take::new(&terms) }, 0);
    for now in [0, 2_000_000, 0, 1_000_000, 2_000_000] {
        let reply = store.take(&key(1), &question, || 1_790_000_000_000_000 + now, DEADLINE).await;
        granted += reply.expect("an answer").granted;
    }
    assert_eq!(granted, 200, "one burst, and one more that refills within two seconds of difference");
}

/// Two programs use up a limit together. The unused seats of each program are lost at the end, so near the end of a
/// window the store gives fewer seats in advance.
#[tokio::test]
async fn little_is_lost_when_programs_use_up_a_window_together() {
    let server = Server::memcached(&[]);
    let store = MemcachedStore::new(&[server.endpoint()]).expect("a store");
    let quota = Quota::new(Strategy::FixedWindow, 100, Duration::from_hours(24), None).expect("a quota");
    let terms = StoreTerms::new(1, &[(0, quota)]).expect("terms");
    let mut random = Random::new(5);
    let (rounds, mut admitted) = (50, 0);
    for round in 0..rounds {
        let mut programs: [(Option<Level>, u32); 2] = Default::default();
        for _ in 0..104 {
            let (level, hand) = &mut programs[random.below(2)];
            if *hand > 0 {
                *hand -= 1;
                admitted += 1;
                continue;
            }
            let question = Take { requests: 1, prefetch: 50, seen: level.as_ref(), ..Take::new(&terms) };
            let reply = store.take(&key(round), &question, || 1_790_000_000_000_000, DEADLINE).await;
            let Reply { granted, prefetched, level: newest, .. } = reply.expect("an answer");
            admitted += granted;
            *hand = prefetched.map_or(0, |seats| seats.left());
            *level = Some(newest);
        }
    }
    let possible = 100 * u32::try_from(rounds).expect("small");
    assert!(admitted <= possible && admitted * 1_000 >= possible * 995, "{admitted} of {possible}");
}
