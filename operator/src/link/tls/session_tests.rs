//! Against the server of rustls, whatever is done to its bytes on the way.

use std::io::{Read as _, Write as _};

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use rustls::server::ProducesTickets;
use rustls::{AlertDescription, ServerConfig, ServerConnection};

use super::super::tests::{bytes, name, parties};
use super::*;

/// Several records, as the server here cuts them.
const ANSWER: usize = 600;

impl Session {
    /// How much memory there is for bytes that are on their way.
    pub(in super::super) fn held(&self) -> usize {
        self.incoming.capacity() + self.plain.bytes.capacity() + self.outgoing.bytes.capacity()
    }
}

/// A client, a server, and what they have heard of one another.
struct Conversation {
    client: Session,
    server: ServerConnection,
    heard: Vec<u8>,
    /// What the server has against the client.
    refused: Option<Error>,
}

impl Conversation {
    fn between((client, server): (Arc<ClientConfig>, ServerConfig)) -> Self {
        let client = Session::new(client, name()).unwrap();
        let server = ServerConnection::new(Arc::new(server)).unwrap();
        Self { client, server, heard: Vec::new(), refused: None }
    }

    /// After the handshake.
    fn established(parties: (Arc<ClientConfig>, ServerConfig)) -> Self {
        let mut conversation = Self::between(parties);
        conversation.carry(receive);
        assert!(!conversation.client.is_handshaking() && !conversation.server.is_handshaking());
        conversation
    }

    /// What the two say reaches the other, until both are silent.
    fn carry(&mut self, mut deliver: impl FnMut(&mut Session, &[u8])) {
        loop {
            self.reach_server();
            let said = self.said();
            if said.is_empty() {
                return;
            }
            deliver(&mut self.client, &said);
        }
    }

    fn reach_server(&mut self) {
        let mut rest = self.client.outgoing.rest();
        while !rest.is_empty() && self.refused.is_none() {
            self.server.read_tls(&mut rest).unwrap();
            self.refused = self.server.process_new_packets().err();
            // That there is nothing more at the moment is no error.
            let _ = self.server.reader().read_to_end(&mut self.heard);
        }
        let all = self.client.outgoing.rest().len();
        self.client.outgoing.take(all);
    }

    fn said(&mut self) -> Vec<u8> {
        let mut said = Vec::new();
        while self.server.wants_write() {
            self.server.write_tls(&mut said).unwrap();
        }
        said
    }

    fn says(&mut self, plain: &[u8]) -> Vec<u8> {
        self.server.writer().write_all(plain).unwrap();
        self.said()
    }

    /// What the client has read.
    fn read(&mut self) -> Vec<u8> {
        let read = self.client.plain.rest().to_vec();
        self.client.plain.take(read.len());
        read
    }
}

/// A handshake, a question, an answer and an announced end, all of which the client hears as `deliver` has it.
/// As a transport does, which has a place of its own for what comes.
fn receive(client: &mut Session, bytes: &[u8]) {
    client.receive(&mut bytes.to_vec());
}

fn converse(
    mut parties: (Arc<ClientConfig>, ServerConfig),
    mut deliver: impl FnMut(&mut Session, &[u8]),
) -> Conversation {
    parties.1.max_fragment_size = Some(200);
    let mut conversation = Conversation::between(parties);
    conversation.carry(&mut deliver);
    if conversation.client.end().is_none() && !conversation.client.is_handshaking() {
        conversation.client.send(b"question").unwrap();
    }
    conversation.carry(&mut deliver);
    if conversation.heard == b"question" {
        conversation.server.writer().write_all(&bytes(ANSWER)).unwrap();
        conversation.server.send_close_notify();
    }
    conversation.carry(&mut deliver);
    conversation.client.receive_end();
    conversation
}

fn assert_whole(mut conversation: Conversation) {
    assert_eq!(conversation.refused, None);
    assert_eq!(conversation.client.end(), Some(&End::Closed));
    assert!(conversation.read() == bytes(ANSWER));
    assert_eq!(conversation.client.held(), 0);
}

#[test]
fn a_whole_conversation_in_any_pieces() {
    let (client, server) = parties();
    let parties = || (client.clone(), server.clone());
    assert_whole(converse(parties(), receive));
    assert_whole(converse(parties(), |client, bytes| {
        for byte in bytes {
            receive(client, &[*byte]);
        }
    }));
    for seed in 0..40 {
        let mut random = StdRng::seed_from_u64(seed);
        let most = random.random_range(2..400);
        assert_whole(converse(parties(), |client, mut bytes| {
            while !bytes.is_empty() {
                let (piece, rest) = bytes.split_at(random.random_range(1..=most).min(bytes.len()));
                receive(client, piece);
                bytes = rest;
            }
        }));
    }
}

