//! Tests of the ledger, with random operations against the definition of the limit.

use std::collections::HashMap;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn address(n: u16) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], n))
}

fn datagram(length: usize) -> Deferred {
    Deferred { contents: vec![0; length], ecn: None, src_ip: None }
}

fn lengths(datagrams: &[Deferred]) -> Vec<usize> {
    datagrams.iter().map(|datagram| datagram.contents.len()).collect()
}

#[test]
fn datagrams_leave_whole_up_to_three_times_the_received_bytes() {
    let cases = [
        // Received, size of a datagram, bytes of all, permitted.
        (1200, 1200, 3600, 3600),
        (1199, 1200, 3600, 2400),
        (1472, 1200, 4800, 3600),
        (1472, 1200, 4416, 4416),
        (1472, 1200, 4417, 3600),
        (100, 1200, 1200, 0),
        (0, 1, 1, 0),
    ];
    for (received, size, total, permitted) in cases {
        let mut ledger = Ledger::default();
        assert!(ledger.receive(address(1), received, false).is_empty());
        assert_eq!(ledger.reserve(address(1), size, total, false), Budget::Bytes(permitted));
        let left = 3 * received - permitted;
        assert_eq!(ledger.reserve(address(1), 1, left + 1, false), Budget::Bytes(left), "what was left");
    }
}

#[test]
fn a_deferred_datagram_leaves_when_enough_has_come() {
    let mut ledger = Ledger::default();
    ledger.receive(address(1), 1200, false);
    assert_eq!(ledger.reserve(address(1), 1200, 3600, false), Budget::Bytes(3600));
    ledger.defer(address(1), datagram(1200));
    ledger.defer(address(1), datagram(30));
    ledger.defer(address(1), datagram(29));
    assert!(ledger.receive(address(1), 399, false).is_empty());
    assert!(ledger.receive(address(2), 9000, false).is_empty());
    assert_eq!(lengths(&ledger.receive(address(1), 1, false)), [1200], "the second needs ten more");
    assert_eq!(lengths(&ledger.receive(address(1), 1000, false)), [30], "the third found no room");
    assert_eq!(ledger.reserve(address(1), 1, 5000, false), Budget::Bytes(2970));
    assert_eq!(ledger.deferred_bytes, 0);
}

#[test]
fn a_validated_address_has_no_limit_until_its_last_connection_ends() {
    let mut ledger = Ledger::default();
    ledger.receive(address(1), 1200, false);
    for _ in 0..3 {
        ledger.begin(address(1), false);
    }
    ledger.defer(address(1), datagram(1200));
    assert_eq!(lengths(&ledger.validate(address(1))), [1200]);
    assert!(ledger.validate(address(1)).is_empty());
    assert_eq!(ledger.reserve(address(1), 1200, 90_000, false), Budget::Unlimited);
    ledger.end(address(1), true);
    ledger.end(address(1), false);
    assert_eq!(ledger.reserve(address(1), 1200, 90_000, false), Budget::Unlimited);
    ledger.end(address(1), true);
    assert_eq!(ledger.reserve(address(1), 1200, 1200, false), Budget::Bytes(0));
    assert!(ledger.begin(address(1), true).is_empty());
    assert_eq!(ledger.reserve(address(1), 1200, 90_000, false), Budget::Unlimited, "by a token");
}

#[test]
fn a_stateless_reset_goes_to_an_address_that_is_not_known() {
    let mut ledger = Ledger::default();
    assert_eq!(ledger.reserve(address(1), 100, 100, true), Budget::Bytes(100));
    assert_eq!(ledger.reserve(address(1), 100, 100, false), Budget::Bytes(0));
    ledger.receive(address(1), 20, false);
    assert_eq!(
        ledger.reserve(address(1), 100, 100, true),
        Budget::Bytes(0),
        "a connection may be its sender"
    );
}

#[test]
fn both_forms_of_an_ipv4_address_are_one() {
    let mut ledger = Ledger::default();
    let mapped: SocketAddr = "[::ffff:192.0.2.1]:1".parse().expect("an address");
    ledger.receive(mapped, 400, false);
    assert_eq!(ledger.reserve(address(1), 1200, 1200, false), Budget::Bytes(1200));
}

#[test]
fn addresses_without_a_connection_are_forgotten() {
    let mut ledger = Ledger::default();
    ledger.receive(address(1), 400, false);
    ledger.begin(address(1), false);
    for n in 0..3 * MAX_WITHOUT_CONNECTION {
        let octets = u32::try_from(n).expect("few").to_be_bytes();
        ledger.receive(SocketAddr::from((octets, 1)), 400, false);
        ledger.defer(SocketAddr::from((octets, 1)), datagram(1200));
    }
    assert_eq!(ledger.accounts.len(), MAX_WITHOUT_CONNECTION + 1);
    assert_eq!(ledger.by_age.len(), MAX_WITHOUT_CONNECTION);
    assert!(ledger.deferred_bytes <= MAX_DEFERRED_BYTES);
    let deferred: usize = ledger.accounts.values().map(|account| bytes_of(&account.deferred)).sum();
    assert_eq!(ledger.deferred_bytes, deferred);
    assert_eq!(ledger.reserve(address(1), 1200, 1200, false), Budget::Bytes(1200));
    ledger.end(address(1), false);
    assert_eq!(ledger.accounts.len(), MAX_WITHOUT_CONNECTION, "the oldest made room");
}

