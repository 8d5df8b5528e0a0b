//! Loads against a broker in this process, on virtual time, and the vocabulary of emqtt_bench.

mod bulk;
mod connection;
mod device;
mod emqtt;
mod exchange;
mod generator;
mod http;
mod pairs;
mod rig;
mod urgent;
