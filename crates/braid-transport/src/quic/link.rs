//! From an established QUIC connection to a link; streams that are not served.

use std::net::SocketAddr;
use std::task::Waker;

use noq::crypto::rustls::HandshakeData;
use noq::{Connection, Endpoint, RecvStream, SendStream};
use rustls::pki_types::CertificateDer;

use super::codes::{STREAM_NOT_SERVED, code};
use super::shield::{Broken, Failures, Shield, is_sound};
use super::stream::QuicStream;
use crate::link::{Link, Peer, Transport, single};
use crate::tls;
use crate::wakers::Wakers;

/// The link of a connection whose control stream is `send` and `recv`.
pub(super) fn link(
    (send, recv): (SendStream, RecvStream),
    connection: Connection,
    address: SocketAddr,
    endpoint: Option<Endpoint>,
    failures: Failures,
) -> Link {
    let mut peer = Peer::plain(Transport::Quic, Some(address));
    peer.tls_version = Some("TLSv1.3");
    peer.alpn = protocol(&connection);
    peer.certificate = connection
        .peer_identity()
        .and_then(|identity| identity.downcast::<Vec<CertificateDer<'static>>>().ok())
        .and_then(|chain| tls::leaf(Some(&chain)));
    let (wakers, wake) = Wakers::new();
    watch_over(connection.clone(), failures, wake);
    single(peer, QuicStream::new(send, recv, connection, endpoint, wakers))
}

fn protocol(connection: &Connection) -> Option<Box<str>> {
    let handshake = connection.handshake_data()?.downcast::<HandshakeData>().ok()?;
    Some(String::from_utf8_lossy(&handshake.protocol?).into())
}

/// Turns away every further stream of the peer for as long as the connection lives, and wakes the
/// control stream's tasks if the library panics in it: nobody else would.
fn watch_over(connection: Connection, mut failures: Failures, wake: Waker) {
    let refusals = Shield::new(refuse_streams(connection.clone()));
    tokio::spawn(async move {
        tokio::pin!(refusals);
        let broken = loop {
            tokio::select! {
                // It may be the first to run into a broken connection.
                outcome = &mut refusals => break outcome == Err(Broken),
                failed = failures.changed() => {
                    if !is_sound(&connection) {
                        break true;
                    }
                    if failed.is_err() {
                        // The endpoint is gone: nothing can fail in it any more.
                        break refusals.as_mut().await == Err(Broken);
                    }
                }
            }
        };
        if broken {
            std::mem::forget(connection);
            wake.wake();
        }
    });
}

async fn refuse_streams(connection: Connection) {
    loop {
        tokio::select! {
            stream = connection.accept_bi() => match stream {
                Ok((mut send, mut recv)) => {
                    tracing::debug!(stream = %recv.id(), "a further stream is refused");
                    let _ = send.reset(code(STREAM_NOT_SERVED));
                    let _ = recv.stop(code(STREAM_NOT_SERVED));
                }
                Err(_) => return,
            },
            stream = connection.accept_uni() => match stream {
                Ok(mut recv) => {
                    tracing::debug!(stream = %recv.id(), "a unidirectional stream is refused");
                    let _ = recv.stop(code(STREAM_NOT_SERVED));
                }
                Err(_) => return,
            },
        }
    }
}
