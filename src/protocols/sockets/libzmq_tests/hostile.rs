//! Peers that want more memory, descriptors or time than a client may have.

use std::io::ErrorKind;

use super::*;
use crate::clock::Clock;

/// Waits until `is_so` holds, while the router handles what it is told.
fn until(router: &Socket, what: &str, mut is_so: impl FnMut() -> bool) {
    let clock = Clock::start();
    while !is_so() {
        assert_eq!(router.address(b"nobody"), Addressed::Unknown);
        assert!(Duration::from_nanos(clock.now().nanos()) < PATIENCE.unwrap(), "{what}");
        std::thread::yield_now();
    }
}

/// Receives messages up to a `hello`, and returns the frame with its routing id.
fn id_of_hello(router: &Socket) -> Frame {
    let (mut id, mut frame) = (Frame::new(), Frame::new());
    loop {
        router.receive_waiting(&mut id);
        router.receive_rest(&mut frame);
        if &*frame == b"hello" {
            return id;
        }
    }
}

/// Writes this again and again until the far end has taken nothing for a while.
fn write_all_that_fits(stream: &mut TcpStream, bytes: &[u8]) {
    stream.set_write_timeout(Some(Duration::from_millis(50))).unwrap();
    while stream.write_all(bytes).is_ok() {}
}

/// Regression: the connection that had the id before kept its descriptor and the bytes in its pipe for ever.
#[test]
fn a_connection_whose_id_is_taken_over_is_closed() {
    const TAKEOVERS: usize = 50;
    let (_context, router, address) = router();
    let mut present = dealer(&address, b"worker-9");
    present.write_all(HELLO).unwrap();
    let mut before = FrameOrigin::of(id_of_hello(&router));
    let large = encoded(&[vec![7; 64 << 10]]);
    for number in 0..TAKEOVERS {
        if number % 10 == 1 {
            // It sends more than its pipe holds, and the router takes none of it.
            write_all_that_fits(&mut present, &large);
        }
        if number % 10 == 2 {
            // It reads no reply.
            while router.address(b"worker-9") == Addressed::Ready {
                router.send_bytes(&[7; 64 << 10], false);
            }
        }
        let mut next = dealer(&address, b"worker-9");
        next.write_all(HELLO).unwrap();
        // The one before does not know of the other. It sends a request, and leaves.
        let _closed = present.write_all(b"\0\x04late");
        if number % 10 == 2 {
            drop(present);
        }
        until(&router, "the connection before is closed", || !before.is_open());
        present = next;
        before = FrameOrigin::of(id_of_hello(&router));
        assert!(before.is_open());
    }
    // Other tests have routers too, which hold less.
    until(&router, "the pipes are given back", || received_bytes().0 < 8 << 20);
}

/// Regression: a reply for a client whose id was being taken over went to the new one.
#[test]
fn a_reply_for_a_connection_does_not_go_to_the_one_that_took_its_id_over() {
    let (_context, router, address) = router();
    let [before, after] = [(); 2].map(|()| {
        let mut stream = dealer(&address, b"worker-9");
        stream.write_all(HELLO).unwrap();
        (FrameOrigin::of(id_of_hello(&router)), stream)
    });
    for _ in 0..2 {
        assert_eq!(router.address_over(b"worker-9", &before.0), Addressed::Unknown);
        assert_eq!(router.address_over(b"worker-9", &after.0), Addressed::Ready);
        router.send_bytes(b"answer", false);
    }
    // Without a connection it goes to whoever has the id, and a refusal before has no effect on it.
    assert_eq!(router.address_over(b"worker-9", &before.0), Addressed::Unknown);
    assert_eq!(router.address(b"worker-9"), Addressed::Ready);
    router.send_bytes(b"answer", false);
    let (_, mut stream) = after;
    let mut came = [0; 3 * 8];
    stream.read_exact(&mut came).unwrap();
    assert_eq!(came.as_slice(), b"\0\x06answer".repeat(3));
}

