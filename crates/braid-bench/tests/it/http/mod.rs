//! Load on HTTP servers in this process, which answer, lie, and close.

mod alt_svc;
mod http1;
mod http2;
mod rig;
mod secure;
