//! Files of a store, in memory.

use std::io;
use std::sync::Arc;

use redb::StorageBackend;
use redb::backends::InMemoryBackend;

/// Memory that outlives the store that opened it.
#[derive(Clone, Debug, Default)]
pub(super) struct Device(Arc<InMemoryBackend>);

impl Device {
    pub(super) fn holding(bytes: &[u8]) -> Self {
        let device = Self::default();
        device.set_len(bytes.len() as u64).expect("memory takes it");
        device.write(0, bytes).expect("memory takes it");
        device
    }

    pub(super) fn all(&self) -> Vec<u8> {
        let length = self.len().expect("memory can be read");
        self.bytes(0, usize::try_from(length).expect("it is in memory"))
    }

    pub(super) fn bytes(&self, from: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.read(from, &mut bytes).expect("memory can be read");
        bytes
    }
}

impl StorageBackend for Device {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data)
    }
}

/// The two files of a store, in memory that outlives it.
#[derive(Clone, Debug, Default)]
pub(super) struct Devices {
    pub(super) tables: Device,
    pub(super) journal: Device,
}
