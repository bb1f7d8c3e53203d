//! A bare publisher: it sends the bytes of a feed at a pace, always the same ones, and does nothing else. What a
//! subscriber and its connection cost the writers of a server is seen beside it, whatever the server's feed costs.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use spindle::feed::{Cause, FeedChange, FeedPosition, encode_changes, topic_of_table};
use spindle::zmtp::{Handshake, HandshakeStep, SocketType, encode_frame};

use crate::write::TABLE;

/// Changes of a message, as the feed sends them under load.
const CHANGES: usize = 64;
/// Messages that are sent at once.
const MESSAGES: usize = 8;

/// The publisher of one subscriber.
pub(crate) struct BarePublisher {
    pub(crate) endpoint: String,
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl BarePublisher {
    /// Waits for a subscriber, and sends it so many changes a second.
    pub(crate) fn start(pace: f64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("tcp://{}", listener.local_addr().unwrap());
        let is_over = Arc::new(AtomicBool::new(false));
        let is_ended = Arc::clone(&is_over);
        let thread = thread::spawn(move || publish(listener.accept().unwrap().0, pace, &is_ended).unwrap());
        Self { endpoint, is_over, thread }
    }

    /// Closes the connection.
    pub(crate) fn end(self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}

fn publish(mut stream: TcpStream, pace: f64, is_over: &AtomicBool) -> io::Result<()> {
    stream.set_nodelay(true)?;
    shake(&mut stream)?;
    let (block, start) = (block(), Instant::now());
    for number in 0_u32.. {
        let due = start + Duration::from_secs_f64(f64::from(number) * (CHANGES * MESSAGES) as f64 / pace);
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if is_over.load(Ordering::Relaxed) {
            break;
        }
        stream.write_all(&block)?;
    }
    Ok(())
}

/// The handshake with a subscriber, whose subscription is not read.
fn shake(stream: &mut TcpStream) -> io::Result<()> {
    let (mut out, mut came, mut bytes) = (Vec::new(), Vec::new(), [0; 4_096]);
    let mut handshake = Handshake::begin(SocketType::XPub, &mut out);
    loop {
        stream.write_all(&out)?;
        out.clear();
        let count = stream.read(&mut bytes)?;
        came.extend_from_slice(&bytes[..count]);
        let (taken, step) = handshake.advance(&came, &mut out).map_err(io::Error::other)?;
        came.drain(..taken);
        if let HandshakeStep::Done(_) = step {
            return stream.write_all(&out);
        }
    }
}

/// Messages of changes with keys of 16 bytes and values of 64.
fn block() -> Vec<u8> {
    let change = FeedChange { cause: Cause::Set, version: 1, deadline_millis: None, key: &[b'k'; 16], value: &[7; 64] };
    let position = FeedPosition { epoch: 1, incarnation: 1, sequence: 1 };
    let (mut payload, mut block) = (Vec::new(), Vec::new());
    encode_changes(position, &[change; CHANGES], &mut payload);
    for _ in 0..MESSAGES {
        encode_frame(&mut block, &topic_of_table(TABLE), true);
        encode_frame(&mut block, &payload, false);
    }
    block
}
