//! A file per connection with all that QUIC does in it (qlog, JSON text sequences).

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use noq::{ConnectionId, QlogConfig, QlogFactory, Side};

/// Puts `{milliseconds since 1970}-{server|client}-{first destination connection id}.qlog` into a
/// directory. Both ends of a connection have the connection id in common.
#[derive(Debug)]
pub(super) struct QlogFiles {
    directory: PathBuf,
}

impl QlogFiles {
    /// A directory that cannot be made is said so in the log, and no more.
    pub(super) fn new(directory: &Path) -> Self {
        if let Err(error) = fs::create_dir_all(directory) {
            tracing::warn!(path = %directory.display(), %error, "the directory for qlog files cannot be made");
        }
        Self { directory: directory.to_path_buf() }
    }
}

impl QlogFactory for QlogFiles {
    fn for_connection(
        &self,
        side: Side,
        remote: SocketAddr,
        initial_dst_cid: ConnectionId,
        _now: Instant,
    ) -> Option<QlogConfig> {
        let side = match side {
            Side::Client => "client",
            Side::Server => "server",
        };
        let millis = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let path = self.directory.join(format!("{millis}-{side}-{initial_dst_cid}.qlog"));
        let file = File::create(&path)
            .inspect_err(|error| tracing::warn!(path = %path.display(), %error, "no qlog file"))
            .ok()?;
        let mut config = QlogConfig::new(Box::new(Forgiving { file: Some(BufWriter::new(file)), path }));
        config.title(Some(format!("MQTT over QUIC, {side}"))).description(Some(format!("peer {remote}")));
        Some(config)
    }
}

/// Takes everything; what it cannot write it forgets after one warning. The library would warn of
/// every event.
struct Forgiving {
    file: Option<BufWriter<File>>,
    path: PathBuf,
}

impl Forgiving {
    fn attempt(&mut self, write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) {
        let Some(Err(error)) = self.file.as_mut().map(write) else { return };
        tracing::warn!(path = %self.path.display(), %error, "the qlog file ends here");
        if let Some(file) = self.file.take() {
            // Its destructor would try again.
            let _ = file.into_parts();
        }
    }
}

impl Write for Forgiving {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.attempt(|file| file.write_all(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.attempt(BufWriter::flush);
        Ok(())
    }
}
