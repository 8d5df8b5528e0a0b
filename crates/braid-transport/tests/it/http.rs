//! Byte streams and QUIC connections for HTTP.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use braid_transport::http::{
    Http3Bidi, Http3Connection, Http3Listener, HttpListener, HttpStream, connect_http, connect_http3,
};
use braid_transport::quic::QuicOptions;
use braid_transport::{ClientTls, ConnectError, ConnectOptions, ServerTls, ServerTlsOptions};
use bytes::Bytes;
use h3::error::{Code, StreamError};
use h3::quic::{Connection, OpenStreams, RecvStream, SendStream, SendStreamUnframed};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{Pki, loopback};

/// A client that offers `alpn`.
fn client(pki: &Pki, alpn: &[&str]) -> ClientTls {
    pki.client_with(|options| options.alpn = alpn.iter().map(|name| (*name).to_owned()).collect())
}

/// Both ends of a new connection: server, client.
async fn streams(
    server: Option<ServerTls>,
    client: Option<&ClientTls>,
) -> Result<[HttpStream; 2], ConnectError> {
    let listener = HttpListener::bind(loopback(), server, 16).expect("bind");
    let (address, options) = ([listener.local_addr()], ConnectOptions::default());
    let accept = async { listener.accept().await.expect("accept").handshake().await };
    let (accepted, connected) = tokio::join!(accept, connect_http("localhost", &address, client, &options));
    let connected = connected?;
    Ok([accepted.expect("handshake"), connected])
}

#[tokio::test]
async fn a_stream_carries_bytes_agrees_on_a_version_and_is_measured() {
    let pki = Pki::new();
    for (alpn, expected) in
        [(&["h2", "http/1.1"][..], Some("h2")), (&["http/1.1"], Some("http/1.1")), (&[], None)]
    {
        let ends = streams(Some(pki.server()), Some(&client(&pki, alpn))).await.expect("connect");
        assert!(ends.iter().all(|end| end.peer.alpn.as_deref() == expected), "{ends:?}");
        assert!(ends.iter().all(|end| end.peer.tls_version == Some("TLSv1.3")), "{ends:?}");
    }
    let error = streams(Some(pki.server()), Some(&client(&pki, &["mqtt"]))).await.expect_err("no version");
    assert!(error.to_string().contains("NoApplicationProtocol"), "{error}");

    let [mut server, mut client] = streams(None, None).await.expect("connect");
    let sent = vec![7; 1 << 20];
    let (wrote, received) = tokio::join!(
        async {
            client.io.write_all(&sent).await?;
            client.io.shutdown().await
        },
        async {
            let mut received = Vec::new();
            server.io.read_to_end(&mut received).await.map(|_| received)
        }
    );
    wrote.expect("write");
    assert_eq!(received.expect("read"), sent);
    let info = client.probe.sample().expect("the socket is open");
    assert!(!info.srtt.is_zero() && info.srtt < Duration::from_secs(5), "{info:?}");
    assert!(info.snd_cwnd > 0 && info.snd_ssthresh > 0 && info.data_segments_sent > 0, "{info:?}");
    assert!(info.delivery_rate > 0 && info.lost == 0, "{info:?}");
    drop(client.io);
    assert!(client.probe.sample().is_err(), "the probe does not keep the socket");
}

async fn connect_to(
    listener: &mut Http3Listener,
    tls: &ClientTls,
) -> Result<[Http3Connection; 2], ConnectError> {
    let address = listener.local_addr().expect("address");
    let options = ConnectOptions { quic: QuicOptions::http3_client(), ..ConnectOptions::default() };
    let accept = async { listener.accept().await.expect("accept").handshake().await };
    let (accepted, connected) =
        tokio::join!(accept, connect_http3("localhost", std::slice::from_ref(&address), tls, &options));
    let connected = connected?;
    Ok([accepted.expect("handshake"), connected])
}

async fn accept(connection: &mut Http3Connection) -> Result<Http3Bidi<Bytes>, String> {
    poll_fn(|cx| Connection::<Bytes>::poll_accept_bidi(connection, cx))
        .await
        .map_err(|error| error.to_string())
}

async fn open(connection: &mut Http3Connection) -> Http3Bidi<Bytes> {
    poll_fn(|cx| OpenStreams::<Bytes>::poll_open_bidi(connection, cx)).await.expect("open")
}

