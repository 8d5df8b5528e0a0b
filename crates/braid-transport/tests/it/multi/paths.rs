//! A client with two interfaces, on a simulated network with a link for each.

use braid_transport::Dir;
use braid_transport::quic::{Multipath, PathChange, PathMode, PathNotice, PathRole};
use tokio::time::{Instant, sleep_until};

use super::*;
use crate::driven::Link;

const WIFI: usize = 0;
const CELLULAR: usize = 1;

/// Time from one small message to the next.
const INTERVAL: Duration = Duration::from_millis(50);

/// Latest arrival of a small message when one of two links is cut.
const LATEST: Duration = Duration::from_millis(400);

/// A phone that is connected to a server, and has written one byte.
struct Phone {
    wifi: Host,
    cellular: Host,
    client: Link,
    server: Link,
    /// Changes of paths that were read.
    notices: Vec<(usize, PathChange)>,
    _listener: Listener,
}

/// Round trips of 30 ms and 60 ms.
fn hosts(network: &Network) -> (Host, Host) {
    let (wifi, cellular) = (network.host("wifi"), network.host("cellular"));
    wifi.change(|link| link.latency = Duration::from_millis(15));
    cellular.change(|link| link.latency = Duration::from_millis(30));
    (wifi, cellular)
}

impl Phone {
    async fn new(mode: PathMode) -> Self {
        Self::with(mode, QuicOptions::server(), |_, _| {}).await
    }

    /// `before`: changes links before the client connects.
    async fn with(mode: PathMode, options: QuicOptions, before: impl FnOnce(&Host, &Host)) -> Self {
        let (pki, network) = (Pki::new(), Network::new(5));
        let options = ListenOptions { quic: options, ..ListenOptions::default() };
        let mut listener = network.listen(pki.server(), &options).expect("listen");
        let (wifi, cellular) = hosts(&network);
        before(&wifi, &cellular);
        let connector = wifi.connector(address(&listener), pki.client(), QuicOptions::client());
        let connector = connector.paths(std::slice::from_ref(&cellular), mode);
        let client = tokio::spawn(async move {
            let mut client = Link::from(connector.connect().await.expect("connect"));
            write(&mut client, StreamKey::CONTROL, b"!").await;
            client
        });
        let mut server = accept(&mut listener).await.await.expect("join").expect("handshake");
        let client = client.await.expect("join");
        assert_eq!(next(&mut server).await, (Read::Bytes(StreamKey::CONTROL), b"!".to_vec()));
        server.set_trusted();
        Self { wifi, cellular, client, server, notices: Vec::new(), _listener: listener }
    }

    /// A phone whose paths are both open.
    async fn on_both(mode: PathMode) -> Self {
        let mut phone = Self::new(mode).await;
        phone.until((CELLULAR, PathChange::Opened)).await;
        phone
    }

    /// Waits for a change of a path.
    async fn until(&mut self, wanted: (usize, PathChange)) {
        while !self.notices.contains(&wanted) {
            match next(&mut self.client).await.0 {
                Read::Path(PathNotice { local, change }) => self.notices.push((local, change)),
                read => unreachable!("{read:?}"),
            }
        }
        self.notices.retain(|notice| *notice != wanted);
    }

    /// Writes a byte, and waits until it is at the server and the client has such an address there.
    async fn ask(&mut self, is_there: impl Fn(std::net::SocketAddr) -> bool) {
        write(&mut self.client, StreamKey::CONTROL, b"?").await;
        let (mut has_come, mut has_moved) = (false, false);
        while !has_come || !has_moved {
            match next(&mut self.server).await {
                (Read::Bytes(StreamKey::CONTROL), bytes) => has_come = bytes == b"?",
                (Read::Moved(address), _) => has_moved = is_there(address),
                (read, _) => unreachable!("{read:?}"),
            }
        }
    }

    /// Roles of the paths that are not closed, by the index of their interface.
    fn roles(&mut self) -> Vec<(usize, PathRole)> {
        let mut roles: Vec<_> =
            self.client.paths().iter().filter_map(|path| Some((path.local?, path.role))).collect();
        roles.sort_by_key(|(local, _)| *local);
        roles
    }
}

