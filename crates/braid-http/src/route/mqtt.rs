//! MQTT over WebSocket, on connections of the front.

use std::sync::atomic::Ordering;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::ORIGIN;
use axum::http::uri::Authority;
use axum::http::{Response, StatusCode, Uri, Version};
use braid_transport::http::WebSocketUpgrades;
use braid_transport::{Peer, Transport};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use crate::problem::problem;
use crate::request::{Client, Upgraded, proxy_sign};

/// Route that passes its connections to a broker.
#[derive(Clone, Debug)]
pub struct MqttRoute(pub WebSocketUpgrades);

/// Answers a request with 101, and passes the connection on.
pub(super) async fn upgrade(mut request: Request, MqttRoute(upgrades): MqttRoute) -> Response<Body> {
    // Browsers open another connection for it, since HTTP/2 and 3 are served without Extended CONNECT.
    if request.version() != Version::HTTP_11 {
        return problem(StatusCode::BAD_REQUEST, "MQTT over WebSocket is on HTTP/1.1 only");
    }
    let Some(client) = request.extensions().get::<Client>().cloned() else {
        return problem(StatusCode::INTERNAL_SERVER_ERROR, "the client of the request is not known");
    };
    let (upgraded, upgrade) =
        (request.extensions_mut().remove::<Upgraded>(), request.extensions_mut().remove::<OnUpgrade>());
    let is_same_origin = is_of(&request, client.authority.as_ref());
    let peer = Peer {
        address: Some(client.address),
        // The broker takes the clients of a proxy that it does not know for clients of other machines.
        proxy: proxy_sign(request.version(), request.headers()).map(|_| client.address),
        transport: if client.is_encrypted { Transport::Wss } else { Transport::Ws },
        certificate: None,
        tls_version: None,
        alpn: None,
    };
    let (parts, _) = request.into_parts();
    let response = match upgrades.answer(&axum::http::Request::from_parts(parts, ()), is_same_origin) {
        Ok(response) => response,
        Err((status, detail)) => return problem(status, &detail),
    };
    let (Some(Upgraded { is_upgraded, permit }), Some(upgrade)) = (upgraded, upgrade) else {
        return problem(StatusCode::BAD_REQUEST, "the connection cannot change its protocol");
    };
    tokio::spawn(async move {
        // An error: the client has gone.
        let Ok(io) = upgrade.await else { return };
        is_upgraded.store(true, Ordering::Relaxed);
        match upgrades.send(TokioIo::new(io), peer) {
            // The broker's limits of connections hold from now on.
            Ok(()) => permit.give_back(),
            Err(_) => {
                tracing::debug!(from = %client.address, "a connection is dropped: too many wait for the broker");
            }
        }
    });
    response.map(|()| Body::empty())
}

/// Tests whether a request is of a page of this server.
fn is_of(request: &Request, authority: Option<&Authority>) -> bool {
    let origin = request.headers().get(ORIGIN).and_then(|origin| Uri::try_from(origin.as_bytes()).ok());
    origin.as_ref().and_then(Uri::authority).is_some_and(|origin| Some(origin) == authority)
}
