//! Load for HTTP servers, as h2load puts it: requests over HTTP/1.1 with pipelining, HTTP/2 and HTTP/3.
//!
//! [`run`] starts a thread with its own runtime for each of [`HttpLoad::threads`]; clients are divided among them.
//! Each client has one connection and a budget of requests, and sends the next request as soon as a response leaves
//! room for it (closed loop). [`HttpSummary`] has the counts of all, and [`Report`] prints them as h2load does.
//!
//! # Failures, as in h2load
//!
//! | event | requests of the client |
//! |---|---|
//! | no address accepts a connection | all failed and errored; never retried |
//! | the connection ends, the server breaks the protocol, GOAWAY | those without a response and those not sent: failed and errored |
//! | an HTTP/1.1 response that ends the connection | those in flight behind it failed and errored; a new connection for the rest |
//! | a stream is reset | that one is done, failed and errored |
//! | status 4xx or 5xx | that one is done and failed |
//! | `Alt-Svc` is obeyed, the method is safe, and the connection is lost or GOAWAY comes | go over another connection, TCP after a failure of QUIC |
//! | a timeout | those in flight count as timed out, too; all that are left failed and errored |

mod account;
mod alt_svc;
mod body;
mod client;
mod failure;
mod h1;
mod h2;
mod h3;
mod link;
mod load;
mod progress;
mod report;
mod request;
mod response;
mod run;
mod streams;
mod summary;
mod tally;
mod thread;
mod worker;

pub use body::{DigestError, Expectation};
pub use load::{ConnectionRate, Extent, HttpLoad, LoadError, Protocol, Route, Timeouts};
pub use progress::Progress;
pub use report::Report;
pub use request::{Request, RequestError};
pub use run::{RunError, run};
pub use summary::{ClientError, Counts, HttpSummary, Moments, SCHEMA, Traffic};
