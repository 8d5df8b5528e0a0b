//! Many streams: the broker over a simulated QUIC network, statement by statement of `docs/spec/mqtt-over-quic.md`.

mod backpressure;
mod barrier;
mod bursts;
mod churn;
mod close;
mod codes;
mod datagrams;
mod early;
mod ends;
mod identifiers;
mod keep_alive;
mod network;
mod opening;
mod random;
mod subscriptions;
mod takeover;
mod unread_streams;
mod urgent;
mod wakeups;
