//! One qlog file (JSON text sequences) for each connection.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use noq_proto::{ConnectionId, QlogConfig, QlogFactory, Side};

/// Creates `{milliseconds since 1970}-{server|client}-{first destination connection id}.qlog` in a directory. The
/// connection ID is the same at both ends.
#[derive(Debug)]
pub(super) struct QlogFiles {
    directory: PathBuf,
}

impl QlogFiles {
    /// Creates the directory; an error is logged, and connections work.
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
        let mut config = QlogConfig::new(Box::new(LossyWriter { file: Some(BufWriter::new(file)), path }));
        config.title(Some(format!("QUIC, {side}"))).description(Some(format!("peer {remote}")));
        Some(config)
    }
}

/// Writer that drops everything after its first error, with one warning. The library would warn at every event.
struct LossyWriter {
    file: Option<BufWriter<File>>,
    path: PathBuf,
}

impl LossyWriter {
    fn attempt(&mut self, write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) {
        let Some(Err(error)) = self.file.as_mut().map(write) else { return };
        tracing::warn!(path = %self.path.display(), %error, "the qlog file ends here");
        if let Some(file) = self.file.take() {
            // Its destructor would try again.
            let _ = file.into_parts();
        }
    }
}

impl Write for LossyWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.attempt(|file| file.write_all(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.attempt(BufWriter::flush);
        Ok(())
    }
}
