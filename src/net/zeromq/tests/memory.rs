//! Connections that hold more than the budget of all of them.

use super::*;
use crate::limits::STALLED_MAX;

const MEBIBYTE: usize = 1 << 20;

/// A served client that has been sent `bytes` bytes and has not read them. The system has taken all that it takes.
fn stalled(echo: &mut Echo, bytes: usize) -> (TcpStream, ConnectionId) {
    let mut stream = echo.connect();
    stream.write_all(&[introduction(SocketType::Dealer), message(&[b"x"])].concat()).unwrap();
    let received = echo.received.len();
    echo.receive(received + 1);
    let id = echo.received[received];
    echo.connections.connection(id).unwrap().1.push(&vec![7; bytes], false);
    let (mut before, mut sent) = (0, 1);
    while sent != before {
        pass(echo);
        (before, sent) = (sent, echo.connections.connection(id).unwrap().1.sent());
    }
    (stream, id)
}

/// Runs one pass, even if there is no work.
fn pass(echo: &mut Echo) {
    echo.wake_signal.raise();
    echo.pass();
}

/// Lets the time pass in which connections that stand still are found.
fn let_time_pass(echo: &mut Echo, mut meanwhile: impl FnMut()) {
    for _ in 0..STALLED_MAX.as_secs() + 2 {
        echo.now = echo.now.after(Duration::from_secs(1));
        meanwhile();
        pass(echo);
        pass(echo);
    }
}

#[test]
fn of_those_that_do_not_read_the_largest_is_closed_and_nobody_else() {
    let mut echo = Echo::start_within(&Budget::new(150 * MEBIBYTE as u64));
    let (_small, small) = stalled(&mut echo, 30 * MEBIBYTE);
    let (_large, large) = stalled(&mut echo, 100 * MEBIBYTE);
    // It reads slowly, and holds more than the first.
    let (mut reading, reads) = stalled(&mut echo, 70 * MEBIBYTE);
    let mut some = vec![0; 256 << 10];
    let_time_pass(&mut echo, || reading.read_exact(&mut some).unwrap());
    let gone: Vec<ConnectionId> = echo.gone.iter().map(|gone| gone.id).collect();
    assert_eq!((gone, echo.connections.cut()), (vec![large], 1));
    assert!(echo.connections.connection(small).is_some() && echo.connections.connection(reads).is_some());
    assert!(echo.connections.bytes() < 112 * MEBIBYTE as u64);
}

#[test]
fn nobody_is_closed_while_there_is_enough_for_all() {
    let mut echo = Echo::start_within(&Budget::new(100 * MEBIBYTE as u64));
    let (_stalled, id) = stalled(&mut echo, 90 * MEBIBYTE);
    let_time_pass(&mut echo, || {});
    assert!(echo.gone.is_empty() && echo.connections.connection(id).is_some());
}

#[test]
fn a_thread_is_woken_when_another_one_holds_too_much_and_when_it_does_no_more() {
    let budget = Budget::new(20 * MEBIBYTE as u64);
    let (mut echo, mut other) = (Echo::start_within(&budget), Echo::start_within(&budget));
    let (mut asking, _) = stalled(&mut other, 0);
    let (mut reading, _) = stalled(&mut echo, 40 * MEBIBYTE);
    assert!(other.pass(), "its wake signal is raised");
    let [small, large] = [message(&[b"small"]), message(&[&[1; BUFFER_KEPT_BYTES + 1]])];
    asking.write_all(&small).unwrap();
    let received = other.received.len();
    other.receive(received + 1);
    assert!(other.was_tight && other.starved == 0, "what is small is answered all the same");
    asking.write_all(&large).unwrap();
    other.now = other.now.after(Duration::from_secs(1));
    other.receive(received + 2);
    assert_eq!(other.starved, 1, "what is large waits, and is answered in its turn");
    let mut left =
        introduction(SocketType::Router).len() + message(&[b"x"]).len() + message(&[&[7; 40 * MEBIBYTE]]).len();
    let mut some = vec![0; MEBIBYTE];
    while left > 0 {
        left -= reading.read(&mut some).unwrap();
        pass(&mut echo);
    }
    assert!(other.pass(), "its wake signal is raised");
    asking.write_all(&small).unwrap();
    other.receive(received + 3);
    assert!(!other.was_tight);
    other.connections.flush();
    introduced(&mut asking);
    expect(&mut asking, &[message(&[b"x"]), message(&[b""]), small.clone(), large, small].concat());
    assert!(echo.gone.is_empty() && other.gone.is_empty());
}

