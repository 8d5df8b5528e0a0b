use std::time::Duration;

use braid_bench::bulk::Bulk;
use braid_bench::urgent::Lanes;
use braid_transport::sim::{Direction, Shaper};
use tokio::time::timeout;

use crate::rig::Rig;

const MIB: usize = 1 << 20;

async fn up(rig: &Rig) -> Bulk {
    let (publisher, _) = rig.far_client(Lanes::Priorities).connect().await.expect("the broker accepts");
    let subscriber = rig.near_client().connect().await.expect("the broker accepts");
    Bulk::set_up(publisher, subscriber).await.expect("the broker takes it")
}

async fn down(rig: &Rig) -> Bulk {
    let (publisher, _) = rig.near_client().connect().await.expect("the broker accepts");
    let subscriber = rig.far_client(Lanes::Priorities).connect().await.expect("the broker accepts");
    Bulk::set_up(publisher, subscriber).await.expect("the broker takes it")
}

/// A fresh connection doubles its rate with each round trip: that is most of it.
#[tokio::test(start_paused = true)]
async fn ten_megabytes_take_little_more_than_the_link_does() {
    let rig = Rig::start();
    rig.device.change(|link| link.latency = Duration::from_millis(25));
    // 100 Mbit/s take 0.84 s for them.
    let shaper = Shaper { rate: 8609.0, queue: 431 };
    rig.device.change(|link| link.shaper = Some(shaper));
    for mut bulk in [up(&rig).await, down(&rig).await] {
        let took = bulk.transfer(10 * MIB).await.expect("both stay connected");
        assert!(took < Duration::from_millis(1370), "{took:?}");
    }
}

/// 1 Gbit/s with a queue of 215 packets, which slow start exceeds by thousands.
#[tokio::test(start_paused = true)]
async fn a_burst_of_losses_does_not_end_the_connection() {
    let rig = Rig::start();
    rig.device.change(|link| link.latency = Duration::from_millis(25));
    let mut bulk = up(&rig).await;
    let shaper = Shaper { rate: 86_088.0, queue: 215 };
    rig.device.change_one(Direction::Up, |link| link.shaper = Some(shaper));
    // A connection that ends is replaced, and the message begins anew.
    let transfer = timeout(Duration::from_secs(5), bulk.transfer(40 * MIB));
    transfer.await.expect("in time").expect("both stay connected");
}
