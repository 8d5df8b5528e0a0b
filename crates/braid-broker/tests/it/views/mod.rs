//! Views of the handle: clients, streams, subscriptions, retained messages, events, published messages; and the
//! commands beside them.

mod clients;
mod commands;
mod content;
mod events;
mod messages;
mod scale;
mod streams;

use braid_broker::view::ClientName;

fn name(client_id: &str) -> ClientName {
    ClientName::new(None, client_id)
}
