//! Every kind of link over real sockets on the loopback interface, and in memory.

mod amplification;
mod bind;
mod careful_resume;
mod certificates;
mod driven;
mod echo;
mod ends;
mod floods;
mod forger;
mod gate;
mod http;
mod initial;
mod keylog;
mod known_round_trip;
mod mem;
mod multi;
mod noq_peer;
mod peers;
mod policing;
mod proxy;
#[expect(unreachable_pub, reason = "it is public where it lives, in the fuzz crate")]
#[path = "../../../../fuzz/src/proxy_header.rs"]
mod proxy_header;
mod quic;
mod quic_lb;
mod retry;
mod revocation;
mod sim;
mod sni;
mod stall;
mod storm;
mod support;
mod tls;
mod websocket;
mod zero_rtt;
