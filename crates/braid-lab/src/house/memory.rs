//! How much memory a program has.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use rustix::process::Pid;

/// The line of `status` that tells the most it had at a time: it begins anew with `exec`.
const MOST: &str = "VmHWM:";

/// Looks at a process from time to time: the kernel forgets it with its end.
#[derive(Debug)]
pub(super) struct Memory {
    /// Its `status`; `None` if /proc is that of other namespaces, where the number is somebody else's.
    status: Option<File>,
    most: Option<u64>,
}

impl Memory {
    pub(super) fn of(process: Pid) -> Self {
        let own = fs::read_link("/proc/self").ok();
        let is_ours = own.is_some_and(|own| own.to_str() == Some(&std::process::id().to_string()));
        let path = format!("/proc/{}/status", process.as_raw_nonzero());
        Self { status: is_ours.then(|| File::open(path).ok()).flatten(), most: None }
    }

    pub(super) fn look(&mut self) {
        let Some(status) = &self.status else { return };
        let mut text = [0; 4096];
        let Ok(length) = status.read_at(&mut text, 0) else { return };
        let text = String::from_utf8_lossy(text.get(..length).unwrap_or_default());
        self.most = most(&text).max(self.most);
    }

    /// Bytes.
    pub(super) fn most(&self) -> Option<u64> {
        self.most
    }
}

/// Bytes, of a text with a line `VmHWM:     1234 kB`.
fn most(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(MOST))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_read_and_its_lack_is_nothing() {
        assert_eq!(most("Name:\tx\nVmHWM:\t    1234 kB\nVmRSS:\t 9 kB\n"), Some(1234 * 1024));
        for text in ["", "Name:\tx\n", "VmHWM:\n", "VmHWM:\t-1 kB\n"] {
            assert_eq!(most(text), None, "{text:?}");
        }
    }
}