#[tokio::test]
async fn few_bytes_wait_for_acknowledgements_on_http3() {
    let pki = Pki::new();
    let quic = QuicOptions::http3_server(8, Duration::from_secs(30));
    let mut listener = Http3Listener::bind(loopback(), pki.server(), &quic).expect("bind");
    let [mut server, _client] = connect_to(&mut listener, &client(&pki, &["h3"])).await.expect("connect");
    // The client gives credit for eight streams of 2 MiB. While this task runs, nothing is sent.
    let mut open = Vec::new();
    let waiting = poll_fn(|cx| {
        let mut waiting = 0;
        for _ in 0..8 {
            let Poll::Ready(opened) = OpenStreams::<Bytes>::poll_open_send(&mut server, cx) else { break };
            let mut stream = opened.expect("open");
            while let Poll::Ready(written) = stream.poll_send(cx, &mut &[0; 1 << 14][..]) {
                waiting += written.expect("write");
            }
            open.push(stream);
        }
        Poll::Ready(waiting)
    });
    assert_eq!(waiting.await, 4 << 20);
}

#[tokio::test]
async fn a_stream_of_which_the_peer_takes_nothing_is_reset() {
    let pki = Pki::new();
    let quic = QuicOptions::http3_server(8, Duration::from_secs(30));
    let mut listener = Http3Listener::bind(loopback(), pki.server(), &quic).expect("bind");
    let [server, client] = connect_to(&mut listener, &client(&pki, &["h3"])).await.expect("connect");
    let server = server.with_stall_limit(Duration::from_millis(50));
    let is_cancelled = |error: StreamError| {
        matches!(error, StreamError::RemoteTerminate { code: Code::H3_REQUEST_CANCELLED, .. })
    };
    let serve = async {
        let mut server = h3::server::Connection::<_, Bytes>::new(server).await.expect("connection");
        let asked = server.accept().await.expect("request").expect("request");
        let (_, mut stream) = asked.resolve_request().await.expect("request");
        stream.send_response(http::Response::new(())).await.expect("response");
        // More than the client gives credit for.
        let stalled = stream.send_data(vec![0; 8 << 20].into()).await;
        (stalled.is_err_and(is_cancelled), server)
    };
    let ask = async {
        let (_driver, mut send) = h3::client::new(client).await.expect("connection");
        let asked = http::Request::get("https://localhost/").body(()).expect("request");
        let mut stream = send.send_request(asked).await.expect("request");
        stream.recv_response().await.expect("response");
        (stream, send)
    };
    let ((is_stalled, _server), (mut stream, _send)) = tokio::join!(serve, ask);
    assert!(is_stalled);
    let reset = loop {
        match stream.recv_data().await {
            Ok(data) => assert!(data.is_some(), "the stream did not end"),
            Err(error) => break error,
        }
    };
    assert!(is_cancelled(reset));
}

/// Writes to a stream in one piece.
async fn write(stream: &mut Http3Bidi<Bytes>, bytes: &[u8]) {
    let mut bytes = Bytes::copy_from_slice(bytes);
    while !bytes.is_empty() {
        poll_fn(|cx| stream.poll_send(cx, &mut bytes)).await.expect("write");
    }
}

/// DATA header that announces 100 bytes.
const DATA_OF_100: [u8; 3] = [0, 0x40, 100];

/// The end comes when the bytes before it were read: in one piece with them `h3` itself sees the error.
#[tokio::test]
async fn a_request_that_ends_within_a_frame_is_an_error() {
    // POST https://localhost/, with QPACK's static table.
    let head = [&[1, 16, 0, 0, 0xd4, 0xd7, 0xc1, 0x50, 9][..], b"localhost"].concat();
    for payload in [0, 50] {
        let pki = Pki::new();
        let quic = QuicOptions::http3_server(8, Duration::from_secs(30));
        let mut listener = Http3Listener::bind(loopback(), pki.server(), &quic).expect("bind");
        let tls = client(&pki, &["h3"]);
        let [server, mut client] = connect_to(&mut listener, &tls).await.expect("connect");
        let (read, was_read) = tokio::sync::oneshot::channel();
        let serve = async {
            let mut server = h3::server::Connection::<_, Bytes>::new(server).await.expect("connection");
            let asked = server.accept().await.expect("request").expect("request");
            let (_, mut stream) = asked.resolve_request().await.expect("request");
            let mut received = 0;
            while received < payload {
                let data = stream.recv_data().await.expect("data").expect("data");
                received += bytes::Buf::remaining(&data);
            }
            read.send(()).expect("the client waits");
            for _ in 0..2 {
                let ended = stream.recv_data().await.map(|data| data.is_some());
                let is_cut =
                    matches!(ended, Err(StreamError::RemoteTerminate { code: Code::H3_FRAME_ERROR, .. }));
                assert!(is_cut, "{payload}: {ended:?}");
            }
            server
        };
        let ask = async {
            let mut stream = open(&mut client).await;
            write(&mut stream, &[&head[..], &DATA_OF_100, &vec![7; payload]].concat()).await;
            was_read.await.expect("the server reads");
            poll_fn(|cx| SendStream::<Bytes>::poll_finish(&mut stream, cx)).await.expect("finish");
            accept(&mut client).await.expect_err("the connection is closed")
        };
        let (_server, error) = tokio::join!(serve, ask);
        assert!(error.contains("H3_FRAME_ERROR"), "{error}");
    }
}

