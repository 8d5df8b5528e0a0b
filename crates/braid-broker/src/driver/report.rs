//! Answers of a connection's task to views: what it alone knows, copied at the start of a turn.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use braid_proto::connection::{Server, StreamReport};
use braid_proto::stream::StreamKey;
use braid_transport::Link;

use super::ack_pipeline::AckPipeline;
use super::connect::SessionBinding;
use super::delivery_sender::held;
use super::read_gate::ReadGate;
use super::stream_scheduler::StreamScheduler;
use crate::clock;
use crate::core::Core;
use crate::queue::egress::EgressQueue;
use crate::registry::Presence;
use crate::view::{
    BrokerEvent, ConnectionReport, ConnectionSummary, Held, Inquiry, LaneView, PendingDetail, StreamView,
    copy_piece,
};

/// Data streams of one report: a client may have more, and the turn is short.
const STREAMS_IN_REPORT: usize = 1024;

/// Parts of a connection that operators see.
pub(super) struct Observer<'a> {
    pub(super) core: &'a Core,
    pub(super) session: &'a SessionBinding,
    pub(super) server: &'a Server,
    pub(super) link: &'a mut Link,
    pub(super) gate: &'a ReadGate,
    pub(super) acks: &'a AckPipeline,
    pub(super) egress: &'a EgressQueue,
    /// Subscriptions that have not got all of their retained messages.
    pub(super) pending_retained: usize,
    pub(super) streams: Option<&'a StreamScheduler>,
}

impl Observer<'_> {
    /// Tells operators that the client is connected.
    pub(super) fn begin_presence(self, clean_start: bool, session_present: bool) {
        let (Some(entry), Some(version)) = (&self.session.entry, self.server.version()) else { return };
        let Some(keep_alive) = self.server.keep_alive() else { return };
        let peer = self.link.peer();
        let summary = Arc::new(ConnectionSummary {
            address: peer.address,
            moves: 0,
            transport: peer.transport,
            version,
            since: clock::now(),
            clean_start,
            session_present,
            keep_alive,
            is_early: self.streams.is_some_and(|streams| streams.began_early()),
            listener: self.session.policy.tag.clone(),
        });
        entry.set_presence(Presence::Connected(summary.clone()));
        self.server.session().into_iter().for_each(|session| entry.observe(session));
        let identity = self.session.access.identity();
        self.core.lifecycle.events.record(|| BrokerEvent::Connected {
            client: (&entry.client_id).into(),
            user: identity.user().map(Into::into),
            connection: summary,
        });
    }

    /// Notes another address of the client.
    pub(super) fn note_move(self, address: SocketAddr) {
        let Some(entry) = &self.session.entry else { return };
        let Presence::Connected(before) = entry.presence() else { return };
        let from = before.address;
        let moved =
            ConnectionSummary { address: Some(address), moves: before.moves + 1, ..(*before).clone() };
        entry.set_presence(Presence::Connected(Arc::new(moved)));
        let client = (&entry.client_id).into();
        self.core.lifecycle.events.record(|| BrokerEvent::Migrated { client, from, to: address });
    }

    /// Answers the questions of views. Who does not wait for the answer any more gets none.
    pub(super) fn answer_inquiries(mut self, now: Instant) {
        let Some(entry) = &self.session.entry else { return };
        for inquiry in entry.queue.take_inquiries() {
            match inquiry {
                Inquiry::Pending(answer) => {
                    let (will, retained) = (self.server.will(), self.pending_retained);
                    let detail = self.server.session().map(|session| {
                        PendingDetail::new(session, will, retained, self.server.is_resending())
                    });
                    // The channel of a connection that is closed is closed too.
                    let _ = detail.map(|detail| answer.send(detail));
                }
                Inquiry::Subscriptions(after, answer) => {
                    let piece =
                        self.server.session().map(|session| copy_piece(&session.subscriptions, after));
                    let _ = piece.map(|piece| answer.send(piece));
                }
                Inquiry::Streams(answer) => {
                    let _ = self.report(now).map(|report| answer.send(Box::new(report)));
                }
            }
        }
    }

    fn report(&mut self, now: Instant) -> Option<ConnectionReport> {
        let Presence::Connected(connection) = self.session.entry.as_ref()?.presence() else { return None };
        let unacknowledged = self.server.session()?.outbound.unacknowledged();
        let (path, gate, unwritten) =
            (self.link.path_state(), self.link.gate_state(), self.server.unwritten());
        let paths = self.link.paths();
        let reports = self.server.stream_reports(STREAMS_IN_REPORT);
        let omitted = (self.server.data_streams() + 1).saturating_sub(reports.len());
        let mut streams = self.view_lanes(reports, unwritten, now);
        for view in &mut streams {
            let of_bytes = self.held_bytes(view.report.stream, view.report.unwritten);
            view.held = of_bytes.or_else(|| view.lanes.iter().find_map(|lane| lane.held));
        }
        let opening = self.streams.map_or(0, |streams| streams.opening());
        Some(ConnectionReport {
            connection,
            path,
            paths,
            gate,
            streams,
            omitted,
            opening,
            unwritten,
            unacknowledged,
        })
    }

    /// Views of the streams with these reports, in the same order, without the reasons of their bytes.
    fn view_lanes(&self, reports: Vec<StreamReport>, unwritten: usize, now: Instant) -> Vec<StreamView> {
        let mut views: Vec<_> = reports.into_iter().map(|report| self.view(report, now)).collect();
        for (lane, next, messages) in self.egress.lanes() {
            // The control stream is first, and has what is for streams that have ended.
            let stream = self.server.resolve(lane.stream);
            let found = views.binary_search_by_key(&stream, |view| view.report.stream);
            let Some(view) = found.ok().and_then(|at| views.get_mut(at)) else { continue };
            let oldest = self.core.queues.policy.age(next.enqueued_at, now);
            view.oldest = view.oldest.max(oldest);
            let held = held(self.egress, self.server, unwritten, lane, next);
            view.lanes.push(LaneView { priority: lane.priority, messages, oldest, held });
        }
        views
    }

    fn view(&self, report: StreamReport, now: Instant) -> StreamView {
        let (stream, queued) = (report.stream, self.egress.usage_of(report.stream));
        StreamView {
            priority: self.streams.map_or_else(Default::default, |it| it.priority_of(stream)),
            queued_messages: queued.messages(),
            queued_bytes: queued.bytes(),
            lanes: Vec::new(),
            oldest: report.waiting_since.map(|since| now.saturating_duration_since(since)),
            held: None,
            is_paused: self.gate.refuses(stream),
            report,
        }
    }

    /// Reason for which the bytes in the outbox of a stream wait.
    fn held_bytes(&mut self, stream: StreamKey, unwritten: usize) -> Option<Held> {
        if unwritten == 0 {
            return None;
        }
        let has_ended = |stream| self.server.resolve(stream) != stream;
        if self.acks.writable(stream, has_ended) == Some(0) {
            return Some(Held::Durability);
        }
        if self.link.is_multi() { self.link.blocked(stream).map(Held::from) } else { Some(Held::Socket) }
    }
}
