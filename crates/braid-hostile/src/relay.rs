//! UDP relay in front of the broker: it records datagrams, and may let each come from another address.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use tokio::net::UdpSocket;
use tokio::task::JoinSet;

use crate::stream::LOCAL;

/// Largest datagram.
const LARGEST: usize = 65_535;

/// Relay between one client and a server. Dropping it ends it.
pub(crate) struct Relay {
    /// Address for the client.
    pub(crate) address: SocketAddr,
    state: Rc<State>,
    _tasks: JoinSet<()>,
}

struct State {
    client: Cell<Option<SocketAddr>>,
    /// Datagrams of the client since the last [`Relay::record`], up to the first answer.
    recorded: RefCell<Vec<Vec<u8>>>,
    is_recording: Cell<bool>,
    /// True if datagrams come from all addresses in turn, and not from the first one alone.
    is_spread: Cell<bool>,
    /// True if datagrams of the server are dropped.
    drops_answers: Cell<bool>,
}

impl Relay {
    /// Relay to `server` with this number of addresses. Until [`Relay::spread`] all datagrams come from the first one:
    /// a server takes those of a handshake from one address only.
    ///
    /// # Errors
    /// A socket cannot be bound.
    pub(crate) async fn to(server: SocketAddr, sockets: usize) -> io::Result<Self> {
        let front = Rc::new(UdpSocket::bind((LOCAL, 0)).await?);
        let address = front.local_addr()?;
        let state = Rc::new(State {
            client: Cell::new(None),
            recorded: RefCell::default(),
            is_recording: Cell::new(false),
            is_spread: Cell::new(false),
            drops_answers: Cell::new(false),
        });
        let (mut tasks, mut backs) = (JoinSet::new(), Vec::new());
        for _ in 0..sockets.max(1) {
            let back = Rc::new(UdpSocket::bind((LOCAL, 0)).await?);
            back.connect(server).await?;
            tasks.spawn_local(answer(Rc::clone(&state), Rc::clone(&back), Rc::clone(&front)));
            backs.push(back);
        }
        tasks.spawn_local(forward(Rc::clone(&state), front, backs));
        Ok(Self { address, state, _tasks: tasks })
    }

    /// From now on each datagram of the client comes from another address than the one before.
    pub(crate) fn spread(&self) {
        self.state.is_spread.set(true);
    }

    /// From now on datagrams of the server do not arrive.
    pub(crate) fn drop_answers(&self) {
        self.state.drops_answers.set(true);
    }

    /// Begins to record, until the first answer of the server.
    pub(crate) fn record(&self) {
        self.state.recorded.borrow_mut().clear();
        self.state.is_recording.set(true);
    }

    /// Datagrams that were recorded: the first flight of the client.
    pub(crate) fn take_recorded(&self) -> Vec<Vec<u8>> {
        self.state.is_recording.set(false);
        self.state.recorded.take()
    }
}

/// Passes on datagrams of the client. An error means that the server has closed its port.
async fn forward(state: Rc<State>, front: Rc<UdpSocket>, backs: Vec<Rc<UdpSocket>>) {
    let mut buffer = vec![0; LARGEST];
    for next in backs.iter().cycle() {
        let Ok((length, client)) = front.recv_from(&mut buffer).await else { return };
        state.client.set(Some(client));
        if state.is_recording.get() {
            state.recorded.borrow_mut().push(buffer[..length].to_vec());
        }
        let back = if state.is_spread.get() { next } else { &backs[0] };
        let _ = back.send(&buffer[..length]).await;
    }
}

/// Passes on datagrams of the server.
async fn answer(state: Rc<State>, back: Rc<UdpSocket>, front: Rc<UdpSocket>) {
    let mut buffer = vec![0; LARGEST];
    loop {
        // An error tells of an earlier datagram.
        let Ok(length) = back.recv(&mut buffer).await else { continue };
        state.is_recording.set(false);
        if let Some(client) = state.client.get().filter(|_| !state.drops_answers.get()) {
            let _ = front.send_to(&buffer[..length], client).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tokio::task::LocalSet;

    use super::*;

    #[test]
    fn datagrams_come_from_all_addresses_in_turn_and_the_first_flight_is_recorded() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        LocalSet::new().block_on(&runtime, async {
            let server = UdpSocket::bind((LOCAL, 0)).await.expect("a port");
            let relay = Relay::to(server.local_addr().expect("an address"), 3).await.expect("a relay");
            let client = UdpSocket::bind((LOCAL, 0)).await.expect("a port");
            relay.record();
            let (mut buffer, mut seen) = ([0; 16], BTreeSet::new());
            for number in 0..8u8 {
                if number == 2 {
                    assert_eq!(seen.len(), 1);
                    relay.spread();
                }
                client.send_to(&[number], relay.address).await.expect("sent");
                let (length, from) = server.recv_from(&mut buffer).await.expect("relayed");
                assert_eq!(&buffer[..length], &[number]);
                seen.insert(from);
                if number == 3 {
                    server.send_to(b"answer", from).await.expect("sent");
                    let (length, from) = client.recv_from(&mut buffer).await.expect("relayed");
                    assert_eq!((&buffer[..length], from), (&b"answer"[..], relay.address));
                }
            }
            assert_eq!(seen.len(), 3);
            assert_eq!(relay.take_recorded(), [[0], [1], [2], [3]], "none after the answer");
            assert!(relay.take_recorded().is_empty());
        });
    }
}
