//! Every kind of link over real sockets on the loopback interface, and in memory.

mod bind;
mod certificates;
mod echo;
mod ends;
mod gate;
mod keylog;
mod mem;
mod multi;
mod policing;
mod quic;
mod retry;
mod revocation;
mod sim;
mod sni;
mod stall;
mod support;
mod tls;
mod websocket;
mod zero_rtt;
