//! The baseline of the server: its connections and its queue, with no work behind them.
//!
//! ```text
//! clients ══► connections ─► batch ─► ROUTER ══inproc══► DEALER: constant answers, one in each thread
//! ```
//! A request of three frames is answered as a GET of a value, one of four as a SET. There are as many threads as the
//! server has workers.

use std::io::Write;
use std::sync::Arc;
use std::thread;

use rustix::event::{PollFd, PollFlags, poll};
use spindle::clock::Clock;
use spindle::limits::{BATCH_BYTES, BATCH_MAX, BATCH_TURNS, BATCHES_OF_A_WORKER, HELD_BYTES_MAX};
use spindle::net::budget::Budget;
use spindle::net::sockets::WakeSignal;
use spindle::net::zeromq::inproc::{Message, QueueEnd, WorkerEnd, queue};
use spindle::net::zeromq::{BoundListener, ConnectionState, Connections, TurnBatch, TurnOutcome, TurnParts};
use spindle::threads::stay_on;
use spindle::zmtp::MessageBounds;

/// Bytes of the value that a GET is answered with.
const VALUE_BYTES: usize = 64;
const OK: &[u8] = b"\x01";
/// Frames of a GET.
const GET_FRAMES: usize = 3;

/// A connection, of which nothing need be known.
#[derive(Default)]
struct Client;

impl ConnectionState for Client {}

/// Answers at a port that the system chooses, until the process is killed. Prints the same lines as the server.
pub(crate) fn run(workers: usize) {
    let (wake_signal, budget) = (WakeSignal::new().unwrap(), Budget::new(HELD_BYTES_MAX));
    let bounds = MessageBounds { frame_bytes: 1 << 24, frames: 16, bytes: 1 << 24 };
    let mut connections: Connections<Client> = Connections::new(&wake_signal, bounds, &budget, None).unwrap();
    let listener = BoundListener::bind("tcp://127.0.0.1:*").unwrap();
    println!("kv {}\nready", listener.endpoint());
    std::io::stdout().flush().unwrap();
    connections.listen(listener).unwrap();
    let (mut end, ends) = queue(workers).unwrap();
    connections.watch(&end).unwrap();
    for worker in ends {
        let budget = Arc::clone(&budget);
        thread::Builder::new().name("echo".to_owned()).spawn(move || answer(worker, &budget)).unwrap();
    }
    if workers == 1 {
        stay_on(&[0]);
    }
    let clock = Clock::start();
    let (mut batches, mut spare) = (vec![0; workers], Vec::new());
    loop {
        connections.wait(None, || clock.now());
        while round(&mut connections, &mut end, &mut batches, &mut spare) {}
        while connections.gone().is_some() {}
        while connections.drained().is_some() {}
    }
}

/// Takes back what was answered, and gives out what has come. Returns whether something was given out.
fn round(
    connections: &mut Connections<Client>,
    end: &mut QueueEnd<TurnBatch<Client>>,
    batches: &mut [usize],
    spare: &mut Vec<Message<TurnBatch<Client>>>,
) -> bool {
    while let Some((worker, mut batch)) = end.receive() {
        connections.take_back(&mut batch);
        batches[worker] -= 1;
        spare.push(batch);
    }
    connections.flush();
    let mut is_any = false;
    while let Some((worker, count)) = batches.iter_mut().enumerate().min_by_key(|(_, count)| **count)
        && *count < BATCHES_OF_A_WORKER
    {
        let mut batch = spare.pop().unwrap_or_default();
        while batch.len() < BATCH_TURNS
            && batch.received() < BATCH_BYTES
            && connections.send_out(BATCH_MAX, &mut batch).is_some()
        {}
        if batch.is_empty() {
            spare.push(batch);
            break;
        }
        *count += 1;
        assert!(end.send(worker, batch));
        is_any = true;
    }
    is_any
}

/// Answers each message with a reply of the same shape as the server's.
fn answer(mut end: WorkerEnd<TurnBatch<Client>>, budget: &Budget) {
    stay_on(&[0]);
    let value = [7_u8; VALUE_BYTES];
    loop {
        let Some(mut batch) = end.receive() else {
            poll(&mut [PollFd::new(&end, PollFlags::IN)], None).unwrap();
            continue;
        };
        for place in 0..batch.len() {
            let waits = batch.answer(place, budget, |TurnParts { messages, replies, .. }| {
                for message in messages.iter() {
                    let is_get = message.frames().len() == GET_FRAMES;
                    replies.push(OK, is_get);
                    if is_get {
                        replies.push(&value, false);
                    }
                }
                TurnOutcome::All
            });
            assert!(waits.is_none());
        }
        end.send(batch);
    }
}