/// Regression: of a frame whose last bytes came in a read of their own, all bytes counted as unfinished for ever.
#[test]
fn a_large_frame_that_comes_in_pieces_is_finished() {
    const BYTES: usize = 1 << 20;
    let (_context, router, address) = router();
    let mut stream = dealer(&address, b"");
    stream.write_all(HELLO).unwrap();
    let id = id_of_hello(&router);
    let descriptor = id.property(c"__fd").unwrap().to_str().unwrap().parse().unwrap();
    let bytes = encoded(&[vec![7; BYTES]]);
    for last in [1, 4_000, 8_000, 9_000, BYTES / 2] {
        let (begin, end) = bytes.split_at(bytes.len() - last);
        stream.write_all(begin).unwrap();
        until(&router, "all of it is counted", || unfinished_bytes(descriptor) >= (BYTES - last - 8_192) as u64);
        stream.write_all(end).unwrap();
        let (mut id, mut frame) = (Frame::new(), Frame::new());
        router.receive_waiting(&mut id);
        router.receive_rest(&mut frame);
        assert_eq!((frame.len(), unfinished_bytes(descriptor)), (BYTES, 0), "the last {last} bytes come alone");
    }
}

/// A DEALER of ZMTP 2.0 with this routing id (rfc.zeromq.org/spec/15).
fn dealer_of_zmtp_2(address: &str, id: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(PATIENCE).unwrap();
    stream.write_all(b"\xff\0\0\0\0\0\0\0\x01\x7f\x01\x05").unwrap();
    stream.write_all(&encoded(&[id.to_vec()])).unwrap();
    stream.read_exact(&mut [0; 12]).unwrap();
    stream
}

/// Regression: an id of 16 MiB was copied for each message of its client, and kept when that was gone.
#[test]
fn a_peer_with_an_id_that_is_too_long_is_given_another() {
    let (_context, router, address) = router();
    let is_given = |mut stream: TcpStream, hello: &[u8]| {
        stream.write_all(hello).unwrap();
        let id = heard(&router);
        assert_eq!((id.len(), id[0]), (5, 0), "{} bytes", id.len());
        assert_eq!(router.address(&id), Addressed::Ready);
        router.send_bytes(b"answer", false);
    };
    for length in [256, 300, 8_000] {
        is_given(dealer(&address, &vec![b'i'; length]), HELLO);
    }
    for length in [256, 300, 8_000, 100_000, 16 << 20] {
        is_given(old_dealer_with(&address, &vec![b'i'; length]), b"\x06\0hello");
        is_given(dealer_of_zmtp_2(&address, &vec![b'i'; length]), HELLO);
    }
    for (mut stream, hello) in [
        (dealer(&address, &[b'i'; 255]), HELLO),
        (old_dealer_with(&address, &[b'j'; 255]), b"\x06\0hello"),
        (dealer_of_zmtp_2(&address, &[b'k'; 255]), HELLO),
    ] {
        stream.write_all(hello).unwrap();
        assert_eq!(heard(&router).len(), 255, "an id that the protocol allows");
    }
}

/// Regression: the properties of a READY of 16 MiB were kept as long as the connection, and no bound counted them.
#[test]
fn a_handshake_is_bounded_and_leaves_no_properties() {
    let (_context, router, address) = router();
    // The head of a large one ends it, or its first bytes do: the rest need not come. A smaller one ends it once it is
    // whole.
    for (minor, length) in [(0, 8_193), (1, 20_000), (0, 16 << 20)] {
        let mut stream = greeted(&address, minor);
        let command = ready(&vec![b'i'; length]);
        let sent = stream.write_all(&command[..command.len().min(20_100)]);
        let ended = sent.and_then(|()| stream.read_to_end(&mut Vec::new()));
        let is_ended =
            |error: &std::io::Error| matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe);
        assert!(ended.as_ref().err().is_none_or(is_ended), "{length}: {ended:?}");
    }
    let mut stream = dealer(&address, b"");
    stream.write_all(HELLO).unwrap();
    let id = id_of_hello(&router);
    assert_eq!((id.property(c"Socket-Type"), id.property(c"__fd").is_some()), (None, true));
}
