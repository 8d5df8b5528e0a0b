//! Terminal that is drawn over again, without echo of keys.

use std::fs::File;
use std::io::{self, Read, Write};
use std::thread;

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use tokio::sync::mpsc;

/// Alternate screen without a cursor, and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// Size of a terminal that does not tell it: columns, rows.
const SIZE: (usize, usize) = (80, 24);

/// Controlling terminal, which is as before when this is dropped.
pub(crate) struct Screen {
    terminal: File,
    before: Termios,
    keys: mpsc::Receiver<u8>,
}

impl Screen {
    /// # Errors
    /// The process has no terminal.
    pub(crate) fn open() -> io::Result<Self> {
        let mut terminal = File::options().read(true).write(true).open("/dev/tty")?;
        let before = tcgetattr(&terminal)?;
        let mut raw = before.clone();
        // Signals are read as characters: one would end the process before the terminal is restored.
        raw.local_modes &= !(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG);
        tcsetattr(&terminal, OptionalActions::Now, &raw)?;
        let (sender, keys) = mpsc::channel(16);
        let mut input = terminal.try_clone()?;
        thread::Builder::new().name("keys".to_owned()).spawn(move || {
            let mut key = [0];
            // Ends with the process, or with the terminal.
            while input.read(&mut key).is_ok_and(|read| read > 0) && sender.blocking_send(key[0]).is_ok() {}
        })?;
        terminal.write_all(ENTER.as_bytes())?;
        Ok(Self { terminal, before, keys })
    }

    /// Waits for `q`, Ctrl-C, Ctrl-D or the end of the terminal.
    pub(crate) async fn quit(&mut self) {
        while self.key().await.is_some_and(|key| !is_quit_key(key)) {}
    }

    /// Waits for a key; `None`: the terminal has ended.
    pub(crate) async fn key(&mut self) -> Option<u8> {
        self.keys.recv().await
    }

    /// Draws lines from the top, as many as there is room for.
    pub(crate) fn draw(&mut self, lines: &[String]) -> io::Result<()> {
        let size = terminal_size::terminal_size_of(&self.terminal);
        let (columns, rows) = size.map_or(SIZE, |(columns, rows)| (columns.0.into(), rows.0.into()));
        let mut text = String::from("\x1b[H");
        for line in lines.iter().take(rows) {
            text.extend(line.chars().take(columns));
            text.push_str("\x1b[K\r\n");
        }
        if lines.len() >= rows {
            // The last line feed would scroll.
            text.truncate(text.len() - 2);
        }
        text.push_str("\x1b[J");
        self.terminal.write_all(text.as_bytes())
    }
}

/// True for `q`, Ctrl-C, Ctrl-D and Ctrl-\\.
pub(crate) const fn is_quit_key(key: u8) -> bool {
    matches!(key, b'q' | b'Q' | 3 | 4 | 28)
}

impl Drop for Screen {
    fn drop(&mut self) {
        // The terminal may be gone.
        let _ = self.terminal.write_all(LEAVE.as_bytes());
        let _ = tcsetattr(&self.terminal, OptionalActions::Now, &self.before);
    }
}