/// Direction of the messages of [`exchange`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Up,
    Down,
}

/// Sends small messages on the control stream and a large one on another, and runs `disturb` after a second. Returns
/// the longest delay of a small message; all have arrived.
async fn exchange(phone: &mut Phone, way: Way, large: usize, disturb: impl FnOnce(&Host, &Host)) -> Duration {
    let Phone { wifi, cellular, client, server, .. } = phone;
    let bulk = poll_fn(|cx| client.poll_open(cx, Dir::Bidi)).await.expect("open");
    write(client, bulk, b"!").await;
    while next(server).await != (Read::Bytes(bulk), b"!".to_vec()) {}
    let (sender, receiver) = match way {
        Way::Up => (client, server),
        Way::Down => (server, client),
    };
    let (begin, count) = (Instant::now(), 60_u32);
    let sent_at = |index: u32| begin + index * INTERVAL;
    let send = async {
        let body = crate::support::pattern(large);
        let mut rest = &body[..];
        let mut disturb = Some(disturb);
        for index in 0..count {
            while Instant::now() < sent_at(index) && !rest.is_empty() {
                let slices = [IoSlice::new(rest)];
                let written = poll_fn(|cx| sender.poll_write(cx, bulk, &slices));
                tokio::select! {
                    written = written => rest = &rest[written.expect("write")..],
                    () = sleep_until(sent_at(index)) => {}
                }
            }
            sleep_until(sent_at(index)).await;
            if index * INTERVAL >= Duration::from_secs(1)
                && let Some(disturb) = disturb.take()
            {
                disturb(wifi, cellular);
            }
            write(sender, StreamKey::CONTROL, &index.to_be_bytes()).await;
        }
        write(sender, bulk, rest).await;
    };
    let receive = async {
        let (mut small, mut received, mut worst) = (Vec::new(), Vec::new(), Duration::ZERO);
        while small.len() < 4 * count as usize || received.len() < large {
            match next(receiver).await {
                (Read::Bytes(StreamKey::CONTROL), bytes) => {
                    let first = small.len() / 4;
                    small.extend(bytes);
                    for index in first..small.len() / 4 {
                        let index = u32::try_from(index).expect("few");
                        worst = worst.max(sent_at(index).elapsed());
                    }
                }
                (Read::Bytes(key), bytes) if key == bulk => received.extend(bytes),
                (Read::Path(_) | Read::Moved(_), _) => {}
                (read, _) => unreachable!("{read:?}"),
            }
        }
        let expected: Vec<u8> = (0..count).flat_map(u32::to_be_bytes).collect();
        assert!(small == expected && received == crate::support::pattern(large));
        worst
    };
    tokio::join!(send, receive).1
}

