//! Recovery from any journal record.

use std::sync::OnceLock;

use braid_store::{OpenError, Store};
use redb::StorageBackend;

use super::device::{Device, Devices};
use super::{check_sound, offline, open};

/// Offset of the first record of the journal.
const RECORD: u64 = 4096;
/// Longer groups are in no journal as short as this one.
const LONGEST: usize = 1 << 14;

/// The bytes are the group of a record that a crash left, with the right checksum. It is refused with one line, or the
/// tables are then read without a panic and, if no fault is found, are a sound store.
pub fn journal_record(data: &[u8]) {
    let Some(group) = data.get(..data.len().min(LONGEST)) else { return };
    let device = killed();
    let store = device.journal.bytes(16, 8);
    let mut record = [store.as_slice(), &1_u64.to_be_bytes()].concat();
    record.extend_from_slice(&u32::try_from(group.len()).expect("it is short").to_be_bytes());
    let checksum = crc32fast::hash(&[&record, group].concat());
    record.extend_from_slice(&checksum.to_be_bytes());
    record.extend_from_slice(group);
    device.journal.write(RECORD, &record).expect("memory does not fail");
    let refused = match open(&device) {
        Ok(store) => store.recover(&mut braid_store::RecoveredState::default()).is_err(),
        Err(error) => {
            assert!(matches!(error, OpenError::Damaged { .. } | OpenError::JournalDamaged { .. }), "{error}");
            assert_eq!(error.to_string().lines().count(), 1, "{error}");
            return;
        }
    };
    let check = offline(&device).check().expect("memory does not fail");
    if check.problems.is_empty() {
        assert!(!refused, "it is sound");
        check_sound(&device);
    }
}

/// An empty store that was not closed.
fn killed() -> Devices {
    static FILES: OnceLock<[Vec<u8>; 2]> = OnceLock::new();
    let [tables, journal] = FILES.get_or_init(|| {
        let device = Devices::default();
        let _open = open(&device).expect("memory does not fail");
        [device.tables.all(), device.journal.all()]
    });
    Devices { tables: Device::holding(tables), journal: Device::holding(journal) }
}
