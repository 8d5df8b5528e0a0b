use std::future::pending;
use std::rc::Rc;

use braid_transport::http::{connect_http, connect_http3};
use tokio::time::{Instant, sleep_until};

use super::account::Account;
use super::failure::{Ended, Failure};
use super::load::{Protocol, Timeouts};
use super::{h1, h2, h3};

/// Runs a client to the end of its requests.
pub(super) async fn run(account: Rc<Account>) {
    loop {
        account.begin_connection();
        let ended = tokio::select! {
            biased;
            ended = connection(&account) => ended,
            failure = expiry(&account) => Err(failure),
        };
        match ended {
            Ok(Ended::Complete) => break,
            Ok(Ended::Closing) => {
                account.abandon_in_flight();
                if account.is_exhausted() {
                    break;
                }
            }
            Err(failure) => {
                let is_timeout = matches!(failure, Failure::Inactive(_) | Failure::Active(_));
                account.abandon(is_timeout, failure.to_string());
                break;
            }
        }
    }
    account.end();
}

async fn connection(account: &Rc<Account>) -> Result<Ended, Failure> {
    let load = account.worker().load();
    let (route, host) = (&load.route, load.request.host());
    if let ([Protocol::Http3], Some(tls)) = (&*route.protocols, &route.tls) {
        let connection = connect_http3(host, &route.addresses, tls, &route.options).await?;
        account.worker().agreed(Protocol::Http3);
        return h3::run(connection, account, load.depth(Protocol::Http3)).await;
    }
    let stream = connect_http(host, &route.addresses, route.tls.as_ref(), &route.options).await?;
    let protocol = route.agreed(stream.peer.alpn.as_deref()).ok_or(Failure::Version)?;
    account.worker().agreed(protocol);
    match protocol {
        Protocol::Http1 => h1::run(stream.io, account, load.depth(protocol)).await,
        Protocol::Http2 => h2::run(stream.io, account, load.depth(protocol)).await,
        // Not over TCP.
        Protocol::Http3 => Err(Failure::Version),
    }
}

/// Waits for a time limit of the connection.
async fn expiry(account: &Account) -> Failure {
    let Timeouts { active, inactive } = account.worker().load().timeouts;
    let begun = Instant::now();
    loop {
        let (now, idle_since) = (Instant::now(), account.active_at());
        let ends = [
            active.map(|limit| (begun + limit, Failure::Active(limit))),
            inactive.map(|limit| (idle_since + limit, Failure::Inactive(limit))),
        ];
        let Some((end, failure)) = ends.into_iter().flatten().min_by_key(|(end, _)| *end) else {
            return pending().await;
        };
        if end <= now {
            return failure;
        }
        sleep_until(end).await;
    }
}
