//! The client's sockets against servers that these tests play, over real sockets of this host.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

mod handshakes;
mod messages;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::{JoinHandle, spawn};

use super::*;
use crate::zmtp::{Cipher, Handshake, HandshakeStep, Mechanisms, SecretKey, encode_pong};

/// Long enough for any expected event.
const PATIENCE: Duration = Duration::from_secs(30);
/// Short enough to wait for an event that must not come.
const MOMENT: Duration = Duration::from_millis(30);
/// No tries again: each test has one connection.
const ONCE: ClientTimeouts = ClientTimeouts { connect: PATIENCE, answer: PATIENCE, retries: false };

/// What a played server does with its only connection.
type Part<T> = Box<dyn FnOnce(TcpStream) -> T + Send>;

/// A listener whose thread plays `part` with the first connection.
fn playing<T: Send + 'static>(part: impl FnOnce(TcpStream) -> T + Send + 'static) -> (String, JoinHandle<T>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("tcp://{}", listener.local_addr().unwrap());
    let part: Part<T> = Box::new(part);
    let thread = spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        stream.set_nodelay(true).unwrap();
        part(stream)
    });
    (endpoint, thread)
}

/// A server's side of a connection.
struct Peer {
    stream: TcpStream,
    cipher: Option<Box<Cipher>>,
    /// Received bytes, opened, that were not taken yet.
    come: Vec<u8>,
    /// Received bytes that are sealed.
    sealed: Vec<u8>,
}

impl Peer {
    /// Greets and admits everybody, and sends at most `most` bytes of that, `piece` at a time. `None`: the client has
    /// gone, or the bytes are used up.
    fn greet(
        mut stream: TcpStream,
        ours: SocketType,
        mechanisms: &Mechanisms,
        most: usize,
        piece: usize,
    ) -> Option<Self> {
        let (mut out, mut come, mut sent) = (Vec::new(), Vec::new(), 0);
        let mut handshake = Handshake::serve(ours, &Arc::new(mechanisms.clone()), &mut out);
        loop {
            let advanced = handshake.advance(&come, &mut out);
            let refuses = advanced.is_err();
            let (taken, mut step) = advanced.unwrap_or((0, HandshakeStep::More));
            come.drain(..taken);
            while let HandshakeStep::Claimed(_) = step {
                step = handshake.admit(&mut out).unwrap();
            }
            let left = most - sent;
            for bytes in out[..out.len().min(left)].chunks(piece) {
                stream.write_all(bytes).ok()?;
            }
            if out.len() > left || refuses {
                return None;
            }
            sent += out.len();
            out.clear();
            if matches!(step, HandshakeStep::Done(_)) {
                let cipher = handshake.cipher();
                let (come, sealed) = if cipher.is_some() { (Vec::new(), come) } else { (come, Vec::new()) };
                return Some(Self { stream, cipher, come, sealed });
            }
            if taken == 0 && !receive(&mut stream, &mut come) {
                return None;
            }
        }
    }

    /// A server that answers requests, without users.
    fn router(stream: TcpStream) -> Self {
        Self::greet(stream, SocketType::Router, &Mechanisms::Open, usize::MAX, usize::MAX).unwrap()
    }

    /// Waits for the next message. `None`: the client has gone.
    fn receive_message(&mut self) -> Option<Vec<Vec<u8>>> {
        let (mut cutter, mut messages) = (MessageCutter::default(), Messages::default());
        let bounds = MessageBounds { frame_bytes: u64::MAX, frames: usize::MAX, bytes: usize::MAX };
        loop {
            self.open();
            let left = cutter.cut(&self.come, &bounds, 1, &mut messages, &mut Vec::new()).unwrap();
            let message =
                messages.iter(&self.come).next().map(|message| message.frames().map(<[u8]>::to_vec).collect());
            self.come.drain(left.begun.end..left.rest);
            self.come.drain(..left.begun.start);
            if message.is_some() {
                return message;
            }
            let come = if self.cipher.is_some() { &mut self.sealed } else { &mut self.come };
            if !receive(&mut self.stream, come) {
                return None;
            }
        }
    }

    fn open(&mut self) {
        if let Some(cipher) = &mut self.cipher {
            let taken = cipher.opener.open(&self.sealed, u64::MAX, &mut self.come).unwrap();
            self.sealed.drain(..taken);
        }
    }

    fn say(&mut self, frames: &[&[u8]]) {
        let mut bytes = Vec::new();
        for (number, frame) in frames.iter().enumerate() {
            encode_frame(&mut bytes, frame, number + 1 < frames.len());
        }
        self.say_bytes(&bytes);
    }

    /// Sends whole frames.
    fn say_bytes(&mut self, frames: &[u8]) {
        match &mut self.cipher {
            None => self.stream.write_all(frames).unwrap(),
            Some(cipher) => {
                let mut sealed = Vec::new();
                cipher.sealer.seal(frames, usize::MAX, &mut sealed);
                self.stream.write_all(&sealed).unwrap();
            }
        }
    }

    /// Answers every request with itself, until the client has gone.
    fn echo(mut self) {
        while let Some(message) = self.receive_message() {
            self.say(&message.iter().map(Vec::as_slice).collect::<Vec<_>>());
        }
    }
}

/// Receives once. False: the client has gone.
fn receive(stream: &mut TcpStream, to: &mut Vec<u8>) -> bool {
    let mut room = vec![0; 1 << 16];
    let count = stream.read(&mut room).unwrap_or(0);
    to.extend_from_slice(&room[..count]);
    count > 0
}

/// A client of this server.
fn open(endpoint: &str) -> Result<ClientSocket, ConnectError> {
    ClientSocket::open(&ConnectTarget::requests(endpoint), ONCE)
}

/// Clients of these tests do not share the process's login: each opens with its own.
fn open_as(endpoint: &str, credentials: Credentials) -> Result<ClientSocket, ShakeError> {
    let descriptor = Dialing::start(resolve(endpoint).unwrap(), PATIENCE).wait().unwrap();
    let stream = Shaking::begin(descriptor, SocketType::Dealer, credentials, u64::MAX).wait(PATIENCE)?;
    Ok(ClientSocket::new(stream, u64::MAX))
}

fn plain() -> (Credentials, Mechanisms) {
    let credentials = Credentials::Plain { name: "ada".to_owned(), password: "heron".to_owned() };
    (credentials, Mechanisms::Users { plain: true, curve: None })
}

fn curve() -> (Credentials, Mechanisms) {
    let (own, server) = (SecretKey::generate(), SecretKey::generate());
    (Credentials::Curve { own, server: server.public_key() }, Mechanisms::Users { plain: false, curve: Some(server) })
}

fn null() -> (Credentials, Mechanisms) {
    (Credentials::None, Mechanisms::Open)
}

fn say(socket: &mut ClientSocket, frames: &[&[u8]]) -> Result<(), ConnectError> {
    let last = frames.len() - 1;
    let mut frames = frames.iter().enumerate();
    socket.send(|sink| frames.by_ref().for_each(|(number, frame)| sink(frame, number < last)), PATIENCE)
}

fn receive_message(socket: &mut ClientSocket) -> Result<Vec<Vec<u8>>, ConnectError> {
    let mut frames = Vec::new();
    socket.receive(&mut frames, PATIENCE).map(|()| frames)
}