/// Where a byte is in its record.
#[derive(Default)]
struct Records {
    head: Vec<u8>,
    left: usize,
}

impl Records {
    fn is_in_head(&mut self, byte: u8) -> bool {
        if self.left > 0 {
            self.left -= 1;
            return false;
        }
        self.head.push(byte);
        if self.head.len() == 5 {
            self.left = usize::from(u16::from_be_bytes([self.head[3], self.head[4]]));
            self.head.clear();
        }
        true
    }
}

/// One bit of what the server says is turned. In what is said that shows, always; a record's head has bits that nobody
/// looks at.
#[test]
fn what_was_changed_on_the_way_is_never_taken_for_what_was_said() {
    let (client, server) = parties();
    let (mut damaged, mut shown) = (0, 0);
    for place in (0..).step_by(3) {
        let (mut at, mut records, mut in_head) = (0, Records::default(), None);
        let mut conversation = converse((client.clone(), server.clone()), |client, bytes| {
            let mut bytes = bytes.to_vec();
            for byte in &mut bytes {
                let is_in_head = records.is_in_head(*byte);
                if at == place {
                    *byte ^= 1 << (place % 8);
                    in_head = Some(is_in_head);
                }
                at += 1;
            }
            receive(client, &bytes);
        });
        let Some(in_head) = in_head else { break };
        damaged += 1;
        let read = conversation.read();
        assert!(bytes(ANSWER).starts_with(&read), "bit {} of byte {place}", place % 8);
        let is_error = matches!(conversation.client.end(), Some(End::Broken(_) | End::CutOff));
        if is_error {
            shown += 1;
        } else {
            assert!(in_head && read.len() == ANSWER, "bit {} of byte {place}", place % 8);
        }
    }
    // That there was something to be damaged.
    assert!(damaged > 400 && shown > damaged * 9 / 10, "{shown} of {damaged}");
}

#[test]
fn what_is_cut_off_is_never_taken_for_the_end() {
    let (client, mut server) = parties();
    // In several records, like the certificate.
    server.ticketer = Arc::new(Tickets(500));
    for most in (0..).step_by(11) {
        let (mut left, mut is_cut) = (most, false);
        let mut conversation = converse((client.clone(), server.clone()), |client, bytes| {
            let bytes = &bytes[..bytes.len().min(left)];
            is_cut = is_cut || bytes.len() == left;
            left -= bytes.len();
            receive(client, bytes);
        });
        if !is_cut {
            assert_whole(conversation);
            return;
        }
        assert!(bytes(ANSWER).starts_with(&conversation.read()), "{most}");
        assert_eq!(conversation.client.end(), Some(&End::CutOff), "{most}");
        // A peer that still wants to send may.
        if !conversation.client.is_handshaking() {
            conversation.client.send(b"more").unwrap();
            conversation.client.send(b"and more").unwrap();
        }
    }
}

#[test]
fn a_bad_record_ends_it_for_good_and_the_peer_hears_of_it() {
    let mut conversation = Conversation::established(parties());
    let (good, next) = (conversation.says(b"good"), conversation.says(b"next"));
    // Slipped in: without it the next one would be good, too.
    let mut forged = next.clone();
    *forged.last_mut().unwrap() ^= 1;
    // The piece in which it comes does not matter.
    receive(&mut conversation.client, &[&good[..], &forged, &next].concat());
    receive(&mut conversation.client, &next);
    conversation.client.receive_end();
    assert_eq!(conversation.read(), b"good");
    assert_eq!(conversation.client.end(), Some(&End::Broken(Error::DecryptError)));
    assert_eq!(conversation.client.send(b"more"), Err(Error::DecryptError));
    conversation.client.close();
    conversation.reach_server();
    assert_eq!(conversation.refused, Some(Error::AlertReceived(AlertDescription::BadRecordMac)));
    assert!(conversation.heard.is_empty());
    assert_eq!(conversation.client.held(), 0);
}

/// There, the client has more to say than the alert, and the server more than what is wrong.
#[test]
fn a_stranger_hears_why_it_is_not_believed() {
    let ((client, _), (_, stranger)) = (parties(), parties());
    let mut conversation = Conversation::between((client, stranger));
    conversation.carry(receive);
    assert!(matches!(conversation.client.end(), Some(End::Broken(Error::InvalidCertificate(_)))));
    assert!(matches!(conversation.refused, Some(Error::AlertReceived(_))), "{:?}", conversation.refused);
    assert_eq!(conversation.client.held(), 0);
}

