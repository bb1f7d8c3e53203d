//! Clients ask for large answers and read them late. The workers together hold no more than the frontend may, and no
//! client is closed.

use std::thread;

use spindle::services::tables::serve::FrontendKind;

use crate::peer::Peer;
use crate::waiting::{Held, serve_parts};

const OK: &[u8] = &[1];
const WORKERS: usize = 3;
const VALUE: usize = 1 << 20;
/// Values of one answer.
const KEYS: u8 = 8;
/// The frontend's bound: four answers.
const HELD: u64 = 4 * KEYS as u64 * VALUE as u64;
const CLIENTS: usize = 24;
/// Answers for each of them.
const ROUNDS: usize = 3;
/// A worker may notice the bound after it has made an answer, lets another one through if no connection moves, and has
/// a portion that it has not counted. The buffer of an answer grows to twice its size at most.
const BESIDES: u64 = WORKERS as u64 * (4 * KEYS as u64 + 1) * (VALUE as u64 + 1_024);

#[test]
fn large_answers_of_all_workers_together_wait_for_their_readers_and_all_come() {
    let configure = |settings: &mut spindle::services::tables::serve::KvConfig| {
        settings.cores.native = vec![None; WORKERS];
        settings.value_max = VALUE;
        settings.held_bytes_max = HELD;
    };
    serve_parts(FrontendKind::Native, 1 << 12, configure, |Held { endpoint, release, .. }| {
        release();
        let context = zmq::Context::new();
        let control: Vec<Peer> = (0..WORKERS).map(|_| Peer::connect(&context, &endpoint)).collect();
        assert_eq!(control[0].call(&[&[0], b"t"]), [OK]);
        for key in 0..KEYS {
            assert_eq!(control[0].call(&[&[2], b"t", &[key], &vec![key; VALUE]]), [OK]);
        }
        let late = |_| {
            Peer::connect_with(&context, &endpoint, |socket| {
                socket.set_rcvhwm(1).unwrap();
                socket.set_rcvbuf(4_096).unwrap();
            })
        };
        let clients: Vec<Peer> = (0..CLIENTS).map(late).collect();
        let keys: Vec<[u8; 1]> = (0..KEYS).map(|key| [key]).collect();
        let get_many: Vec<&[u8]> = [&[10][..], b"t"].into_iter().chain(keys.iter().map(<[u8; 1]>::as_slice)).collect();
        for client in &clients {
            (0..ROUNDS).for_each(|_| client.ask(&get_many));
        }
        let mut most = 0;
        while most < HELD / 2 {
            most = control[0].clients("outstanding_bytes").max(most);
        }
        thread::scope(|scope| {
            let readers: Vec<_> = clients.into_iter().map(|client| scope.spawn(move || read(&client))).collect();
            while !readers.iter().all(thread::ScopedJoinHandle::is_finished) {
                // All workers answer small requests meanwhile.
                control.iter().for_each(|control| assert_eq!(control.call(&[&[5]]), [OK]));
                most = control[0].clients("outstanding_bytes").max(most);
            }
        });
        assert!(most <= HELD + BESIDES, "{most} bytes were held at once");
        assert_eq!(control[0].clients("cut_off"), 0);
    });
}

/// Reads all answers of a client.
fn read(client: &Peer) {
    for round in 0..ROUNDS {
        let answer = client.answer();
        assert_eq!(answer.len(), 1 + 2 * usize::from(KEYS), "round {round}");
        let is_its_own = |(key, pair): (u8, &[Vec<u8>])| pair[0] == OK && pair[1] == vec![key; VALUE];
        assert!((0..KEYS).zip(answer[1..].chunks(2)).all(is_its_own), "round {round}");
    }
}
