//! MQTT over WebSocket, against another implementation's frames.

use braid_transport::{
    ClientTls, ConnectOptions, HandshakeError, ListenOptions, Listener, ListenerKind, Transport,
    WebSocketOptions, connect,
};
use futures_util::{SinkExt, StreamExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{CloseCode, Data, OpCode};
use tokio_tungstenite::{WebSocketStream, client_async};

use crate::support::{Wire, accept, address, bind, drain, loopback, pattern, target};

type Socket = WebSocketStream<TcpStream>;

/// A raw client and our server's end of it.
async fn upgraded_on(listener: &mut Listener, subprotocol: &'static str) -> (Socket, Wire) {
    let address = address(listener);
    let client = tokio::spawn(async move {
        let mut request = format!("ws://{address}/mqtt").into_client_request().expect("request");
        request.headers_mut().insert("Sec-WebSocket-Protocol", subprotocol.parse().expect("header"));
        let socket = TcpStream::connect(address).await.expect("connect");
        client_async(request, socket).await.expect("upgrade")
    });
    let server = Wire::from(accept(listener).await.await.expect("join").expect("handshake"));
    let (socket, response) = client.await.expect("join");
    let answered = response.headers().get("Sec-WebSocket-Protocol").expect("subprotocol");
    assert_eq!(answered, subprotocol.split(',').next_back().expect("a name").trim());
    (socket, server)
}

async fn upgraded() -> (Socket, Wire) {
    upgraded_on(&mut bind(ListenerKind::Ws), "mqtt").await
}

/// Sends a request by hand and returns everything that comes back.
async fn exchange(request: &str) -> (String, HandshakeError) {
    let mut listener = bind(ListenerKind::Ws);
    let mut socket = TcpStream::connect(address(&listener)).await.expect("connect");
    let server = accept(&mut listener).await;
    socket.write_all(request.replace('\n', "\r\n").as_bytes()).await.expect("write");
    let error = server.await.expect("join").expect_err("refused");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.expect("answer");
    (answer, error)
}

const KEY: &str = "Connection: Upgrade\nUpgrade: websocket\nSec-WebSocket-Version: 13\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\n";

#[tokio::test]
async fn another_path_is_not_found() {
    let (answer, error) =
        exchange(&format!("GET /ws HTTP/1.1\nHost: x\nSec-WebSocket-Protocol: mqtt\n{KEY}\n")).await;
    assert!(answer.starts_with("HTTP/1.1 404 Not Found\r\n"), "{answer}");
    assert!(answer.ends_with("\r\n\r\nMQTT over WebSocket is at /mqtt\n"), "{answer}");
    assert_eq!(error.to_string(), "WebSocket request for /ws: MQTT is at /mqtt");
}

#[tokio::test]
async fn a_request_without_the_subprotocol_is_a_bad_request() {
    // [MQTT-6.0.0-3]
    for (header, offered) in [("", "none"), ("Sec-WebSocket-Protocol: chat, superchat\n", "chat, superchat")]
    {
        let (answer, error) = exchange(&format!("GET /mqtt HTTP/1.1\nHost: x\n{header}{KEY}\n")).await;
        assert!(answer.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{answer}");
        let body = format!("\r\n\r\nSec-WebSocket-Protocol must offer mqtt (offered: {offered})\n");
        assert!(answer.ends_with(&body), "{answer}");
        assert!(matches!(error, HandshakeError::Subprotocol { .. }), "{error}");
    }
}

#[tokio::test]
async fn an_invalid_upgrade_fails_alone() {
    let (_, error) = exchange("GET /mqtt HTTP/1.1\nHost: x\n\n").await;
    assert!(matches!(error, HandshakeError::WebSocket(_)), "{error}");
}

#[tokio::test]
async fn the_subprotocol_is_answered_among_others_and_under_its_old_name() {
    // [MQTT-6.0.0-4]
    upgraded_on(&mut bind(ListenerKind::Ws), "chat, mqtt").await;
    upgraded_on(&mut bind(ListenerKind::Ws), "mqttv3.1").await;
}

#[tokio::test]
async fn a_query_does_not_change_the_path() {
    let mut listener = bind(ListenerKind::Ws);
    let mut target = target(Transport::Ws, address(&listener));
    target.path = "/mqtt?token=x".to_owned();
    let client =
        tokio::spawn(
            async move { connect(&target, &ClientTls::default(), &ConnectOptions::default()).await },
        );
    accept(&mut listener).await.await.expect("join").expect("handshake");
    client.await.expect("join").expect("connect");
}

#[tokio::test]
async fn our_client_tells_the_servers_answer() {
    let mut listener = bind(ListenerKind::Ws);
    let mut target = target(Transport::Ws, address(&listener));
    target.path = "/elsewhere".to_owned();
    let client =
        tokio::spawn(
            async move { connect(&target, &ClientTls::default(), &ConnectOptions::default()).await },
        );
    accept(&mut listener).await.await.expect("join").expect_err("no such path");
    let error = client.await.expect("join").expect_err("404").to_string();
    let expected =
        "localhost does not speak MQTT over WebSocket at /elsewhere: the server answered 404 Not Found";
    assert!(error.starts_with(expected), "{error}");
}

#[tokio::test]
async fn a_text_frame_closes_with_1003() {
    // [MQTT-6.0.0-1]
    let (mut socket, mut server) = upgraded().await;
    socket.send(Message::text("CONNECT")).await.expect("send");
    let error = server.io.read_u8().await.expect_err("text");
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidData);
    let Some(Ok(Message::Close(Some(close)))) = socket.next().await else { panic!("no close frame") };
    assert_eq!(close.code, CloseCode::Unsupported);
    assert_eq!(server.io.read(&mut [0; 8]).await.expect("the end"), 0, "nothing is read after it");
}

#[tokio::test]
async fn packets_and_frames_need_not_begin_or_end_together() {
    // [MQTT-6.0.0-2]
    let (mut socket, mut server) = upgraded().await;
    for part in ["a", "bc", "", "def"] {
        socket.send(Message::binary(part)).await.expect("send");
    }
    // One message in three frames, with a ping between them.
    let first = Frame::message("gh", OpCode::Data(Data::Binary), false);
    let last = Frame::message("i", OpCode::Data(Data::Continue), true);
    socket.send(Message::Frame(first)).await.expect("send");
    socket.send(Message::Ping("are you there".into())).await.expect("send");
    socket.send(Message::Frame(last)).await.expect("send");
    let mut received = [0; 9];
    server.io.read_exact(&mut received).await.expect("read");
    assert_eq!(&received, b"abcdefghi");
    // The pong has been sent without a call of the writer.
    let pong = socket.next().await.expect("pong").expect("pong");
    assert_eq!(pong, Message::Pong("are you there".into()));
}

#[tokio::test]
async fn one_vectored_write_is_one_binary_frame() {
    let (mut socket, mut server) = upgraded().await;
    let parts =
        [std::io::IoSlice::new(b"PUB"), std::io::IoSlice::new(b"ACK"), std::io::IoSlice::new(b"PINGRESP")];
    assert_eq!(server.io.write_vectored(&parts).await.expect("write"), 14);
    server.io.flush().await.expect("flush");
    let message = socket.next().await.expect("message").expect("message");
    assert_eq!(message, Message::binary("PUBACKPINGRESP"));
}

#[tokio::test]
async fn shutdown_is_a_close_handshake() {
    let (mut socket, mut server) = upgraded().await;
    server.io.write_all(b"DISCONNECT").await.expect("write");
    let close = async {
        server.io.shutdown().await.expect("shutdown");
    };
    let client = async {
        let mut seen = Vec::new();
        while let Some(Ok(message)) = socket.next().await {
            seen.push(message);
        }
        seen
    };
    let ((), seen) = tokio::join!(close, client);
    assert_eq!(seen.first(), Some(&Message::binary("DISCONNECT")));
    let Some(Message::Close(Some(frame))) = seen.last() else { panic!("no close frame in {seen:?}") };
    assert_eq!(frame.code, CloseCode::Normal);
}

#[tokio::test]
async fn a_close_frame_is_answered_and_ends_the_stream() {
    let (mut socket, mut server) = upgraded().await;
    socket.send(Message::binary("last")).await.expect("send");
    socket.close(None).await.expect("close");
    assert_eq!(drain(&mut server).await, b"last");
    server.io.shutdown().await.expect("shutdown");
    while let Some(message) = socket.next().await {
        assert!(matches!(message, Ok(Message::Close(_))), "{message:?}");
    }
}

#[tokio::test]
async fn no_message_of_a_client_that_is_not_trusted_can_be_large() {
    let (mut socket, mut server) = upgraded().await;
    socket.send(Message::binary("C")).await.expect("send");
    assert_eq!(server.io.read_u8().await.expect("read"), b'C');
    socket.feed(Message::binary(vec![0; 65_537])).await.expect("send");
    let flush = tokio::spawn(async move {
        let _ = socket.flush().await;
        socket
    });
    let error = server.io.read_u8().await.expect_err("too long");
    assert!(error.to_string().contains("too long"), "{error}");
    drop(server);
    drop(flush.await.expect("join"));
}

#[tokio::test]
async fn a_message_may_be_as_large_as_the_options_say() {
    let websocket = WebSocketOptions { max_frame_bytes: 200_000, ..WebSocketOptions::default() };
    let options = ListenOptions { websocket, ..ListenOptions::default() };
    let mut listener = Listener::bind(ListenerKind::Ws, loopback(), &options).expect("bind");
    let (mut socket, mut server) = upgraded_on(&mut listener, "mqtt").await;
    let bytes = pattern(200_000);
    let sent = bytes.clone();
    let send = tokio::spawn(async move {
        socket.send(Message::binary("CONNECT")).await.expect("send");
        socket.send(Message::binary(sent)).await.expect("send");
        let _ = socket.send(Message::binary(vec![0; 200_001])).await;
        socket
    });
    server.io.read_exact(&mut [0; 7]).await.expect("CONNECT");
    server.io.0.set_trusted();
    let mut received = vec![0; bytes.len()];
    server.io.read_exact(&mut received).await.expect("read");
    assert!(received == bytes);
    let error = server.io.read_u8().await.expect_err("one byte too long");
    assert!(error.to_string().contains("too long"), "{error}");
    drop(server);
    drop(send.await.expect("join"));
}

#[tokio::test]
async fn close_does_not_wait_long_for_the_peer() {
    let (socket, mut server) = upgraded().await;
    tokio::time::pause();
    let start = tokio::time::Instant::now();
    server.io.shutdown().await.expect("shutdown");
    assert_eq!(start.elapsed().as_secs(), 2, "it had its time to answer");
    drop(socket);
}

/// Lines of a valid request, with `extra` among them.
fn request(extra: &str) -> String {
    format!("GET /mqtt HTTP/1.1\nHost: x\nSec-WebSocket-Protocol: mqtt\n{extra}{KEY}\n").replace('\n', "\r\n")
}

/// CVE-2026-27571: an offer of compression is not taken, and a compressed frame, which could grow to any size, ends the
/// connection.
#[tokio::test]
async fn compression_is_not_negotiated_and_a_compressed_frame_ends_the_connection() {
    for header in [0xC2_u8, 0xA2, 0x92] {
        let mut listener = bind(ListenerKind::Ws);
        let mut socket = TcpStream::connect(address(&listener)).await.expect("connect");
        let server = accept(&mut listener).await;
        let offer =
            "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits, x-webkit-deflate-frame\n";
        socket.write_all(request(offer).as_bytes()).await.expect("write");
        let mut server = Wire::from(server.await.expect("join").expect("handshake"));
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            answer.push(socket.read_u8().await.expect("an answer"));
        }
        let answer = String::from_utf8(answer).expect("text").to_ascii_lowercase();
        assert!(answer.starts_with("http/1.1 101 "), "{answer}");
        assert!(!answer.contains("sec-websocket-extensions"), "{answer}");
        // FIN, one of the reserved bits and binary; a mask of zeros; the beginning of a compressed block.
        socket.write_all(&[header, 0x84, 0, 0, 0, 0, 0xAA, 0x56, 0x4A, 0x04]).await.expect("write");
        let error = server.io.read_u8().await.expect_err("compressed");
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidData, "{error}");
        assert_eq!(server.io.read(&mut [0; 8]).await.expect("the end"), 0, "nothing is read after it");
        let mut close = [0; 4];
        socket.read_exact(&mut close).await.expect("a close frame");
        assert_eq!(close, [0x88, close[1], 0x03, 0xEA], "1002, protocol error");
    }
}

/// RUSTSEC-2023-0065: the time to read a header grew with the square of its length.
#[tokio::test]
async fn a_request_with_a_long_header_is_refused_before_its_end() {
    let mut listener = bind(ListenerKind::Ws);
    // One long header, many headers, and one line that does not end; none of the requests is complete.
    let long = format!("X: {}\n", "x".repeat(1 << 20));
    let many = "X: x\n".repeat(1 << 16);
    let lines = [request(&long), request(&many), "x".repeat(1 << 20)];
    for lines in lines.map(|lines| lines.trim_end().to_owned()) {
        let socket = TcpStream::connect(address(&listener)).await.expect("connect");
        let server = accept(&mut listener).await;
        let (mut read, mut write) = socket.into_split();
        let writing = tokio::spawn(async move {
            // In small pieces: each made the library look at all bytes before it.
            for piece in lines.as_bytes().chunks(100) {
                if write.write_all(piece).await.is_err() {
                    break;
                }
            }
            write
        });
        let error = server.await.expect("join").expect_err("refused");
        assert!(matches!(error, HandshakeError::WebSocket(_)), "{error}");
        let _ = read.read_to_end(&mut Vec::new()).await;
        drop(writing.await.expect("join"));
    }
}
