//! The handler as libzmq's handshakes see it: over the pipe on which they ask.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

use std::thread::JoinHandle;

use super::*;
use crate::protocols::sockets::FrameOrigin;
use crate::threads;
use crate::zmtp::SecretKey;

/// The public key of ada.
const KEY: [u8; 32] = [9; 32];

/// A handler that runs, for a user "ada" with a key, and a socket that asks as a handshake does.
struct Served {
    folder: tempfile::TempDir,
    users: Users,
    asker: Socket,
    stopper: Stopper,
    threads: Vec<JoinHandle<()>>,
    admission: Admission,
    /// Dropped last: it waits for its sockets.
    context: SocketContext,
}

impl Served {
    fn new(plain: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("users"), ada("")).unwrap();
        let users = Users::open(&folder.path().join("users"), Clock::start()).unwrap();
        let context = SocketContext::new(1);
        let mechanisms = Arc::new(Mechanisms::Users { plain, curve: Some(SecretKey::generate()) });
        let admission = Admission { users: users.clone(), mechanisms };
        let handler = ZapHandler::bind(&context, &admission, Clock::start()).unwrap();
        let stopper = handler.stopper();
        let asker = context.dealer().unwrap();
        asker.connect_within(ZAP_ENDPOINT);
        let checks = users.clone();
        let threads = vec![
            threads::spawn("kv-zap", None, move || handler.run()).unwrap(),
            threads::spawn("users", None, move || checks.run()).unwrap(),
        ];
        Self { folder, users, asker, stopper, threads, admission, context }
    }

    fn send(&self, frames: &[&[u8]]) {
        for (number, frame) in frames.iter().enumerate() {
            self.asker.send_bytes(frame, number + 1 < frames.len());
        }
    }

    /// Asks under this number.
    fn ask(&self, number: u8, mechanism: &[u8], credentials: &[&[u8]]) {
        let head: [&[u8]; 7] = [b"", VERSION, &[number], b"users", b"127.0.0.1", b"", mechanism];
        self.send(&[&head, credentials].concat());
    }

    /// The next answer: its number, its status and the user id.
    fn heard(&self) -> (u8, String, String) {
        let mut frames = vec![Frame::new()];
        self.asker.receive_waiting(&mut frames[0]);
        while frames.last().unwrap().more() {
            frames.push(Frame::new());
            self.asker.receive_rest(frames.last_mut().unwrap());
        }
        let [delimiter, version, number, status, _text, user, metadata] = &frames[..] else { panic!("{frames:?}") };
        assert!(delimiter.is_empty() && **version == *VERSION && metadata.is_empty());
        let text = |frame: &Frame| String::from_utf8(frame.to_vec()).unwrap();
        (number[0], text(status), text(user))
    }
}

