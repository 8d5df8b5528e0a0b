//! Path MTU probes: a connection sends them once it carries data.

use std::future::{pending, poll_fn};
use std::time::Duration;

use braid_transport::quic::QuicOptions;
use braid_transport::sim::{Direction, Network, Recording};
use braid_transport::{Listener, Read};
use tokio::io::ReadBuf;
use tokio::time::{sleep, timeout};

use crate::driven::Link;
use crate::ends::{read, write};
use crate::support::{Pki, address};

/// Datagrams above this size are probes, or as large as those permit.
const SMALL: usize = 1200;

/// Request for many bytes, and their number; byte that is not answered.
const MANY: u8 = b'm';
const BYTES: usize = 256 << 10;
const SILENT: u8 = b's';

/// Answers each byte but the silent ones.
fn serve(mut listener: Listener) {
    tokio::spawn(async move {
        while let Ok(incoming) = listener.accept().await {
            tokio::spawn(async move {
                let mut link = Link::from(incoming.handshake().await.expect("handshake"));
                while let Some((last, _)) = read_some(&mut link).await {
                    let count = if last == MANY { BYTES } else { 1 };
                    if last != SILENT {
                        write(&mut link, &vec![last; count]).await.expect("write");
                    }
                }
            });
        }
    });
}

/// Reads what there is: the last byte, and the number of bytes. `None` at the end.
async fn read_some(link: &mut Link) -> Option<(u8, usize)> {
    let mut bytes = vec![0; 16 << 10];
    loop {
        let mut buffer = ReadBuf::new(&mut bytes);
        match poll_fn(|cx| link.poll_read(cx, &mut buffer, &mut |_| true)).await.ok()? {
            Read::Bytes(_) => return buffer.filled().last().map(|last| (*last, buffer.filled().len())),
            Read::Closed => return None,
            _ => {}
        }
    }
}

/// Number of large datagrams, and of all, in a direction.
fn sizes(recording: &Recording, direction: Direction) -> (usize, usize) {
    let datagrams = recording.datagrams();
    let lengths = datagrams.iter().filter(|one| one.direction == direction).map(|one| one.bytes.len());
    (lengths.clone().filter(|length| *length > SMALL).count(), lengths.count())
}

async fn exchange(link: &mut Link, count: usize) {
    for _ in 0..count {
        write(link, b"!").await.expect("write");
        assert_eq!(read(link).await.expect("read"), b'!');
        let _ = timeout(Duration::from_millis(700), pending::<()>()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_with_little_data_sends_no_probe_and_one_with_much_has_large_packets() {
    for (latency, zero_rtt) in [(1, false), (5, true), (20, false), (150, true)] {
        let (pki, network) = (Pki::new(), Network::new(1));
        let listener = network.listen(pki.server(), &Default::default()).expect("listen");
        let server = address(&listener);
        serve(listener);
        let device = network.host("device");
        device.change(|link| link.latency = Duration::from_millis(latency));
        let options = QuicOptions { zero_rtt, ..QuicOptions::client() };
        let connector = device.connector(server, pki.client(), options);
        // The second one resumes.
        for _ in 0..2 {
            let recording = device.record();
            let mut link = Link::from(connector.connect().await.expect("connect"));
            exchange(&mut link, 20).await;
            sleep(Duration::from_secs(300)).await;
            exchange(&mut link, 20).await;
            for direction in [Direction::Up, Direction::Down] {
                let (large, all) = sizes(&recording, direction);
                // With early data keys are discarded by a timer, which is no certain sign.
                let most = usize::from(zero_rtt);
                assert!(large <= most, "{direction:?}, {latency} ms: {large} of {all} datagrams");
            }

            let recording = device.record();
            write(&mut link, &[MANY]).await.expect("write");
            let mut count = 0;
            while count < BYTES {
                count += read_some(&mut link).await.expect("bytes").1;
            }
            let (large, all) = sizes(&recording, Direction::Down);
            assert!(large > 150, "{large} of {all}, {latency} ms");
            sleep(Duration::from_secs(1)).await;

            let recording = device.record();
            write(&mut link, &vec![SILENT; BYTES]).await.expect("write");
            exchange(&mut link, 1).await;
            let (large, all) = sizes(&recording, Direction::Up);
            assert!(large > 150, "{large} of {all}, {latency} ms");
        }
    }
}
