//! The baseline of native workers: one thread on an epoll that answers each request with the same bytes. Of a request
//! it looks only for the end.

use std::io::{ErrorKind, Read, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};

use rustix::event::epoll;
use rustix::io::Errno;
use spindle::zmtp::{Handshake, HandshakeStep, Part, SocketType, encode_frame};

/// Bytes of the value that a GET is answered with.
const VALUE_BYTES: usize = 64;
/// Frames of a GET.
const GET_FRAMES: usize = 3;
const FRAME_BYTES_MAX: u64 = 1 << 20;
/// The epoll data of the listener.
const LISTENER: u64 = u64::MAX;

struct Connection {
    stream: TcpStream,
    /// `None`: it is over.
    handshake: Option<Handshake>,
    inbox: Vec<u8>,
    /// Frames of a message that has not arrived whole.
    frames: usize,
}

/// Answers at a port that the system chooses, on the first core, until the process is killed. Prints the same lines as
/// the server.
pub(crate) fn run() {
    core_affinity::set_for_current(core_affinity::get_core_ids().unwrap()[0]);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    println!("kv tcp://{}\nready", listener.local_addr().unwrap());
    std::io::stdout().flush().unwrap();
    let queue = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    epoll::add(&queue, &listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN).unwrap();
    let mut connections: Vec<Option<Connection>> = Vec::new();
    let (mut shared, mut out) = (vec![0; 64 << 10], Vec::new());
    loop {
        let mut room = [const { MaybeUninit::uninit() }; 64];
        let events = match epoll::wait(&queue, &mut room[..], None) {
            Ok((events, _)) => events,
            // The process was stopped, and continues.
            Err(Errno::INTR) => continue,
            Err(why) => panic!("the system does not wait: {why}"),
        };
        for event in events {
            if event.data.u64() == LISTENER {
                let connection = Connection::greet(listener.accept().unwrap().0);
                let data = epoll::EventData::new_u64(connections.len() as u64);
                epoll::add(&queue, &connection.stream, data, epoll::EventFlags::IN).unwrap();
                connections.push(Some(connection));
                continue;
            }
            let place = &mut connections[event.data.u64() as usize];
            if place.as_mut().is_some_and(|connection| !connection.answer(&mut shared, &mut out)) {
                *place = None;
            }
        }
    }
}

impl Connection {
    fn greet(mut stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        stream.set_nonblocking(true).unwrap();
        let mut greeting = Vec::new();
        let handshake = Some(Handshake::begin(SocketType::Router, &mut greeting));
        stream.write_all(&greeting).unwrap();
        Self { stream, handshake, inbox: Vec::new(), frames: 0 }
    }

    /// Whether the connection is open.
    fn answer(&mut self, shared: &mut [u8], out: &mut Vec<u8>) -> bool {
        let count = match self.stream.read(shared) {
            Ok(0) => return false,
            Ok(count) => count,
            Err(error) => return error.kind() == ErrorKind::WouldBlock,
        };
        self.inbox.extend_from_slice(&shared[..count]);
        out.clear();
        let mut at = 0;
        if let Some(handshake) = &mut self.handshake {
            let (taken, step) = handshake.advance(&self.inbox, out).unwrap();
            at = taken;
            if let HandshakeStep::Done(_) = step {
                self.handshake = None;
            }
        }
        while self.handshake.is_none()
            && let Some((part, length)) = Part::decode(&self.inbox[at..], FRAME_BYTES_MAX).unwrap()
        {
            at += length;
            let Part::Frame { more, .. } = part else { continue };
            self.frames += 1;
            if !more {
                let is_get = std::mem::take(&mut self.frames) == GET_FRAMES;
                encode_frame(out, &[1], is_get);
                if is_get {
                    encode_frame(out, &[7; VALUE_BYTES], false);
                }
            }
        }
        self.inbox.drain(..at);
        // The load reads all its answers: there is always room.
        out.is_empty() || self.stream.write_all(out).is_ok()
    }
}