#[test]
fn keys_may_change_at_any_time() {
    let mut conversation = Conversation::established(parties());
    for round in 0..100_u8 {
        conversation.server.refresh_traffic_keys().unwrap();
        let said = conversation.says(&[round]);
        receive(&mut conversation.client, &said);
        assert_eq!(conversation.read(), [round]);
        // With it goes that the client has changed its own.
        conversation.client.send(&[round]).unwrap();
        conversation.carry(receive);
        assert_eq!(conversation.heard, [round]);
        conversation.heard.clear();
    }
    assert_eq!((conversation.refused, conversation.client.end()), (None, None));
    assert_eq!(conversation.client.held(), 0);
}

#[test]
fn many_records_may_come_at_once_and_much_may_be_sent() {
    let mut parties = parties();
    parties.1.max_fragment_size = Some(32);
    let mut conversation = Conversation::established(parties);
    let said = conversation.says(&bytes(20_000));
    receive(&mut conversation.client, &said);
    assert!(conversation.read() == bytes(20_000));
    for length in [0, 1, 16 * 1024 - 1, 16 * 1024, 16 * 1024 + 1, 300_000] {
        conversation.client.send(&bytes(length)).unwrap();
        conversation.carry(receive);
        assert!(conversation.heard == bytes(length), "{length}");
        conversation.heard.clear();
    }
    assert_eq!(conversation.client.held(), 0);
}

/// Nobody makes the client wait for the rest of something with more than one record in its hands.
#[test]
fn a_record_that_is_not_whole_is_all_that_is_kept() {
    let mut conversation = Conversation::established(parties());
    let said = conversation.says(&bytes(16 * 1024));
    let (most, last) = said.split_at(said.len() - 1);
    for piece in most.chunks(1000) {
        assert!(piece.len() <= conversation.client.room());
        receive(&mut conversation.client, piece);
    }
    assert!(conversation.client.plain.rest().is_empty());
    assert!((16 * 1024..=2 * MAX_RECORD_BYTES).contains(&conversation.client.held()));
    // The next one begins in the same piece.
    let next = conversation.says(&bytes(10));
    receive(&mut conversation.client, &[last, &next[..7]].concat());
    assert!(conversation.read() == bytes(16 * 1024));
    assert!(conversation.client.held() < 64, "{}", conversation.client.held());
    receive(&mut conversation.client, &next[7..]);
    assert_eq!(conversation.read(), bytes(10));
    assert_eq!(conversation.client.held(), 0);
}

#[test]
fn a_handshake_without_an_end_is_ended() {
    let (client, _) = parties();
    let mut client = Session::new(client, name()).unwrap();
    let mut came = 0;
    // A message of 65,000 bytes, one byte in each record.
    for byte in [2, 0, 0xfd, 0xe8].into_iter().chain(std::iter::repeat_n(0, 60_000)) {
        let record = [22, 3, 3, 0, 1, byte];
        receive(&mut client, &record);
        if client.end().is_some() {
            break;
        }
        came += record.len();
        assert!(client.incoming.len() <= MAX_HANDSHAKE_BYTES, "{came}");
    }
    assert!(matches!(client.end(), Some(End::Broken(Error::InvalidMessage(_)))), "{:?}", client.end());
    assert_eq!(client.incoming.capacity(), 0);
}

#[derive(Debug)]
struct Tickets(usize);

impl ProducesTickets for Tickets {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        3600
    }

    fn encrypt(&self, _plain: &[u8]) -> Option<Vec<u8>> {
        Some(vec![7; self.0])
    }

    fn decrypt(&self, _cipher: &[u8]) -> Option<Vec<u8>> {
        None
    }
}

/// Tickets are of no use here, and not refused either. After the handshake nothing longer than a record is put together.
#[test]
fn tickets_are_taken_up_to_a_record() {
    for (length, longest, is_taken) in [
        (100, 777, true),
        (17_000, 777, true),
        (17_000, usize::MAX, true),
        (40_000, 777, false),
        (40_000, usize::MAX, false),
    ] {
        let (client, mut server) = parties();
        (server.ticketer, server.send_tls13_tickets) = (Arc::new(Tickets(length)), 1);
        let mut conversation = Conversation::between((client, server));
        let mut most = 0;
        conversation.carry(|client, mut bytes| {
            while !bytes.is_empty() {
                let (piece, rest) = bytes.split_at(client.room().min(bytes.len()).min(longest));
                receive(client, piece);
                most = most.max(client.incoming.len());
                bytes = rest;
            }
        });
        assert!(most <= MAX_RECORD_BYTES, "{length}: {most}");
        assert_eq!(conversation.client.end().is_none(), is_taken, "{length}: {:?}", conversation.client.end());
        if is_taken {
            let said = conversation.says(b"good");
            receive(&mut conversation.client, &said);
            assert_eq!(conversation.read(), b"good");
            assert_eq!(conversation.client.held(), 0);
        }
    }
}
