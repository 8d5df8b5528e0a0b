//! Datagrams that have come for a connection.

use std::task::Context;

use noq_proto::ConnectionEvent;

use super::{Connection, Source};
use crate::quic::codes::{self, code};
use crate::quic::io::answer_delay::Frames;
use crate::quic::io::datagram_queue::Order;
use crate::quic::io::event::Event;
use crate::quic::io::timer::now;
use crate::quic::io::unordered::Unordered;

/// Datagrams that came together, until the library has them all.
pub(super) struct Arrivals {
    count: usize,
    left: std::vec::IntoIter<ConnectionEvent>,
    /// Order that came behind them.
    order: Option<Order>,
}

impl Connection {
    /// Takes in the next of the datagrams that have come together, and registers the task for more before the first of
    /// them. True if none of them is left.
    ///
    /// Its events come before the next one: a datagram holds hundreds of frames, of which each may be an event, and the
    /// library keeps room for as many as it had at a time.
    pub(in crate::quic) fn receive(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(mut arrivals) = self.arrivals.take().or_else(|| self.collect(cx)) else { return true };
        if let Some(datagram) = arrivals.left.next() {
            self.library.handle_event(datagram);
            self.empty_unordered();
            if let Some(datagrams) = &mut self.datagrams {
                datagrams.take_received(&mut self.library);
            }
        }
        if !arrivals.left.as_slice().is_empty() {
            self.arrivals = Some(arrivals);
            return false;
        }
        if arrivals.count > 0 {
            self.note_challenges();
            self.answers.handle_received(arrivals.count, now(), || Frames::from(&self.library.stats()));
        }
        match arrivals.order {
            Some(Order::Close(code)) => self.close(code),
            Some(Order::Lost) => self.lose("its endpoint failed"),
            None => {}
        }
        true
    }

    /// Takes in all that has come together, and has `handle` handle the events.
    pub(in crate::quic) fn receive_all(&mut self, cx: &mut Context<'_>, mut handle: impl FnMut(Event)) {
        if self.has_arrivals() {
            cx.waker().wake_by_ref();
        }
        loop {
            let is_all = self.receive(cx);
            while let Some(event) = self.poll_own_event() {
                handle(event);
            }
            if is_all {
                return;
            }
        }
    }

    /// Tests whether some of the datagrams that came together are not taken in. Meanwhile the task is not registered
    /// again, and has to wake itself.
    pub(in crate::quic) fn has_arrivals(&self) -> bool {
        self.arrivals.is_some()
    }

    /// The datagrams that have come. `None` if the connection is lost.
    fn collect(&mut self, cx: &mut Context<'_>) -> Option<Arrivals> {
        let (datagrams, order) = match &mut self.source {
            Source::Shared { queue, .. } => {
                let mut paths = self.sender.path_validation();
                queue.take(cx, |from, bytes| {
                    if let Some(paths) = &mut paths {
                        paths.handle_received(from, bytes);
                    }
                })
            }
            Source::Own(own) => match own.receive(cx, self.handle) {
                Ok(datagrams) => (datagrams, None),
                Err(error) => {
                    self.lose(&format!("its socket failed: {error}"));
                    return None;
                }
            },
        };
        self.received += datagrams.len() as u64;
        Some(Arrivals { count: datagrams.len(), left: datagrams.into_iter(), order })
    }

    /// Notes that a PATH_CHALLENGE has come to a client.
    fn note_challenges(&mut self) {
        // Paths beside others are validated while those carry data.
        if self.side().is_client() && self.paths.is_none() {
            // The statistics of a path would ask its controller for the window, as if there were a packet to send.
            let challenges = self.library.stats().frame_rx.path_challenge;
            self.is_challenged |= std::mem::replace(&mut self.challenges, challenges) < challenges;
        }
    }

    /// Takes the pieces of streams that are read without order out of the library.
    pub(super) fn empty_unordered(&mut self) {
        let Some(mut unordered) = self.unordered.take() else { return };
        self.collect_events(&mut unordered);
        let is_complete = unordered.empty(&mut self.library);
        self.unordered = unordered.is_used().then_some(unordered);
        if !is_complete && self.error.is_none() {
            tracing::debug!("a peer has sent too many frames of one stream in a datagram");
            self.close(code(codes::CLOSE_ABNORMAL));
        }
    }

    /// Has events of the library wait until they are asked for.
    pub(super) fn collect_events(&mut self, unordered: &mut Unordered) {
        while let Some(event) = self.next_event() {
            unordered.push_event(event);
        }
    }
}
