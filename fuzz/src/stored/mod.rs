//! Bodies of the fuzz targets for stores. Each panics on a failure.

mod device;
mod journal;
mod lines;
mod rows;

pub use journal::journal_record;
pub use lines::imported_lines;
pub use rows::stored_rows;

use braid_store::{EmbeddedStore, Lsn, OfflineStore, OpenError, Options, QueueEntry, RecoveredState, Store};

use device::Devices;

fn offline(device: &Devices) -> OfflineStore {
    let (tables, journal) = (device.tables.clone(), device.journal.clone());
    OfflineStore::open_on(tables, journal, options()).expect("memory does not fail")
}

fn open(device: &Devices) -> Result<EmbeddedStore, OpenError> {
    EmbeddedStore::open_on(device.tables.clone(), device.journal.clone(), options())
}

/// Short journal: making one costs time for each input.
fn options() -> Options {
    let mut options = Options::default();
    options.journal = 1 << 16;
    options
}

fn exported(device: &Devices) -> Vec<u8> {
    let mut text = Vec::new();
    offline(device).export(&mut text).expect("what is sound can be exported");
    text
}

/// A sound store can be exported and imported to an equal one, and a broker starts with it.
fn check_sound(device: &Devices) {
    let text = exported(device);
    let copy = Devices::default();
    offline(&copy).import(&mut &*text).expect("what was exported can be imported");
    assert_eq!(String::from_utf8(exported(&copy)), String::from_utf8(text));
    assert_eq!(offline(&copy).check().expect("memory does not fail").problems, []);
    for device in [device, &copy] {
        let store = open(device).expect("it is sound");
        let mut image = RecoveredState::default();
        store.recover(&mut image).expect("it is sound");
        let queued = image.sessions.values().flat_map(|session| &session.queue).filter_map(message);
        let referred: Vec<_> = queued.chain(image.retained.values().copied()).collect();
        let messages = store.messages_of(&referred).wait().expect("it is sound");
        for (lsn, message) in referred.iter().zip(messages) {
            assert!(message.is_some(), "{lsn}");
        }
    }
}

fn message((_, entry): &(Lsn, QueueEntry)) -> Option<Lsn> {
    match entry {
        QueueEntry::Waiting(delivery) | QueueEntry::Sent(_, delivery) => Some(delivery.message),
        QueueEntry::Released(_) => None,
    }
}
