//! Many streams: the broker over a simulated QUIC network, statement by statement of `docs/spec/mqtt-over-quic.md`.

mod churn;
mod codes;
mod early;
mod ends;
mod identifiers;
mod network;
mod opening;
mod stuck;
mod subscriptions;
mod takeover;
mod urgent;
