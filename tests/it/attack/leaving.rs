//! Attackers that leave in the middle of what they asked for, and leave a server with writes to a connection that is
//! gone.

use std::process::{Command, Stdio};
use std::time::Duration;

use super::connections::Line;
use super::samples::Target;
use super::siege::Siege;
use super::zmtp::{command, message};
use crate::harness::{Guarded, python_with_pyzmq};
use crate::seeded_rng::SeededRng;

/// More messages than a pipe of libzmq takes.
const PIPE: usize = 1_001;
/// A client of libzmq with heartbeats, which asks for long values and reads none of them.
const FLOOD: &str = "
import sys, zmq
socket = zmq.Context().socket(zmq.DEALER)
socket.setsockopt(zmq.HEARTBEAT_IVL, 10)
socket.connect(sys.argv[1])
print(flush=True)
while True:
    socket.send_multipart([b'', b'\\4', b'attacked', b'large'])
";
/// The longest time that such a client floods, in milliseconds.
const FLOODING_MS_MAX: usize = 300;
/// Connections that ask for much, and are gone together.
const GREEDY: usize = 50;
/// Requests of each.
const GREED: usize = 800;

/// Messages that fill a pipe, a PING, and a reset: the assertions of libzmq that a peer could reach.
pub(super) fn pings(target: &Target, siege: &Siege, mut rng: SeededRng) {
    let ping = command(b"PING", b"\0\0");
    while !siege.is_over() {
        let Some(line) = Line::open(target.address) else { continue };
        siege.count(1);
        let full = rng.pick(&[1, PIPE, PIPE * 3]);
        let bytes = [target.hello(&mut rng), message(&[b"\x05"]).repeat(full), ping.clone()].concat();
        let _gone = line.write(&bytes);
        if rng.one_in(2) {
            line.wait_to_read();
        }
        line.leave(true);
    }
}

/// Clients with heartbeats that are killed while they flood.
pub(super) fn heartbeats(target: &Target, siege: &Siege, mut rng: SeededRng) {
    let python = python_with_pyzmq().expect("the attack is made where pyzmq is");
    let endpoint = format!("tcp://{}", target.address);
    while !siege.is_over() {
        let mut command = Command::new(&python);
        command.args(["-c", FLOOD, &endpoint]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut client = Guarded(command.spawn().unwrap());
        // It has connected, or is gone.
        let _begun = std::io::Read::read(client.0.stdout.as_mut().unwrap(), &mut [0]);
        siege.count(1);
        siege.rest(Duration::from_millis(rng.index(FLOODING_MS_MAX) as u64));
    }
}

/// Clients that ask for much more than they could read, and are gone.
pub(super) fn gone(target: &Target, siege: &Siege, mut rng: SeededRng) {
    let greed = target.greed().repeat(GREED);
    while !siege.is_over() {
        let mut lines = Vec::new();
        while lines.len() < GREEDY && !siege.is_over() {
            let Some(line) = Line::open(target.address) else { continue };
            siege.count(1);
            let _gone = line.write(&target.hello(&mut rng));
            let _gone = line.write(&greed);
            lines.push(line);
        }
        siege.rest(Duration::from_millis(rng.index(100) as u64));
        lines.into_iter().for_each(|line| line.leave(true));
    }
}
