//! Counters of network devices.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Counters of the devices of one network namespace: `/proc/net/dev`, held open.
#[derive(Debug)]
pub struct Devices(File);

impl Devices {
    /// Devices of the network namespace in which the calling thread is now.
    ///
    /// # Errors
    /// `/proc` is missing.
    pub fn of_this_thread() -> io::Result<Self> {
        File::open("/proc/thread-self/net/dev").map(Self)
    }

    /// Packets that the kernel dropped instead of handing them to `device`; `None` if there is no such device.
    #[must_use]
    pub fn send_drops(&self, device: &str) -> Option<u64> {
        let mut table = Vec::new();
        let mut page = [0; 4096];
        // Reads at an offset leave the file at its start for the next call.
        while let Ok(read @ 1..) = self.0.read_at(&mut page, table.len() as u64) {
            table.extend_from_slice(&page[..read]);
        }
        send_drops(str::from_utf8(&table).ok()?, device)
    }
}

fn send_drops(table: &str, device: &str) -> Option<u64> {
    /// Column behind the name: 8 for receiving, then bytes, packets, errs, drop.
    const COLUMN: usize = 11;
    let (_, columns) =
        table.lines().filter_map(|line| line.trim().split_once(':')).find(|row| row.0 == device)?;
    columns.split_whitespace().nth(COLUMN)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{Devices, send_drops};

    #[test]
    fn drops_of_sending_are_behind_the_columns_of_receiving() {
        let table = "Inter-|   Receive                                                |  Transmit\n \
             face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop\n    \
             lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n  lq0l:0 0 0 0 0 0 0 0 0 0 0 99 0 0 0 0\n";
        assert_eq!(["lo", "lq0l", "lq0"].map(|device| send_drops(table, device)), [Some(12), Some(99), None]);
    }

    #[test]
    fn own_devices_can_be_read_repeatedly() {
        let devices = Devices::of_this_thread().expect("/proc");
        assert_eq!([(); 2].map(|()| devices.send_drops("lo").is_some()), [true; 2]);
    }
}
