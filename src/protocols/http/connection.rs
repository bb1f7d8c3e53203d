//! One connection: hyper reads its requests and writes their replies. Then the connection is closed in a way that lets
//! the client read the last reply.
//!
//! ```text
//! hyper ─► ended ─► a request that hyper has left without a reply: 400 or 408 ─► shut down ─► discard input ─► close
//! ```
//! A client that closes its half after a request gets its reply. If the server closed a connection while its client is
//! sending, the system would reset it, and the client might never read the reply.
//!
//! This module does not know the other connections (`service`), or the replies of the routes.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;
use tokio::time::timeout;

use super::own_errors::OwnErrors;
use super::peer::FromPeer;
use super::refusal::{Refusal, encode};
use super::write_timeout::WriteTimeout;
use crate::clock::{http_date, wall_millis};
use crate::limits::{HTTP_DRAIN_TIME, HTTP_DRAINED_BYTES_MAX, HTTP_HEAD_BYTES_MAX};
use crate::protocols::tcp::ClientStream;

/// Bytes that are discarded at once.
const SCRAP_BYTES: usize = 16 << 10;

/// How long a client may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClientTimes {
    /// For a head.
    pub(super) head: Duration,
    /// To read on, when the system takes no more bytes of a reply.
    pub(super) reply: Duration,
}

/// Serves one connection to its end. It ends with the requests that have come when the sender of `ending` is gone.
pub(super) async fn converse(
    stream: ClientStream,
    router: Router,
    times: ClientTimes,
    mut ending: watch::Receiver<()>,
) {
    // Without this option a reply may wait for the acknowledgement of the one before.
    let _gone = stream.tcp().set_nodelay(true);
    let peer = stream.address();
    let mut wire = OwnErrors::new(WriteTimeout::new(stream, times.reply));
    let ended = {
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .half_close(true)
            .header_read_timeout(times.head)
            .max_buf_size(HTTP_HEAD_BYTES_MAX)
            .serve_connection(TokioIo::new(&mut wire), FromPeer { service: TowerToHyperService::new(router), peer });
        let mut connection = pin!(connection);
        let mut ending = pin!(ended(&mut ending));
        let mut is_ending = false;
        poll_fn(|context| {
            if !is_ending && ending.as_mut().poll(context).is_ready() {
                is_ending = true;
                connection.as_mut().graceful_shutdown();
            }
            connection.as_mut().poll(context)
        })
        .await
    };
    if let Err(error) = ended {
        tracing::debug!("an HTTP connection has ended: {error}");
        if !answer_rest(&mut wire, &error).await {
            return;
        }
    }
    drain(wire.stream().stream(), &mut ending).await;
}

/// Ready when the sender is gone.
pub(super) async fn ended(ending: &mut watch::Receiver<()>) {
    while ending.changed().await.is_ok() {}
}

/// Answers a request that hyper has left without a reply. False: there is nobody to answer.
async fn answer_rest(wire: &mut OwnErrors<WriteTimeout>, error: &hyper::Error) -> bool {
    let refusal = match error {
        _ if !wire.is_begun() => return error.is_parse(),
        error if error.is_timeout() => Refusal::HeadLate,
        error if error.is_parse() || error.is_incomplete_message() => Refusal::Unparsed(400),
        _ => return false,
    };
    let stream = wire.stream();
    stream.write_all(&encode(&refusal, &http_date(wall_millis()))).await.is_ok() && stream.shutdown().await.is_ok()
}

/// Discards the bytes that the client still sends until it closes too, within bounds of time and bytes, or until the
/// server ends.
async fn drain(stream: &mut ClientStream, ending: &mut watch::Receiver<()>) {
    let mut ending = pin!(ended(ending));
    let mut drained = pin!(timeout(HTTP_DRAIN_TIME, discard(stream)));
    poll_fn(|context| {
        if ending.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        Pin::new(&mut drained).poll(context).map(drop)
    })
    .await;
}

async fn discard(stream: &mut ClientStream) {
    let (mut scrap, mut thrown) = (vec![0; SCRAP_BYTES], 0);
    while thrown < HTTP_DRAINED_BYTES_MAX {
        match stream.read(&mut scrap).await {
            Ok(0) | Err(_) => return,
            Ok(bytes) => thrown += bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use std::io::{Read, Write};
    use std::net::TcpStream as Peer;

    use tokio::net::TcpListener;
    use tokio::runtime::Builder;

    use super::*;

    /// Longer than any test.
    const LONG: Duration = Duration::from_secs(600);

    /// The bytes that a client gets that sends these and goes on listening.
    fn heard(bytes: &'static [u8], head_time: Duration) -> String {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let client = std::thread::scope(|scope| {
            let client = scope.spawn(move || {
                let (mut peer, mut heard) = (Peer::connect(address).unwrap(), String::new());
                peer.write_all(bytes).unwrap();
                peer.read_to_string(&mut heard).unwrap();
                heard
            });
            runtime.block_on(async {
                let (stream, _) = listener.accept().await.unwrap();
                let (_running, ending) = watch::channel(());
                let times = ClientTimes { head: head_time, reply: LONG };
                converse(ClientStream::Plain(stream), Router::new(), times, ending).await;
            });
            client.join()
        });
        client.unwrap()
    }

    #[test]
    fn a_head_that_does_not_come_in_time_is_told_so_and_a_connection_without_one_is_closed() {
        let soon = Duration::from_millis(20);
        let late = heard(b"GET /events HTTP/1.1\r\nHost:", soon);
        assert!(late.starts_with("HTTP/1.1 408 Request Timeout\r\n"), "{late}");
        assert!(late.ends_with("\r\n\r\n{\"error\":\"the head of the request did not come in time\"}"), "{late}");
        assert_eq!(heard(b"", soon), "");
        let idle = heard(b"GET /events HTTP/1.1\r\nHost: h\r\n\r\n", soon);
        assert!(idle.starts_with("HTTP/1.1 404") && !idle.contains("408"), "{idle}");
    }

    /// A connection whose client reads nothing would be held for ever.
    #[test]
    fn a_client_that_does_not_read_its_reply_loses_its_connection() {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let mut deaf = Peer::connect(listener.local_addr().unwrap()).unwrap();
            deaf.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
            let (stream, _) = listener.accept().await.unwrap();
            let (_running, ending) = watch::channel(());
            // More than the system takes for a client that does not read.
            let router = Router::new().fallback(|| async { vec![b'x'; 64 << 20] });
            let times = ClientTimes { head: LONG, reply: Duration::from_millis(20) };
            let served =
                timeout(Duration::from_secs(60), converse(ClientStream::Plain(stream), router, times, ending)).await;
            assert!(served.is_ok(), "the connection is still held");
            let mut heard = Vec::new();
            let cut = deaf.read_to_end(&mut heard);
            assert!(cut.is_err() || heard.len() < 64 << 20, "{} bytes", heard.len());
        });
    }
}
