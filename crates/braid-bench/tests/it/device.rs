//! Load of a device whose network fails.

use std::future::{Future, pending};
use std::time::Duration;

use braid_bench::device::{DeviceLoad, run};
use braid_bench::summary::RunSummary;
use braid_bench::urgent::Lanes;
use tokio::time::{sleep, timeout};

use crate::rig::Rig;

const SECOND: Duration = Duration::from_secs(1);

/// Ten alarms a second for ten seconds, and two in which the last ones may be acknowledged.
fn load() -> DeviceLoad {
    DeviceLoad {
        topic: "alarms".to_owned(),
        rate: 10.0,
        recording: None,
        recordings: None,
        duration: 10 * SECOND,
        patience: 2 * SECOND,
        change_every: None,
        trace: true,
    }
}

/// Summary of a load of a device that reaches the broker until `cut`, and has room for few alarms after that.
async fn after_a_cut(
    load: &DeviceLoad,
    cut: impl Future<Output = ()> + Send + 'static,
    stop: impl Future<Output = ()>,
) -> RunSummary {
    let rig = Rig::start();
    let device = rig.device.clone();
    tokio::spawn(async move {
        cut.await;
        device.change(|link| link.cut = true);
    });
    let builder =
        rig.far_client(Lanes::Priorities).maximum_inflight(1).send_queue(2).disconnect_timeout(load.patience);
    let ended = timeout(60 * SECOND, run(load, builder, stop, |_| {})).await;
    ended.expect("the load ends").expect("a summary")
}

#[tokio::test(start_paused = true)]
async fn a_full_send_queue_ends_with_the_run_and_its_alarms_have_failed() {
    let summary = after_a_cut(&load(), sleep(1050 * SECOND / 1000), pending()).await;
    let alarms = &summary.topics[0];
    assert_eq!((alarms.sent, alarms.acked, alarms.failed), (99, 10, 89));
    assert!(summary.seconds < 18.0, "{}", summary.seconds);
    assert_eq!(alarms.latency_us.map(|latency| latency.count), Some(10));
    let trace = alarms.trace.as_ref().expect("it was asked for");
    assert_eq!((trace.due_unix_us.len(), trace.took_us.len()), (99, 10), "each alarm was due");
    let mut due = trace.due_unix_us.clone();
    due.sort_unstable();
    assert!(due.windows(2).all(|pair| pair[1] - pair[0] == 100_000), "{due:?}");
    assert_eq!(due[..10], trace.due_unix_us[..10], "those with an answer come first");
}

#[tokio::test(start_paused = true)]
async fn a_load_without_any_connection_has_a_summary_too() {
    let rig = Rig::start();
    rig.device.change(|link| link.cut = true);
    let builder = rig.far_client(Lanes::Priorities).connect_timeout(SECOND);
    let ended = timeout(60 * SECOND, run(&load(), builder, pending(), |_| {})).await;
    let summary = ended.expect("the load ends").expect("a summary");
    assert_eq!((summary.topics[0].sent, summary.topics[0].failed), (99, 99));
    let last = summary.events.last().map(|event| event.what.clone()).unwrap_or_default();
    assert!(last.starts_with("without a connection at the end: "), "{last}");
}

#[tokio::test(start_paused = true)]
async fn a_stopped_load_has_a_summary() {
    let summary = after_a_cut(&load(), sleep(1050 * SECOND / 1000), sleep(5050 * SECOND / 1000)).await;
    let alarms = &summary.topics[0];
    assert_eq!((alarms.sent, alarms.acked, alarms.failed), (50, 10, 40));
    assert!(summary.seconds < 13.0, "{}", summary.seconds);
    assert!(summary.events.iter().any(|event| event.what == "stopped before the end"));
    let gap = summary.counters["longest_gap_ms"];
    assert!((4000..4100).contains(&gap), "from the last acknowledgement to the stop: {gap} ms");
}
