//! Health of the nodes behind a port, and their order for the next connection. Pure.

use std::time::Duration;

use tokio::time::Instant;

/// Nodes that failed a short while ago.
#[derive(Debug)]
pub(crate) struct Health {
    /// For each node that failed and has not recovered: time from which it may be tried again.
    retry_at: Vec<Option<Instant>>,
    retry_after: Duration,
}

impl Health {
    pub(crate) fn new(nodes: usize, retry_after: Duration) -> Self {
        Self { retry_at: vec![None; nodes], retry_after }
    }

    pub(crate) fn nodes(&self) -> usize {
        self.retry_at.len()
    }

    /// True if the node has not failed, or may be tried again.
    pub(crate) fn is_usable(&self, node: usize, now: Instant) -> bool {
        self.retry_at[node].is_none_or(|at| at <= now)
    }

    /// Notes a failure. True if the node was live until then.
    pub(crate) fn note_failure(&mut self, node: usize, now: Instant) -> bool {
        self.retry_at[node].replace(now + self.retry_after).is_none()
    }

    /// Notes a success. True if the node had failed.
    pub(crate) fn note_success(&mut self, node: usize) -> bool {
        self.retry_at[node].take().is_some()
    }
}

/// Nodes in turn (round robin).
#[derive(Debug)]
pub(crate) struct Rotation {
    pub(crate) health: Health,
    next: usize,
}

impl Rotation {
    pub(crate) fn new(health: Health) -> Self {
        Self { health, next: 0 }
    }

    /// Nodes for one connection, in the order in which they are tried: usable ones in turn, and then, as the last
    /// resort, the others.
    pub(crate) fn order(&mut self, now: Instant) -> Vec<usize> {
        let nodes = self.health.nodes();
        let turn = (0..nodes).map(|step| (self.next + step) % nodes);
        let (mut order, failed): (Vec<_>, Vec<_>) = turn.partition(|node| self.health.is_usable(*node, now));
        order.extend(failed);
        self.next = order.first().map_or(0, |first| (first + 1) % nodes);
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_take_turns_and_failed_ones_come_last_for_a_while() {
        let (start, pause) = (Instant::now(), Duration::from_secs(2));
        let mut rotation = Rotation::new(Health::new(3, pause));
        let order = |rotation: &mut Rotation, seconds| rotation.order(start + Duration::from_secs(seconds));
        assert_eq!(order(&mut rotation, 0), [0, 1, 2]);
        assert_eq!(order(&mut rotation, 0), [1, 2, 0]);
        assert!(rotation.health.note_failure(2, start));
        assert!(!rotation.health.note_failure(2, start), "once");
        assert_eq!(order(&mut rotation, 0), [0, 1, 2]);
        assert_eq!(order(&mut rotation, 1), [1, 0, 2]);
        assert_eq!(order(&mut rotation, 1), [0, 1, 2]);
        assert_eq!(order(&mut rotation, 2), [1, 2, 0], "tried again");
        assert!(!rotation.health.note_failure(2, start + pause), "it was not live in between");
        assert_eq!(order(&mut rotation, 3), [0, 1, 2]);
        assert!(rotation.health.note_success(2));
        assert!(!rotation.health.note_success(2), "once");
        assert_eq!(order(&mut rotation, 3), [1, 2, 0]);
        for node in 0..3 {
            rotation.health.note_failure(node, start + 2 * pause);
        }
        assert_eq!(order(&mut rotation, 4), [2, 0, 1], "all failed: all are tried");
    }
}
