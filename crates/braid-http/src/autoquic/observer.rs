//! Observer of one connection.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::http::HeaderValue;
use braid_select::{AltSvc, Key, Protocol};

use super::meter::{Completion, QuicConnection, TcpConnection};
use super::{AutoQuic, Standing};
use crate::upgrade::{Advice, Link, Observer, PathSample};

/// Time between two samples of a connection, for which its advice stays the same.
const INTERVAL: Duration = Duration::from_secs(1);

/// Gives the measurements of a connection to the policy, and remembers its advice.
pub(super) struct ConnectionObserver {
    policy: AutoQuic,
    link: Link,
    port: u16,
    opened: Duration,
    state: Mutex<State>,
}

struct State {
    connection: Connection,
    /// Authority of the latest request, and its key.
    asked: Option<(Box<str>, Key)>,
    advice: Advice,
    due: Duration,
}

enum Connection {
    Tcp(TcpConnection),
    Quic(QuicConnection),
}

impl Connection {
    /// Notes that a response is about to be sent. Returns true if its end is to wait for an acknowledgement.
    fn responds(&mut self, now: Duration, is_due: bool) -> bool {
        match self {
            Self::Tcp(tcp) => {
                tcp.responds(now);
                false
            }
            Self::Quic(quic) => quic.responds(now, is_due),
        }
    }
}

impl ConnectionObserver {
    pub(super) fn new(policy: &AutoQuic, link: Link) -> Self {
        let (port, opened) = (policy.0.port.unwrap_or(link.listener.port()), policy.now());
        let connection = match link.is_quic() {
            true => Connection::Quic(QuicConnection::default()),
            false => Connection::Tcp(TcpConnection::default()),
        };
        let state = State { connection, asked: None, advice: Advice::default(), due: opened };
        Self { policy: policy.clone(), link, port, opened, state: Mutex::new(state) }
    }

    fn with<R>(&self, call: impl FnOnce(&mut State) -> R) -> R {
        call(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn client(&self) -> IpAddr {
        self.link.client.ip()
    }

    /// Gives a sample to the policy.
    fn sample(&self, now: Duration, connection: &mut Connection, key: &Key) {
        let completion = match (connection, self.link.sample()) {
            (Connection::Tcp(tcp), Some(PathSample::Tcp(metrics))) => {
                let (reading, completion) = tcp.sample(&metrics);
                self.policy.update(|selector, now| selector.observe_tcp(now, key, &mut tcp.meter, &reading));
                completion
            }
            (Connection::Quic(quic), Some(PathSample::Quic(stats))) => {
                let reading = quic.sample(now, &stats);
                self.policy
                    .update(|selector, now| selector.observe_quic(now, key, &mut quic.meter, &reading));
                quic.split(now)
            }
            _ => None,
        };
        self.complete(key, completion);
    }

    fn complete(&self, key: &Key, completion: Option<Completion>) {
        if let Some(Completion { bytes, elapsed }) = completion {
            let over = if self.link.is_quic() { Protocol::Quic } else { Protocol::Tcp };
            self.policy.update(|selector, now| selector.observe_response(now, key, over, bytes, elapsed));
        }
    }

    /// Advice of the policy at this moment.
    fn advice(&self, key: &Key) -> Advice {
        self.policy.standing(key).advice(self.link.is_quic(), self.opened, self.port)
    }
}

impl Standing {
    /// Advice for a connection that was opened at a time.
    fn advice(&self, is_quic: bool, opened: Duration, port: u16) -> Advice {
        let alt_svc = match self.alt_svc {
            AltSvc::None => None,
            AltSvc::Clear => Some(HeaderValue::from_static("clear")),
            AltSvc::Advertise { max_age } => {
                let value = format!("h3=\":{port}\"; ma={}", max_age.as_secs());
                HeaderValue::try_from(value).ok()
            }
        };
        // One that began after the change is the client's own choice.
        let goaway =
            is_quic && self.chosen == Protocol::Tcp && self.changed.is_some_and(|changed| changed >= opened);
        Advice { alt_svc, goaway }
    }
}

impl Observer for ConnectionObserver {
    fn advise(&self, authority: Option<&str>) -> Advice {
        let now = self.policy.now();
        self.with(|state| {
            let Some(authority) = authority else {
                state.connection.responds(now, false);
                return Advice::default();
            };
            let is_new = state.asked.as_ref().is_none_or(|(asked, _)| **asked != *authority);
            if is_new {
                let key = self.policy.key(self.client(), authority);
                if self.link.is_quic() {
                    self.policy.update(|selector, now| selector.quic_works(now, &key));
                }
                state.asked = Some((authority.into(), key));
            }
            let State { connection, asked: Some((_, key)), advice, due } = state else {
                return Advice::default();
            };
            let is_due = now >= *due;
            if is_due {
                *due = now + INTERVAL;
                self.sample(now, connection, key);
            }
            if is_due || is_new {
                *advice = self.advice(key);
            }
            if connection.responds(now, is_due) {
                self.link.wait_for_acknowledgements(true);
            }
            advice.clone()
        })
    }

    fn sent(&self, bytes: Option<u64>) {
        let now = self.policy.now();
        self.with(|state| {
            let Connection::Quic(quic) = &mut state.connection else { return };
            let (completion, is_timed) = quic.sent(now, bytes);
            if !is_timed {
                self.link.wait_for_acknowledgements(false);
            }
            if let Some((_, key)) = &state.asked {
                self.complete(key, completion);
            }
        });
    }

    fn tick(&self) {
        let now = self.policy.now();
        self.with(|state| {
            if let State { connection, asked: Some((_, key)), due, .. } = state
                && now >= *due
            {
                *due = now + INTERVAL;
                self.sample(now, connection, key);
            }
        });
    }

    fn ended(&self) {
        let now = self.policy.now();
        self.with(|state| {
            if let State { connection, asked: Some((_, key)), .. } = state {
                self.sample(now, connection, key);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_names_the_port_and_ends_older_connections() {
        let secs = Duration::from_secs;
        let advertise = AltSvc::Advertise { max_age: Duration::from_millis(600_500) };
        // State, opened and transport of the connection; header, end.
        for (alt_svc, chosen, changed, opened, is_quic, header, goaway) in [
            (AltSvc::None, Protocol::Tcp, None, 5, false, None, false),
            (AltSvc::None, Protocol::Tcp, None, 5, true, None, false),
            (advertise, Protocol::Quic, Some(3), 1, false, Some("h3=\":443\"; ma=600"), false),
            (advertise, Protocol::Quic, Some(3), 1, true, Some("h3=\":443\"; ma=600"), false),
            (AltSvc::Clear, Protocol::Tcp, Some(9), 1, true, Some("clear"), true),
            (AltSvc::Clear, Protocol::Tcp, Some(9), 1, false, Some("clear"), false),
            (AltSvc::Clear, Protocol::Tcp, Some(9), 10, true, Some("clear"), false),
        ] {
            let standing = Standing { alt_svc, chosen, changed: changed.map(secs) };
            let advice = standing.advice(is_quic, secs(opened), 443);
            let alt_svc = header.map(HeaderValue::from_static);
            assert_eq!(advice, Advice { alt_svc, goaway }, "{chosen} {changed:?} {opened} {is_quic}");
        }
    }
}
