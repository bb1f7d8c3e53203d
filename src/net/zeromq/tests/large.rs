//! Replies that are sent in several turns.

use super::*;
use crate::limits::SENT_BYTES_A_TURN;

/// A client that has sent a message and read its echo.
fn served(echo: &mut Echo) -> (TcpStream, ConnectionId) {
    let mut stream = echo.connect();
    stream.write_all(&[introduction(SocketType::Dealer), message(&[b"x"])].concat()).unwrap();
    let received = echo.received.len();
    echo.receive(received + 1);
    let id = echo.received[received];
    (stream, id)
}

/// Everything that the system took was sent in one turn, megabytes at once, while other clients waited.
#[test]
fn a_large_reply_is_sent_in_turns() {
    let mut echo = Echo::start();
    let ((_large, first), (_small, second)) = (served(&mut echo), served(&mut echo));
    let sent = |echo: &mut Echo, id| echo.connections.connection(id).unwrap().1.sent();
    let before = (sent(&mut echo, first), sent(&mut echo, second));
    echo.connections.connection(first).unwrap().1.push(&vec![7; 16 << 20], false);
    echo.connections.connection(second).unwrap().1.push(b"answer", false);
    echo.connections.flush();
    assert_eq!(sent(&mut echo, first) - before.0, SENT_BYTES_A_TURN as u64);
    assert_eq!(sent(&mut echo, second) - before.1, 8, "it has its turn at once");
    echo.pass();
    assert!(sent(&mut echo, first) - before.0 > SENT_BYTES_A_TURN as u64, "the next turn comes by itself");
}

#[test]
fn a_shared_reply_comes_whole_and_in_its_order() {
    let mut echo = Echo::start();
    let (mut stream, id) = served(&mut echo);
    let large: Vec<u8> = (0..=255).cycle().take(5 * OUTBOX_BYTES_MAX + 7).collect();
    let frames = Arc::new(message(&[b"before", &large]));
    let outbox = echo.connections.connection(id).unwrap().1;
    outbox.push(b"first", false);
    outbox.push_shared(&frames);
    assert_eq!((outbox.is_empty(), outbox.len()), (false, 7 + frames.len()));
    assert!(outbox.kept() >= frames.len(), "it counts as memory");
    stream.write_all(&message(&[b"asked behind it"])).unwrap();
    let messages: [&[u8]; 4] = [&message(&[b"x"]), &message(&[b"first"]), &frames, &message(&[b"asked behind it"])];
    let expected = messages.concat();
    let reader = std::thread::spawn(move || {
        stream.set_read_timeout(PATIENCE).unwrap();
        introduced(&mut stream);
        let mut came = vec![0; expected.len()];
        stream.read_exact(&mut came).unwrap();
        assert!(came == expected);
        stream
    });
    while !reader.is_finished() {
        echo.wake_signal.raise();
        echo.pass();
    }
    // Dropped sooner, the stream would end the connection.
    let _stream = reader.join().unwrap();
    assert!(echo.connections.connection(id).unwrap().1.is_empty());
}