#[test]
fn messages_that_are_too_large_together_come_one_after_the_other() {
    let mut echo = Echo::start_within(&Budget::new(MEBIBYTE as u64));
    let large = message(&[&vec![1; 900_000], &vec![2; 900_000]]);
    let mut streams: Vec<TcpStream> = (0..4).map(|_| echo.connect()).collect();
    for stream in &mut streams {
        stream.write_all(&introduction(SocketType::Dealer)).unwrap();
        stream.set_nonblocking(true).unwrap();
    }
    let mut left: Vec<&[u8]> = vec![&large; 4];
    let mut answers = [0; 4];
    let mut some = vec![0; MEBIBYTE];
    let expected = introduction(SocketType::Router).len() + large.len();
    while answers.iter().any(|got| *got < expected) {
        for ((stream, left), got) in streams.iter_mut().zip(&mut left).zip(&mut answers) {
            if let Ok(count) = stream.write(left) {
                *left = &left[count..];
            }
            *got += stream.read(&mut some).unwrap_or(0);
        }
        echo.now = echo.now.after(Duration::from_secs(1));
        pass(&mut echo);
        // One continues. The others hold the bytes that came before the server noticed, and the bytes of one more
        // receive.
        assert!(echo.connections.bytes() < 5 * MEBIBYTE as u64, "{}", echo.connections.bytes());
    }
    assert!(echo.gone.is_empty());
}

/// The total counted the used part of buffers and left out the positions of frames. With empty frames that is eight
/// times as much.
#[test]
fn where_frames_lie_counts_as_well() {
    let mut echo = Echo::start();
    let mut stream = echo.connect();
    let small = message(&[&[][..]; 8]);
    stream.write_all(&[introduction(SocketType::Dealer), small.repeat(4)].concat()).unwrap();
    let mut parked = 0;
    while parked == 0 {
        let now = echo.now;
        echo.connections.wait(PATIENCE, || now);
        let park = |_, _: &mut u32, _: &mut crate::net::zeromq::ReplyBuffer, messages: crate::zmtp::MessageView<'_>| {
            parked = messages.len();
            TurnOutcome::Parked(0)
        };
        let _turn = echo.connections.receive(4, park);
    }
    let least = parked * (small.len() + 8 * size_of::<std::ops::Range<usize>>());
    assert!(echo.connections.bytes() >= least as u64, "{} bytes, and it takes {least}", echo.connections.bytes());
}

/// The total counted the bytes left in a buffer, not the size to which the buffer had grown: for a client that had read
/// half of its reply, the server kept twice the counted memory.
#[test]
fn room_that_has_become_empty_counts_until_it_is_given_back() {
    let mut echo = Echo::start();
    let (mut reading, id) = stalled(&mut echo, 40 * MEBIBYTE);
    let mut some = vec![0; MEBIBYTE / 4];
    while echo.connections.connection(id).unwrap().1.len() > 18 * MEBIBYTE {
        reading.read_exact(&mut some).unwrap();
        pass(&mut echo);
    }
    assert!(echo.connections.bytes() >= 40 * MEBIBYTE as u64, "{} bytes", echo.connections.bytes());
    while !echo.connections.connection(id).unwrap().1.is_empty() {
        reading.read_exact(&mut some).unwrap();
        pass(&mut echo);
    }
    assert_eq!(echo.connections.bytes(), 0, "all is given back");
}

/// An exempt client that was sending its message was closed when the thread was kept from receiving for long.
#[test]
fn a_client_that_still_sends_its_message_is_not_closed_because_the_thread_is_late() {
    let mut echo = Echo::start_within(&Budget::new(MEBIBYTE as u64));
    let large = message(&[&vec![1; 900_000], &vec![2; 900_000]]);
    let mut streams: Vec<TcpStream> = (0..2).map(|_| echo.connect()).collect();
    for stream in &mut streams {
        stream.write_all(&[&introduction(SocketType::Dealer), &large[..850_000]].concat()).unwrap();
    }
    while !echo.connections.memory_is_tight_for_one() {
        echo.now = echo.now.after(Duration::from_millis(100));
        pass(&mut echo);
    }
    streams.iter_mut().for_each(|stream| stream.write_all(&large[850_000..850_100]).unwrap());
    for _ in 0..2 * STALLED_MAX.as_secs() {
        echo.now = echo.now.after(Duration::from_secs(1));
        let now = echo.now;
        echo.wake_signal.raise();
        echo.connections.wait_without_receiving(PATIENCE, || now);
    }
    assert_eq!((echo.connections.cut(), echo.connections.len()), (0, 2));
}
