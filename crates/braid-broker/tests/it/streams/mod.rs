//! Many streams: the broker over a simulated QUIC network, statement by statement of `docs/spec/mqtt-over-quic.md`.

mod barrier;
mod bursts;
mod churn;
mod close;
mod codes;
mod early;
mod ends;
mod identifiers;
mod network;
mod opening;
mod random;
mod slowed;
mod stuck;
mod subscriptions;
mod takeover;
mod unread;
mod urgent;
mod wakeups;
