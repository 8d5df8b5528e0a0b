//! Many streams: the broker over a simulated QUIC network, statement by statement of `docs/spec/mqtt-over-quic.md`.

mod codes;
mod ends;
mod identifiers;
mod opening;
mod subscriptions;