impl Served {
    fn stop(&mut self) {
        self.stopper.stop();
        self.users.stop();
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The file of users.
fn ada(end: &str) -> String {
    format!("[ada]\ncurve = \"{}\"\n{end}", PublicKey::of_bytes(KEY))
}

fn refused(number: u8) -> (u8, String, String) {
    (number, "400".to_owned(), String::new())
}

#[test]
fn a_user_is_named_by_one_number_and_others_are_refused_and_counted() {
    let served = Served::new(true);
    served.ask(1, b"CURVE", &[&KEY]);
    let (number, status, user) = served.heard();
    assert_eq!((number, &*status), (1, "200"));
    assert!(user.parse::<u32>().unwrap() > NO_LOGIN);
    served.ask(2, b"CURVE", &[&KEY]);
    assert_eq!(served.heard(), (2, status, user.clone()));
    served.ask(3, b"CURVE", &[&[7; 32]]);
    assert_eq!(served.heard(), refused(3));
    served.ask(4, b"PLAIN", &[b"ada", b"heron"]);
    assert_eq!(served.heard(), refused(4));
    for (number, mechanism, credentials) in [
        (5, &b"NULL"[..], &[][..]),
        (6, b"PLAIN", &[&b"ada"[..]]),
        (7, b"GSSAPI", &[b"ada"]),
        (8, &[0xff; 300], &[b"", b""]),
    ] {
        served.ask(number, mechanism, credentials);
        assert_eq!(served.heard(), refused(number));
    }
    let counts = [Denied::Key, Denied::Password, Denied::Anonymous].map(|why| served.users.refusals(why));
    assert_eq!(counts, [1, 1, 4]);
    // Ada is changed, and has another number from then on.
    std::fs::write(served.folder.path().join("users"), ada("admin = true\n")).unwrap();
    let mut watch = served.users.watch();
    served.users.reread();
    while !watch.has_moved() {
        std::thread::yield_now();
    }
    served.ask(9, b"CURVE", &[&KEY]);
    let (_, status, changed) = served.heard();
    assert_eq!(status, "200");
    assert!(changed.parse::<u32>().unwrap() > user.parse().unwrap());
}

#[test]
fn a_password_is_no_proof_where_it_is_not_taken() {
    let served = Served::new(false);
    served.ask(1, b"PLAIN", &[b"ada", b"heron"]);
    assert_eq!(served.heard(), refused(1));
    assert_eq!(served.users.refusals(Denied::Anonymous), 1);
}

/// Only libzmq asks. Nothing that comes all the same ends the thread, or lets a peer in.
#[test]
fn nonsense_is_passed_over() {
    let served = Served::new(true);
    let own: [&[u8]; 8] = [b"", VERSION, b"1", b"users", b"127.0.0.1", b"", b"CURVE", &KEY];
    served.send(&[b""]);
    served.send(&[b"x"]);
    served.send(&[&b""[..]; 300]);
    for length in 1..7 {
        served.send(&own[..length]);
    }
    let with = |index: usize, frame: &'static [u8]| {
        let mut frames = own;
        frames[index] = frame;
        frames
    };
    for frames in [with(0, b"x"), with(1, b"1.1"), with(1, b""), with(7, b"short"), with(7, &[0; 33])] {
        served.send(&frames);
    }
    served.send(&[&own[..], &[&b"more"[..]; 20]].concat());
    served.ask(7, b"CURVE", &[&KEY]);
    let (number, status, _) = served.heard();
    assert_eq!((number, &*status), (7, "200"), "and nothing before was answered");
}

/// A slow check of a password delays no other handshake, and one whose peer has gone is given up.
#[test]
fn a_password_that_waits_delays_no_other_handshake() {
    let served = Served::new(true);
    let wrong: Vec<u8> = (10..20).collect();
    for number in &wrong {
        served.ask(*number, b"PLAIN", &[b"ada", &[*number]]);
    }
    served.ask(1, b"CURVE", &[&KEY]);
    // The wrong ones are checked one after the other, with longer and longer pauses.
    loop {
        let (number, status, _) = served.heard();
        if number == 1 {
            assert_eq!(status, "200");
            break;
        }
        assert_eq!(status, "400");
        assert_ne!(number, 19, "it is checked after more than a minute");
    }
}

/// libzmq kept the pipe to the handler as long as the connection, and closed the connection with it.
#[test]
fn connections_outlive_the_handler() {
    let mut served = Served::new(true);
    let (ada_key, server_key) = (SecretKey::generate(), SecretKey::generate());
    let text = format!("[ada]\ncurve = \"{}\"\n", ada_key.public_key());
    std::fs::write(served.folder.path().join("users"), text).unwrap();
    let mut watch = served.users.watch();
    served.users.reread();
    while !watch.has_moved() {
        std::thread::yield_now();
    }
    let mechanisms = Arc::new(Mechanisms::Users { plain: true, curve: Some(server_key.clone()) });
    let mut router = served.context.router(1_000).unwrap();
    ask_for_users(&router, &Admission { mechanisms, ..served.admission.clone() });
    let endpoint = router.bind("tcp://127.0.0.1:*").unwrap();
    let clients = zmq::Context::new();
    let client = clients.socket(zmq::DEALER).unwrap();
    client.set_linger(0).unwrap();
    client.set_curve_serverkey(server_key.public_key().to_string().as_bytes()).unwrap();
    client.set_curve_publickey(ada_key.public_key().to_string().as_bytes()).unwrap();
    client.set_curve_secretkey(ada_key.to_secret_text().as_bytes()).unwrap();
    client.connect(&endpoint).unwrap();
    let (mut id, mut frame) = (Frame::new(), Frame::new());
    for turn in [b"before", b"behind"] {
        client.send(&turn[..], 0).unwrap();
        router.receive_waiting(&mut id);
        router.receive_waiting(&mut frame);
        assert_eq!(*frame, turn[..]);
        assert!(FrameOrigin::of(std::mem::take(&mut frame)).login() > NO_LOGIN);
        assert_eq!(router.address(&id), Addressed::Ready);
        router.send_bytes(turn, false);
        assert_eq!(client.recv_bytes(0).unwrap(), turn);
        if !served.threads.is_empty() {
            served.stop();
        }
    }
}
