//! Task that owns a client's link of many streams.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use braid_proto::decoder::Decoder;
use braid_proto::packet::{Packet, ProtocolVersion};
use braid_proto::stream::{Priority, StreamKey};
use braid_transport::{Close, Dir, Link, Read};
use bytes::{Buf, BytesMut};
use tokio::io::ReadBuf;
use tokio::sync::{Notify, oneshot};

/// Command of a test to the pump.
pub(super) enum Order {
    Open(Dir, oneshot::Sender<StreamKey>),
    Finish(StreamKey),
    Abort(StreamKey, u64),
    Priority(StreamKey, Priority),
    Rebind,
    Datagram(Vec<u8>),
    Close(Close),
}

/// End of the sending half of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Finished,
    Reset(u64),
}

/// One stream.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) out: BytesMut,
    pub(super) packets: VecDeque<Packet>,
    /// Received bytes.
    pub(super) received: usize,
    pub(super) is_read: bool,
    pub(super) ended: Option<Ended>,
    pub(super) stopped: Option<u64>,
    decoder: Decoder,
    is_finishing: bool,
}

/// State that the test and the pump share. A std lock, never held across an await.
pub(super) struct State {
    version: ProtocolVersion,
    lanes: BTreeMap<StreamKey, Lane>,
    /// Streams with something to send, or to end.
    to_write: BTreeSet<StreamKey>,
    pub(super) orders: VecDeque<Order>,
    pub(super) is_confirmed: bool,
    /// Datagrams that have come.
    pub(super) datagrams: VecDeque<Vec<u8>>,
    pub(super) end: Option<Result<(), String>>,
    pub(super) changed: Arc<Notify>,
    pump: Option<Waker>,
}

impl State {
    pub(super) fn new(version: ProtocolVersion) -> Self {
        Self {
            version,
            lanes: BTreeMap::new(),
            to_write: BTreeSet::new(),
            orders: VecDeque::new(),
            is_confirmed: false,
            datagrams: VecDeque::new(),
            end: None,
            changed: Arc::default(),
            pump: None,
        }
    }

    pub(super) fn lane(&mut self, stream: StreamKey) -> &mut Lane {
        let version = self.version;
        self.lanes.entry(stream).or_insert_with(|| Lane {
            out: BytesMut::new(),
            packets: VecDeque::new(),
            received: 0,
            is_read: true,
            ended: None,
            stopped: None,
            decoder: Decoder::new(version, 268_435_460),
            is_finishing: false,
        })
    }

    pub(super) fn forget(&mut self, stream: StreamKey) {
        self.lanes.remove(&stream);
    }

    pub(super) fn send(&mut self, stream: StreamKey, bytes: &[u8]) {
        self.lane(stream).out.extend_from_slice(bytes);
        self.to_write.insert(stream);
        self.wake();
    }

    /// Wakes the pump.
    pub(super) fn wake(&mut self) {
        if let Some(pump) = self.pump.take() {
            pump.wake();
        }
    }

    /// Text for messages of failed tests.
    pub(super) fn summary(&self) -> String {
        let lanes: Vec<String> = self
            .lanes
            .iter()
            .map(|(key, lane)| {
                let (out, packets) = (lane.out.len(), lane.packets.len());
                let Lane { received, ended, stopped, .. } = lane;
                format!("{key}: {out} B unsent, {received} B in, {packets} packets, {ended:?}, {stopped:?}")
            })
            .collect();
        format!("link {:?}; {}", self.end, lanes.join("; "))
    }
}

/// Moves bytes until the link ends.
pub(super) async fn pump(mut link: Link, state: Arc<Mutex<State>>) {
    let mut opening = VecDeque::new();
    let mut closing = None;
    poll_fn(|cx| {
        let mut state = state.lock().expect("tests do not panic with the lock");
        state.pump = Some(cx.waker().clone());
        let outcome = turn(&mut link, &mut state, &mut opening, &mut closing, cx);
        state.changed.notify_waiters();
        let Poll::Ready(end) = outcome else { return Poll::Pending };
        state.end = Some(end.map_err(|error| error.to_string()));
        Poll::Ready(())
    })
    .await;
    opening.clear();
    if closing.is_none() {
        // The peer has ended it; the rest of it ends in the background.
        drop(link);
    }
}

