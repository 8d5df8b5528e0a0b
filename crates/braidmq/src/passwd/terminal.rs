//! Lines that are typed without being shown.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};

use rustix::termios::{
    InputModes, LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr,
};

/// Interrupt character, Ctrl-C.
const INTERRUPT: u8 = 3;
/// Quit character, Ctrl-\.
const QUIT: u8 = 28;

/// Maximum length of a line with its end. The terminal drops what exceeds it.
const MAX_LINE_BYTES: usize = 4_095;

/// Controlling terminal that shows nothing of what is typed, until this is dropped.
///
/// Ctrl-C and Ctrl-\ are read as characters that end the line: a signal would end the process before it could restore
/// the terminal.
pub(super) struct HiddenInput {
    terminal: File,
    before: Termios,
}

impl HiddenInput {
    pub(super) fn open() -> io::Result<Self> {
        let terminal = File::options().read(true).write(true).open("/dev/tty")?;
        let before = tcgetattr(&terminal)?;
        let mut hidden = before.clone();
        hidden.input_modes |= InputModes::ICRNL;
        hidden.local_modes &= !(LocalModes::ECHO | LocalModes::ISIG);
        hidden.local_modes |= LocalModes::ICANON | LocalModes::ECHONL;
        hidden.special_codes[SpecialCodeIndex::VEOL] = INTERRUPT;
        hidden.special_codes[SpecialCodeIndex::VEOL2] = QUIT;
        // Discards what was typed before, which was shown.
        tcsetattr(&terminal, OptionalActions::Flush, &hidden)?;
        Ok(Self { terminal, before })
    }

    /// Asks for a line, and returns it without its end.
    ///
    /// # Errors
    /// [`ErrorKind::Interrupted`] after Ctrl-C, Ctrl-\ or Ctrl-D, [`ErrorKind::InvalidInput`] for other control
    /// characters and too long a line.
    pub(super) fn ask(&mut self, prompt: &str) -> io::Result<Vec<u8>> {
        self.terminal.write_all(prompt.as_bytes())?;
        let mut line = Vec::new();
        let mut part = [0; MAX_LINE_BYTES + 1];
        loop {
            // Unlike `read_until`, a single read of at most a line: Ctrl-D ends a part without newline.
            let length = match self.terminal.read(&mut part) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                result => result?,
            };
            let is_end = |byte: &u8| matches!(*byte, INTERRUPT | QUIT);
            if length == 0 || part[..length].iter().any(is_end) {
                self.terminal.write_all(b"\n")?;
                return Err(ErrorKind::Interrupted.into());
            }
            line.extend_from_slice(&part[..length]);
            if line.len() >= MAX_LINE_BYTES {
                return Err(ErrorKind::InvalidInput.into());
            }
            if line.pop_if(|byte| *byte == b'\n').is_some() {
                break;
            }
        }
        if line.iter().any(u8::is_ascii_control) { Err(ErrorKind::InvalidInput.into()) } else { Ok(line) }
    }
}

impl Drop for HiddenInput {
    fn drop(&mut self) {
        // The terminal may be gone.
        let _ = tcsetattr(&self.terminal, OptionalActions::Flush, &self.before);
    }
}
