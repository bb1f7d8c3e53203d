//! A plain socket to a server, as far as the first message: our ZMTP, waiting.

use std::io::{Read, Write};
use std::net::TcpStream;

use spindle::zmtp::{Handshake, HandshakeStep, SocketType};

/// Connects and shakes hands. Returns the connection, and the received bytes of the first messages.
pub(crate) fn meet(address: &str, ours: SocketType) -> (TcpStream, Vec<u8>) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    let (mut out, mut bytes) = (Vec::new(), Vec::new());
    let mut handshake = Handshake::begin(ours, &mut out);
    loop {
        stream.write_all(&std::mem::take(&mut out)).unwrap();
        let mut some = [0; 4096];
        let count = stream.read(&mut some).unwrap();
        assert!(count > 0, "the server is there");
        bytes.extend_from_slice(&some[..count]);
        let (taken, step) = handshake.advance(&bytes, &mut out).unwrap();
        bytes.drain(..taken);
        if let HandshakeStep::Done(_) = step {
            stream.write_all(&out).unwrap();
            return (stream, bytes);
        }
    }
}