#[tokio::test]
async fn a_response_that_ends_within_a_frame_is_an_error() {
    for payload in [0, 50] {
        let pki = Pki::new();
        let quic = QuicOptions::http3_server(8, Duration::from_secs(30));
        let mut listener = Http3Listener::bind(loopback(), pki.server(), &quic).expect("bind");
        let tls = client(&pki, &["h3"]);
        let [mut server, client] = connect_to(&mut listener, &tls).await.expect("connect");
        let (read, was_read) = tokio::sync::oneshot::channel();
        let serve = async {
            let mut stream = accept(&mut server).await.expect("a stream");
            // 200.
            let head = [1, 3, 0, 0, 0xd9];
            write(&mut stream, &[&head[..], &DATA_OF_100, &vec![7; payload]].concat()).await;
            was_read.await.expect("the client reads");
            poll_fn(|cx| SendStream::<Bytes>::poll_finish(&mut stream, cx)).await.expect("finish");
            accept(&mut server).await.expect_err("the connection is closed")
        };
        let ask = async {
            let (driver, mut send) = h3::client::new(client).await.expect("connection");
            let asked = http::Request::get("https://localhost/").body(()).expect("request");
            let mut stream = send.send_request(asked).await.expect("request");
            stream.recv_response().await.expect("response");
            let mut received = 0;
            while received < payload {
                let data = stream.recv_data().await.expect("data").expect("data");
                received += bytes::Buf::remaining(&data);
            }
            read.send(()).expect("the server waits");
            let ended = stream.recv_data().await.map(|data| data.is_some());
            assert!(ended.is_err(), "{payload}: {ended:?}");
            (stream, send, driver)
        };
        let (error, _open) = tokio::join!(serve, ask);
        assert!(error.contains("H3_FRAME_ERROR"), "{error}");
    }
}

#[tokio::test]
async fn a_connection_carries_streams_and_is_measured() {
    let pki = Pki::new();
    // Protocols of MQTT do not matter here.
    let mut options = ServerTlsOptions::new(pki.issue("server", &["localhost"]));
    options.alpn = vec!["mqtt-x".to_owned()];
    let tls = ServerTls::new(options).expect("load");
    let quic = QuicOptions::http3_server(8, Duration::from_secs(30));
    let mut listener = Http3Listener::bind(loopback(), tls, &quic).expect("bind");

    let error = connect_to(&mut listener, &client(&pki, &["mqtt-x"])).await.expect_err("no h3");
    assert!(error.to_string().contains("mqtt-x"), "{error}");

    let [mut server, mut client] = connect_to(&mut listener, &client(&pki, &["h3"])).await.expect("connect");
    assert_eq!(server.peer().alpn.as_deref(), Some("h3"));
    let mut asking = open(&mut client).await;
    // A DATA frame, so that nothing of it is held back.
    let payload = [&b"\0\x80\x03\0\0"[..], &vec![9; 3 << 16]].concat();
    let mut bytes = Bytes::from(payload.clone());
    let (written, echoed) = tokio::join!(
        async {
            while !bytes.is_empty() {
                poll_fn(|cx| asking.poll_send(cx, &mut bytes)).await.expect("write");
            }
            poll_fn(|cx| SendStream::<Bytes>::poll_finish(&mut asking, cx)).await
        },
        async {
            let mut answering = accept(&mut server).await.expect("a stream");
            let mut received = Vec::new();
            while let Some(data) = poll_fn(|cx| answering.poll_data(cx)).await.expect("read") {
                received.extend_from_slice(&data);
            }
            SendStream::<Bytes>::reset(&mut answering, 7);
            received
        }
    );
    written.expect("finish");
    assert_eq!(echoed, payload);
    let error = poll_fn(|cx| asking.poll_data(cx)).await.expect_err("reset");
    assert!(error.to_string().contains("0x7"), "{error}");

    let probe = client.probe();
    let stats = probe.sample().expect("open");
    assert!(!stats.srtt.is_zero() && stats.cwnd > 0 && stats.mtu >= 1200, "{stats:?}");
    assert!(stats.sent_packets > 100 && stats.lost_packets <= stats.sent_packets, "{stats:?}");
    OpenStreams::<Bytes>::close(&mut client, Code::H3_EXCESSIVE_LOAD, b"");
    let error = accept(&mut server).await.expect_err("closed");
    assert!(error.contains("H3_EXCESSIVE_LOAD"), "{error}");
    drop((client, asking));
    assert!(probe.sample().is_err(), "the probe does not keep the connection");
}
