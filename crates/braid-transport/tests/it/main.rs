//! Every kind of link over real sockets on the loopback interface, and in memory.

mod bind;
mod certificates;
mod echo;
mod mem;
mod quic;
mod stall;
mod support;
mod tls;
mod websocket;
