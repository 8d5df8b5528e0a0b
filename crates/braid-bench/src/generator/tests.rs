//! Timers that the messages of a run wait for.

use std::future::{pending, poll_fn};
use std::io::IoSlice;
use std::time::Duration;

use braid_proto::stream::StreamKey;
use braid_transport::{Listener, Read, mem};
use tokio::io::ReadBuf;

use super::{
    Clients, Clock, Dialer, Ended, Ending, Plan, PublishPlan, PublishedTopic, RunStatistics, TimerService,
    Work, run,
};
use crate::emqtt::{ClientIds, MessageTemplate};
use crate::summary::Role;

/// CONNACK of MQTT 5 with success and no properties.
const CONNACK: [u8; 5] = [0x20, 3, 0, 0, 0];

/// Accepts one client and reads its packets.
async fn swallow(mut listener: Listener) {
    let incoming = listener.accept().await.expect("a client");
    let mut link = incoming.handshake().await.expect("there is none in memory");
    let (mut bytes, mut is_welcome) = ([0; 4096], false);
    loop {
        let mut buffer = ReadBuf::new(&mut bytes);
        let read = poll_fn(|cx| link.poll_read(cx, &mut buffer, &mut |_| true)).await;
        if !matches!(read, Ok(Read::Bytes(_))) {
            return;
        }
        if !is_welcome {
            let connack = [IoSlice::new(&CONNACK)];
            let written = poll_fn(|cx| link.poll_write(cx, StreamKey::CONTROL, &connack)).await;
            assert_eq!(written.expect("it listens"), CONNACK.len());
            is_welcome = true;
        }
    }
}

fn plan(publish: PublishPlan) -> Plan {
    Plan {
        clients: Clients::plain(
            1,
            ClientIds { role: Role::Pub, prefix: None, short: true, host: String::new() },
        ),
        work: Work::Publish(publish),
        ending: Ending { after: Some(Duration::from_secs(60)), keep_connected: false },
    }
}

/// Messages that one client sent to so many topics, and the timers they waited for.
async fn messages_and_timers(topics: usize, interval: Duration, limit: u64) -> (u64, u64) {
    let (listener, near) = mem::listener();
    let server = tokio::spawn(swallow(listener));
    let topic = |at| {
        let message = MessageTemplate::of_size(64);
        PublishedTopic::new(&format!("a/{at}"), false, interval, message, 64).expect("a topic")
    };
    let publish = PublishPlan::of((0..topics).map(topic).collect()).expect("topics");
    let (timers, statistics) = (TimerService::exact().expect("a thread"), RunStatistics::new(Clock::now()));
    let load = plan(PublishPlan { limit, ..publish });
    let ended = run(load, Dialer::from(near), timers.clone(), statistics.clone(), pending()).await;
    assert_eq!(ended, Ended::Complete, "{:?}", statistics.events(0));
    server.await.expect("no panic");
    (statistics.topics().iter().map(|topic| topic.acked).sum(), timers.count())
}

#[tokio::test]
async fn messages_that_go_as_fast_as_they_can_wait_for_no_timer() {
    assert_eq!(messages_and_timers(2, Duration::ZERO, 20_000).await, (20_000, 0));
}

/// Three messages are due at once, and three more nine times; after that none is left. A late client needs no
/// timer.
#[tokio::test]
async fn messages_that_are_due_together_wait_for_one_timer() {
    let (messages, timers) = messages_and_timers(3, Duration::from_millis(10), 30).await;
    assert_eq!(messages, 30);
    assert!((1..=10).contains(&timers), "{timers} timers");
}
