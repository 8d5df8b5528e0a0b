//! Clients whose ports change again and again, behind links that lose and reorder packets.

use braid_emulator::LinkSpec;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep_until};

use super::*;

const CLIENTS: usize = 10;

/// Bytes of a message, and of its answer.
const MESSAGE: usize = 280;
const ANSWER: usize = 4;

/// Time from one message to the next, and from one change of the ports to the next.
const PERIOD: Duration = Duration::from_millis(100);
const STAY: Duration = Duration::from_secs(6);

/// Longest silence: messages are lost several times, as is what validates a new address.
const LONGEST: Duration = Duration::from_secs(2);

/// One end of a connection.
struct End {
    link: braid_transport::Link,
    unsent: Vec<u8>,
    /// Bytes that have come.
    read: usize,
}

impl End {
    fn new(link: braid_transport::Link) -> Self {
        Self { link, unsent: Vec::new(), read: 0 }
    }

    fn read(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let mut bytes = [0; 4096];
        loop {
            let mut buffer = ReadBuf::new(&mut bytes);
            match self.link.poll_read(cx, &mut buffer, &mut |_| true) {
                Poll::Ready(read) => assert_ne!(read?, Read::Closed),
                Poll::Pending => return Ok(()),
            }
            self.read += buffer.filled().len();
        }
    }

    fn write(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        while !self.unsent.is_empty() {
            match self.link.poll_write(cx, StreamKey::CONTROL, &[IoSlice::new(&self.unsent)]) {
                Poll::Ready(written) => drop(self.unsent.drain(..written?)),
                Poll::Pending => break,
            }
        }
        let _ = self.link.poll_flush(cx);
        Ok(())
    }
}

/// Answers each message.
async fn serve(mut end: End) -> io::Result<()> {
    let mut answered = 0;
    poll_fn(|cx| {
        end.read(cx)?;
        let count = end.read / MESSAGE;
        end.unsent.extend(vec![1; (count - answered) * ANSWER]);
        answered = count;
        end.write(cx)?;
        Poll::Pending
    })
    .await
}

/// Sends messages until the time has come. Returns the times of the answers.
async fn publish(mut end: End, until: Instant) -> io::Result<Vec<Instant>> {
    let mut answers = vec![Instant::now()];
    let mut timer = Box::pin(sleep_until(Instant::now()));
    poll_fn(|cx| {
        end.read(cx)?;
        answers.resize(1 + end.read / ANSWER, Instant::now());
        while timer.as_mut().poll(cx).is_ready() {
            if timer.deadline() >= until {
                answers.push(until);
                return Poll::Ready(io::Result::Ok(()));
            }
            end.unsent.extend([2; MESSAGE]);
            let next = timer.deadline() + PERIOD;
            timer.as_mut().reset(next);
        }
        end.write(cx)?;
        Poll::Pending
    })
    .await?;
    Ok(answers)
}

/// The 10 % of the packets that are lost in each direction are often those that validate the new address.
#[tokio::test(start_paused = true)]
async fn no_client_falls_silent_when_its_port_changes() {
    for seed in 2..=4 {
        let silence = longest_silence(seed).await;
        assert!(silence < LONGEST, "{silence:?} without an answer with seed {seed}");
    }
}

async fn longest_silence(seed: u64) -> Duration {
    let (pki, network) = (Pki::new(), Network::new(seed));
    let mut listener = network.listen(pki.server(), &ListenOptions::default()).expect("listen");
    let weak: LinkSpec = "delay=10ms loss=10% reorder=20% limit=100000p".parse().expect("a link");
    let until = Instant::now() + 5 * STAY;
    let (mut clients, mut servers, mut devices) = (JoinSet::new(), JoinSet::new(), Vec::new());
    for number in 0..CLIENTS {
        let device = network.host(&format!("device{number}"));
        let connector = device.connector(address(&listener), pki.client(), QuicOptions::client());
        let client = tokio::spawn(async move {
            let mut end = End::new(connector.connect().await.expect("connect"));
            end.unsent = vec![2];
            poll_fn(|cx| Poll::Ready(end.write(cx))).await.expect("write");
            end
        });
        let incoming = listener.accept().await.expect("accept");
        let server = tokio::spawn(async move { incoming.handshake().await.expect("handshake") });
        let (client, server) = (client.await.expect("join"), server.await.expect("join"));
        device.replace_link(&weak);
        devices.push(device);
        clients.spawn(publish(client, until));
        servers.spawn(serve(End::new(server)));
    }
    let mut moves = interval(STAY);
    moves.tick().await;
    for _ in 1..5 {
        moves.tick().await;
        devices.iter().for_each(Host::rebind_nat_port);
    }
    let mut longest = Duration::ZERO;
    while let Some(answers) = clients.join_next().await {
        let answers = answers.expect("join").expect("the link lives");
        let silence = answers.windows(2).map(|pair| pair[1] - pair[0]).max();
        longest = longest.max(silence.expect("answers"));
    }
    longest
}
