//! I/O of QUIC connections around the state machine of `noq-proto`.
//!
//! The task that owns a [`Connection`] drives it: it takes datagrams in, sees to timeouts and sends. A server has one
//! task more for each [`Endpoint`], which receives the datagrams of all its connections and routes them by connection
//! ID; a client's connection has a socket of its own, or one for each interface.

mod admission;
mod answer_delay;
mod batch;
mod connection;
mod datagram_frames;
mod datagram_queue;
mod endpoint;
mod event;
mod first_flight;
mod own_endpoint;
mod paths;
mod repetition;
mod sender;
mod socket;
mod timer;
mod unordered;

pub(super) use admission::MOST as MOST_WAITING;
pub(super) use connection::Connection;
pub(super) use datagram_frames::{DatagramSource, NextPacket, SentPackets};
pub(super) use endpoint::{DoubtfulMark, Endpoint};
pub(super) use event::{Event, Received, Refused};
pub(super) use paths::{LocalPaths, OpenSocket};
pub(super) use socket::Socket;
pub(super) use timer::now;
