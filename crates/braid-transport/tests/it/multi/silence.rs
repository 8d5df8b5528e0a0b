//! A connection that has nothing to say says nothing.

use braid_transport::sim::Direction;

use super::*;

/// A probe that is held back is a packet that was lost: it must not call for the next probe, and the one that is sent
/// must be answered.
#[tokio::test(start_paused = true)]
async fn a_loss_is_not_probed_for_ever() {
    for lost in [&[Direction::Up][..], &[Direction::Up, Direction::Down]] {
        let mut scene = Scene::new().await;
        lost.iter().for_each(|direction| scene.device.change_one(*direction, |link| link.cut = true));
        write(&mut scene.server, StreamKey::CONTROL, b"lost").await;
        sleep(Duration::from_millis(500)).await;
        scene.device.change(|link| link.cut = false);
        scene.recv.read_exact(&mut [0; 4]).await.expect("sent again");
        sleep(Duration::from_secs(5)).await;
        let before = scene.device.counters(Direction::Down).packets;
        sleep(Duration::from_secs(20)).await;
        let sent = scene.device.counters(Direction::Down).packets - before;
        assert!(sent < 3, "{sent} packets in twenty seconds of silence, {lost:?}");
    }
}

/// As above between two links, which ask for acknowledgements at once.
#[tokio::test(start_paused = true)]
async fn links_fall_silent_too() {
    let network = Network::new(3);
    let device = network.host("device");
    device.change(|link| link.latency = Duration::from_millis(7));
    let (mut server, mut client, _listener) = links(&network, &device).await;
    sleep(A_WHILE).await;
    device.change_one(Direction::Up, |link| link.cut = true);
    write(&mut server, StreamKey::CONTROL, b"not acknowledged").await;
    sleep(Duration::from_millis(500)).await;
    device.change_one(Direction::Up, |link| link.cut = false);
    assert_eq!(next(&mut client).await.1, b"not acknowledged");
    sleep(Duration::from_secs(5)).await;
    let before = device.counters(Direction::Down).packets;
    sleep(Duration::from_secs(20)).await;
    let sent = device.counters(Direction::Down).packets - before;
    assert!(sent < 3, "{sent} packets in twenty seconds of silence");
}