// [BQ-72]
#[tokio::test(start_paused = true)]
async fn messages_go_on_when_one_of_two_links_is_cut() {
    for mode in [PathMode::Standby, PathMode::Both] {
        for way in [Way::Up, Way::Down] {
            for large in [0, 2_000_000] {
                for cut in [WIFI, CELLULAR] {
                    let mut phone = Phone::on_both(mode).await;
                    let worst = exchange(&mut phone, way, large, |wifi, cellular| {
                        let host = if cut == WIFI { wifi } else { cellular };
                        host.change(|link| link.cut = true);
                    });
                    let worst = worst.await;
                    println!("{mode:?} {way:?} {large} {cut}: {worst:?}");
                    assert!(worst <= LATEST, "{mode:?} {way:?} {large} {cut}: {worst:?}");
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn one_direction_of_a_link_is_enough_to_be_set_aside() {
    for direction in [braid_transport::sim::Direction::Up, braid_transport::sim::Direction::Down] {
        for way in [Way::Up, Way::Down] {
            let mut phone = Phone::on_both(PathMode::Standby).await;
            let worst = exchange(&mut phone, way, 0, |wifi, _| {
                wifi.change_one(direction, |link| link.cut = true);
            });
            let worst = worst.await;
            println!("{direction:?} {way:?}: {worst:?}");
            assert!(worst <= LATEST, "{direction:?} {way:?}: {worst:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_preferred_interface_is_used_again_when_it_comes_back() {
    let mut phone = Phone::on_both(PathMode::Standby).await;
    assert_eq!(phone.roles(), [(WIFI, PathRole::InUse), (CELLULAR, PathRole::Standby)]);
    let at_wifi = phone.server.peer().address.expect("known").ip();
    phone.wifi.change(|link| link.cut = true);
    phone.ask(|address| address.ip() != at_wifi).await;
    phone.until((WIFI, PathChange::Silent)).await;
    assert_eq!(phone.roles().last(), Some(&(CELLULAR, PathRole::InUse)));
    sleep(Duration::from_secs(5)).await;
    phone.wifi.change(|link| link.cut = false);
    phone.until((WIFI, PathChange::Opened)).await;
    sleep(A_WHILE).await;
    assert_eq!(phone.roles(), [(WIFI, PathRole::InUse), (CELLULAR, PathRole::Standby)]);
    phone.ask(|address| address.ip() == at_wifi).await;
    // Several times in a row: path numbers are used up, and come back.
    for _ in 0..5 {
        phone.wifi.change(|link| link.cut = true);
        phone.until((WIFI, PathChange::Silent)).await;
        phone.wifi.change(|link| link.cut = false);
        phone.until((WIFI, PathChange::Opened)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_link_that_is_silent_from_the_start_is_used_when_it_comes() {
    for silent in [WIFI, CELLULAR] {
        let mut phone = Phone::with(PathMode::Standby, QuicOptions::server(), |wifi, cellular| {
            let host = if silent == WIFI { wifi } else { cellular };
            host.change(|link| link.cut = true);
        })
        .await;
        sleep(Duration::from_secs(3)).await;
        write(&mut phone.client, StreamKey::CONTROL, b"?").await;
        assert_eq!(next(&mut phone.server).await.1, b"?");
        let host = if silent == WIFI { &phone.wifi } else { &phone.cellular };
        host.change(|link| link.cut = false);
        phone.until((silent, PathChange::Opened)).await;
        sleep(A_WHILE).await;
        assert_eq!(phone.roles(), [(WIFI, PathRole::InUse), (CELLULAR, PathRole::Standby)]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_standby_link_that_is_cut_is_found_before_it_is_needed() {
    let mut phone = Phone::on_both(PathMode::Standby).await;
    phone.cellular.change(|link| link.cut = true);
    let cut = Instant::now();
    phone.until((CELLULAR, PathChange::Silent)).await;
    assert!(cut.elapsed() < Duration::from_secs(7), "{:?}", cut.elapsed());
    assert_eq!(phone.roles().first(), Some(&(WIFI, PathRole::InUse)));
}

#[tokio::test(start_paused = true)]
async fn a_server_without_the_extension_has_one_path() {
    let options = QuicOptions { multipath: Multipath::default(), ..QuicOptions::server() };
    let mut phone = Phone::with(PathMode::Both, options, |_, _| {}).await;
    phone.until((CELLULAR, PathChange::Unsupported)).await;
    assert_eq!(exchange(&mut phone, Way::Up, 100_000, |_, _| {}).await.as_millis() / 100, 0);
    assert_eq!(phone.client.paths().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_path_goes_on_behind_a_nat_that_forgets() {
    for mode in [PathMode::Standby, PathMode::Both] {
        let mut phone = Phone::on_both(mode).await;
        let worst = exchange(&mut phone, Way::Up, 1_000_000, |wifi, cellular| {
            wifi.rebind_nat();
            cellular.rebind_nat();
        });
        let worst = worst.await;
        assert!(worst <= LATEST, "{mode:?}: {worst:?}");
        sleep(Duration::from_secs(1)).await;
        assert_eq!(phone.roles().len(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_without_the_option_has_one_path() {
    let network = Network::new(5);
    let (mut server, mut client, _listener) = links(&network, &network.host("wifi")).await;
    for link in [&mut client, &mut server] {
        let paths = link.paths();
        assert_eq!(paths.len(), 1);
        assert_eq!((paths[0].number, paths[0].role, paths[0].local), (0, PathRole::InUse, None));
    }
}
