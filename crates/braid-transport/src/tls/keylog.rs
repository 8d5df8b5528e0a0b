//! Secrets of TLS sessions in a file, so that Wireshark can read what was captured.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rustls::KeyLog;

/// Appends to a file in the format that browsers write (NSS Key Log): `LABEL RANDOM SECRET`, in
/// hexadecimal, one line per secret.
pub(super) struct KeyFile {
    /// `None` once it could not be opened or written: connections matter more.
    file: Mutex<Option<File>>,
}

impl KeyFile {
    /// Opens the file; an error is logged, and connections work.
    pub(super) fn open(path: &Path) -> Self {
        let mut options = OpenOptions::new();
        options.append(true).create(true);
        #[cfg(unix)]
        {
            use std::os::unix::fs::OpenOptionsExt;
            // A reader of it can decrypt all traffic.
            options.mode(0o600);
        }
        let file = match options.open(path) {
            Ok(file) => {
                tracing::warn!(path = %path.display(), "the secrets of all TLS sessions are written to a file");
                Some(file)
            }
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "the key log cannot be opened: no secrets are logged");
                None
            }
        };
        Self { file: Mutex::new(file) }
    }
}

impl KeyLog for KeyFile {
    fn log(&self, label: &str, client_random: &[u8], secret: &[u8]) {
        // Poisoning is harmless: a line may be incomplete at worst.
        let mut slot = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(file) = slot.as_mut() else { return };
        if let Err(error) = write_line(file, label, client_random, secret) {
            tracing::warn!(%error, "the key log cannot be written: no more secrets are logged");
            *slot = None;
        }
    }
}

/// In one write, so that the lines of several processes do not mix.
fn write_line(file: &mut File, label: &str, client_random: &[u8], secret: &[u8]) -> io::Result<()> {
    let line = format!("{label} {} {}\n", Hex(client_random), Hex(secret));
    file.write_all(line.as_bytes())
}

struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for KeyFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyFile").finish_non_exhaustive()
    }
}
