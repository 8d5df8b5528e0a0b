//! The attacks, by the part of the broker that they aim at. Each ends with the attacker's process, and has a bounded
//! number of connections.

mod connections;
mod http;
mod http3;
mod messages;
mod partial;
mod quic_paths;
mod subscriptions;
mod tickets;
mod websocket;

use crate::attacker::Attack;

pub(crate) const SLOWLORIS: Attack = |attacker| Box::pin(connections::slowloris(attacker));
pub(crate) const TLS_HALF: Attack = |attacker| Box::pin(connections::tls_half(attacker));
pub(crate) const WS_HALF: Attack = |attacker| Box::pin(connections::ws_half(attacker));
pub(crate) const CONNECTS: Attack = |attacker| Box::pin(connections::connects(attacker));
pub(crate) const PASSWORDS: Attack = |attacker| Box::pin(connections::passwords(attacker));
pub(crate) const TLS_CONNECTS: Attack = |attacker| Box::pin(connections::tls_connects(attacker));
pub(crate) const QUIC_HALF: Attack = |attacker| Box::pin(quic_paths::half_handshakes(attacker));
pub(crate) const QUIC_GARBAGE: Attack = |attacker| Box::pin(quic_paths::garbage(attacker));
pub(crate) const QUIC_STREAMS: Attack = |attacker| Box::pin(quic_paths::streams(attacker));
pub(crate) const QUIC_MOVES: Attack = |attacker| Box::pin(quic_paths::moves(attacker));
pub(crate) const QUIC_ADDRESSES: Attack = |attacker| Box::pin(quic_paths::addresses(attacker));
pub(crate) const TICKETS: Attack = |attacker| Box::pin(tickets::replay(attacker));
pub(crate) const HALF_PACKETS: Attack = |attacker| Box::pin(partial::over_tcp(attacker));
pub(crate) const HALF_PACKETS_QUIC: Attack = |attacker| Box::pin(partial::over_quic(attacker));
pub(crate) const USER_PROPERTIES: Attack = |attacker| Box::pin(messages::user_properties(attacker));
pub(crate) const DEEP_TOPICS: Attack = |attacker| Box::pin(subscriptions::deep_topics(attacker));
pub(crate) const SUBSCRIPTIONS_ONE: Attack = |attacker| Box::pin(subscriptions::of_one_client(attacker));
pub(crate) const SUBSCRIPTIONS_MANY: Attack = |attacker| Box::pin(subscriptions::of_many_clients(attacker));
pub(crate) const WILDCARDS: Attack = |attacker| Box::pin(subscriptions::wildcards(attacker));
pub(crate) const CHURN: Attack = |attacker| Box::pin(subscriptions::churn(attacker));
pub(crate) const RETAINED: Attack = |attacker| Box::pin(messages::retained(attacker));
pub(crate) const QOS2: Attack = |attacker| Box::pin(messages::unreleased(attacker));
pub(crate) const URGENT: Attack = |attacker| Box::pin(messages::urgent(attacker));
pub(crate) const PINGS: Attack = |attacker| Box::pin(messages::pings(attacker));
pub(crate) const WS_LENGTHS: Attack = |attacker| Box::pin(websocket::lengths(attacker));
pub(crate) const WS_FRAGMENTS: Attack = |attacker| Box::pin(websocket::fragments(attacker));
pub(crate) const WS_PINGS: Attack = |attacker| Box::pin(websocket::pings(attacker));
pub(crate) const HTTP_CONNECTIONS: Attack = |attacker| Box::pin(http::connections(attacker));
pub(crate) const HTTP_REQUESTS: Attack = |attacker| Box::pin(http::requests(attacker));
pub(crate) const HTTP_SLOW: Attack = |attacker| Box::pin(http::slow(attacker));
pub(crate) const HTTP_URLS: Attack = |attacker| Box::pin(http::urls(attacker));
pub(crate) const HTTP_RESETS: Attack = |attacker| Box::pin(http::resets(attacker));
pub(crate) const HTTP_CONTINUATION: Attack = |attacker| Box::pin(http::continuations(attacker));
pub(crate) const HTTP_UNREAD: Attack = |attacker| Box::pin(http::unread(attacker));
pub(crate) const HTTP3_UNACKED: Attack = |attacker| Box::pin(http3::unacknowledged(attacker));
pub(crate) const HTTP3_RESETS: Attack = |attacker| Box::pin(http3::resets(attacker));
pub(crate) const HTTP3_FRAMES: Attack = |attacker| Box::pin(http3::frames(attacker));