/// The endpoint sends CONNECTION_CLOSE for a connection that could not even begin.
#[test]
fn an_address_whose_connection_has_ended_has_its_budget() {
    let mut ledger = Ledger::default();
    ledger.receive(address(1), 1200, false);
    ledger.begin(address(1), false);
    assert_eq!(ledger.reserve(address(1), 1200, 2400, false), Budget::Bytes(2400));
    ledger.end(address(1), false);
    assert_eq!(ledger.reserve(address(1), 1200, 1200, false), Budget::Bytes(1200));
    assert_eq!(ledger.reserve(address(1), 1200, 1200, false), Budget::Bytes(0));
}

#[test]
fn a_client_that_asks_again_gets_the_first_flight_within_the_limit() {
    let mut ledger = Ledger::default();
    let to = address(1);
    let ask = |ledger: &mut Ledger| lengths(&ledger.receive(to, 1200, true));
    assert_eq!(ask(&mut ledger), [0; 0], "nothing was sent");
    ledger.keep(to, || unreachable!("there is no connection"));
    ledger.begin(to, false);
    for length in [1200, 300, 100] {
        assert_eq!(ledger.reserve(to, 1200, length, false), Budget::Bytes(length));
        ledger.keep(to, || datagram(length));
    }
    ledger.keep(to, || unreachable!("three are kept"));
    assert_eq!(lengths(&ledger.receive(to, 0, false)), [0; 0], "it has not asked");
    assert_eq!(ask(&mut ledger), [1200, 300, 100]);
    assert_eq!(ledger.reserve(to, 1, 9000, false), Budget::Bytes(2 * 3600 - 2 * 1600));
    ledger.reserve(to, 1, 9000, false);
    assert_eq!(lengths(&ledger.receive(to, 400, true)), [1200], "there is no budget for the others");
    for repeat in 3..=MAX_REPEATS {
        assert_eq!(ask(&mut ledger).len(), 3, "{repeat}");
    }
    assert_eq!(ask(&mut ledger), [0; 0]);
    assert_eq!(ledger.flight_bytes, 1600);
    ledger.validate(to);
    assert_eq!((ask(&mut ledger), ledger.flight_bytes), (vec![], 0));
}

/// Operation on one of few addresses.
#[derive(Clone, Debug)]
enum Operation {
    /// Bytes, and whether the client asks again.
    Receive(usize, bool),
    /// Size of datagrams, and bytes of all.
    Send(usize, usize),
    Begin(bool),
    Validate,
    End,
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        4 => (1..1500_usize, any::<bool>()).prop_map(|(bytes, asks)| Operation::Receive(bytes, asks)),
        4 => (1..1500_usize, 1..9000_usize).prop_map(|(size, total)| Operation::Send(size, total)),
        1 => prop::bool::weighted(0.2).prop_map(Operation::Begin),
        1 => Just(Operation::Validate),
        1 => Just(Operation::End),
    ]
}

/// Bytes from and to an address since it was last validated.
#[derive(Default)]
struct Model {
    received: usize,
    sent: usize,
    /// Connections, and whether each has validated the address.
    connections: Vec<bool>,
}

impl Model {
    fn is_validated(&self) -> bool {
        self.connections.contains(&true)
    }
}

proptest! {
    #[test]
    fn no_address_gets_more_than_three_times_its_bytes(
        operations in vec((1..4_u16, operation()), 1..200),
    ) {
        let (mut ledger, mut models) = (Ledger::default(), HashMap::<u16, Model>::new());
        for (n, operation) in operations {
            let (to, model) = (address(n), models.entry(n).or_default());
            match operation {
                Operation::Receive(bytes, asks_again) => {
                    let unsent = ledger.receive(to, bytes, asks_again);
                    if model.is_validated() {
                        prop_assert!(unsent.is_empty());
                    } else {
                        model.received += bytes;
                        model.sent += bytes_of(&unsent);
                    }
                }
                Operation::Send(size, total) => match ledger.reserve(to, size, total, false) {
                    Budget::Unlimited => prop_assert!(model.is_validated()),
                    Budget::Bytes(permitted) => {
                        prop_assert!(!model.is_validated());
                        prop_assert!(permitted == total || (permitted < total && permitted.is_multiple_of(size)));
                        prop_assert!(model.sent + permitted <= 3 * model.received);
                        model.sent += permitted;
                        ledger.keep(to, || datagram(permitted));
                        ledger.defer(to, datagram(size.min(total - permitted)));
                    }
                },
                Operation::Begin(is_validated) => {
                    ledger.begin(to, is_validated);
                    model.connections.push(is_validated);
                }
                Operation::Validate => {
                    if let Some(waiting) = model.connections.iter_mut().find(|connection| !**connection) {
                        *waiting = true;
                        ledger.validate(to);
                    }
                }
                Operation::End => {
                    if let Some(is_validated) = model.connections.pop() {
                        ledger.end(to, is_validated);
                    }
                }
            }
            if model.is_validated() {
                (model.received, model.sent) = (0, 0);
            }
            prop_assert!(model.sent <= 3 * model.received);
            let deferred: usize = ledger.accounts.values().map(|account| bytes_of(&account.deferred)).sum();
            prop_assert_eq!(ledger.deferred_bytes, deferred);
            let flights: usize = ledger.accounts.values().map(|account| bytes_of(&account.flight)).sum();
            prop_assert_eq!(ledger.flight_bytes, flights);
        }
        for (n, model) in models {
            for is_validated in model.connections {
                ledger.end(address(n), is_validated);
            }
        }
        prop_assert!(ledger.validated.is_empty());
        prop_assert_eq!(ledger.flight_bytes, 0);
    }
}
