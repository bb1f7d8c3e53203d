//! The baseline of the server: the same sockets with no work behind them.
//!
//! ```text
//! proxy   clients ══► ROUTER ─► zmq_proxy ─► DEALER ══inproc══► DEALER: answers, one in each thread
//! router  clients ══► ROUTER: answers, in the thread that received
//! ```
//! A request of three frames is answered as a GET of a value, one of four as a SET. All settings are libzmq's defaults.
//! There are as many threads as the server has workers.

use std::io::Write;
use std::thread;

/// Bytes of the value that a GET is answered with.
const VALUE_BYTES: usize = 64;

const INSIDE: &str = "inproc://echo";
const OK: &[u8] = b"\x01";
/// Frames of a GET behind the routing id.
const GET_FRAMES: usize = 3;

/// Answers at a port that the system chooses, until the process is killed. Prints the same lines as the server.
pub(crate) fn run(workers: usize) {
    let context = zmq::Context::new();
    let router = context.socket(zmq::ROUTER).unwrap();
    router.bind("tcp://127.0.0.1:*").unwrap();
    let endpoint = router.get_last_endpoint().unwrap().unwrap();
    if workers == 0 {
        ready(&endpoint);
        return answer(&router);
    }
    let dealer = context.socket(zmq::DEALER).unwrap();
    dealer.bind(INSIDE).unwrap();
    for _ in 0..workers {
        let socket = context.socket(zmq::DEALER).unwrap();
        socket.connect(INSIDE).unwrap();
        thread::Builder::new().name("echo".to_owned()).spawn(move || answer(&socket)).unwrap();
    }
    ready(&endpoint);
    zmq::proxy(&router, &dealer).unwrap();
}

fn ready(endpoint: &str) {
    println!("kv {endpoint}\nready");
    std::io::stdout().flush().unwrap();
}

/// Answers each message with its routing id and a reply of the same shape as the server's.
fn answer(socket: &zmq::Socket) {
    let value = [7_u8; VALUE_BYTES];
    let mut frame = zmq::Message::new();
    loop {
        let mut id = zmq::Message::new();
        socket.recv(&mut id, 0).unwrap();
        let mut frames = 0;
        loop {
            socket.recv(&mut frame, 0).unwrap();
            frames += 1;
            if !frame.get_more() {
                break;
            }
        }
        socket.send(id, zmq::SNDMORE).unwrap();
        if frames == GET_FRAMES {
            socket.send(OK, zmq::SNDMORE).unwrap();
            socket.send(&value[..], 0).unwrap();
        } else {
            socket.send(OK, 0).unwrap();
        }
    }
}