type Openings = VecDeque<(Dir, oneshot::Sender<StreamKey>)>;

fn turn(
    link: &mut Link,
    state: &mut State,
    opening: &mut Openings,
    closing: &mut Option<Close>,
    cx: &mut Context<'_>,
) -> Poll<io::Result<()>> {
    while let Some(order) = state.orders.pop_front() {
        match order {
            Order::Open(dir, tell) => opening.push_back((dir, tell)),
            Order::Finish(stream) => {
                state.lane(stream).is_finishing = true;
                state.to_write.insert(stream);
            }
            Order::Abort(stream, code) => link.abort(stream, code),
            Order::Priority(stream, priority) => link.set_priority(stream, priority),
            Order::Rebind => link.rebind(None)?,
            Order::Datagram(bytes) => link.send_datagram(Priority::DEFAULT, bytes.into()),
            Order::Close(close) => *closing = Some(close),
        }
    }
    if let Some(close) = *closing {
        return link.poll_close(cx, close);
    }
    while let Some((dir, _)) = opening.front()
        && let Poll::Ready(key) = link.poll_open(cx, *dir)?
        && let Some((_, tell)) = opening.pop_front()
    {
        let _ = tell.send(key);
    }
    write(link, state, cx)?;
    let read = read(link, state, cx);
    // The read may have made room.
    write(link, state, cx)?;
    let _ = link.poll_flush(cx)?;
    read
}

fn write(link: &mut Link, state: &mut State, cx: &mut Context<'_>) -> io::Result<()> {
    for key in state.to_write.iter().copied().collect::<Vec<_>>() {
        let lane = state.lane(key);
        while !lane.out.is_empty() {
            match link.poll_write(cx, key, &[IoSlice::new(&lane.out)]) {
                Poll::Pending => break,
                Poll::Ready(Ok(written)) => lane.out.advance(written),
                // A read reports the end of the control stream, after the packets before it.
                Poll::Ready(Err(error))
                    if key.is_control() || error.kind() == io::ErrorKind::NotConnected =>
                {
                    lane.out.clear();
                }
                Poll::Ready(Err(error)) => return Err(error),
            }
        }
        if lane.out.is_empty() {
            if std::mem::take(&mut lane.is_finishing) {
                link.finish(key);
            }
            state.to_write.remove(&key);
        }
    }
    Ok(())
}

fn read(link: &mut Link, state: &mut State, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
    let mut bytes = vec![0; 64 * 1024];
    loop {
        let mut buffer = ReadBuf::new(&mut bytes);
        let lanes = &state.lanes;
        let mut wants = |key: StreamKey| lanes.get(&key).is_none_or(|lane| lane.is_read);
        let read = match link.poll_read(cx, &mut buffer, &mut wants) {
            Poll::Ready(read) => read?,
            Poll::Pending => return Poll::Pending,
        };
        match read {
            Read::Bytes(key) => {
                let lane = state.lane(key);
                let mut input = buffer.filled();
                lane.received += input.len();
                while let Some(packet) = lane.decoder.decode(&mut input).expect("the broker sends packets") {
                    lane.packets.push_back(packet);
                }
            }
            Read::Finished(key) => state.lane(key).ended = Some(Ended::Finished),
            Read::Reset(key, code) => state.lane(key).ended = Some(Ended::Reset(code)),
            Read::Stopped(key, code) => state.lane(key).stopped = Some(code),
            Read::Confirmed => state.is_confirmed = true,
            Read::Closed => return Poll::Ready(Ok(())),
            Read::Opened(key) => panic!("the broker opened {key}"), // [BQ-4]
            Read::Datagram => state.datagrams.push_back(buffer.filled().to_vec()),
            Read::Moved(_) | Read::Path(_) => {}
        }
    }
}
