//! Password from the terminal, standard input, a file or the environment; never from an argument, which others on the
//! machine can see.

use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use braid_auth::password::MAX_PASSWORD_BYTES;

use super::Failure;
use super::terminal::HiddenInput;
use crate::printable::printable;
use crate::secret::{self, VARIABLE};

/// Source of a password
#[derive(clap::Args, Debug)]
pub(super) struct PasswordSource {
    /// Read the password from the first line of standard input
    #[arg(long, conflicts_with = "password_file")]
    stdin: bool,
    /// Read the password from the first line of a file [default: the environment variable
    /// BRAIDMQ_PASSWORD if there is one, otherwise the terminal]
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
}

impl PasswordSource {
    /// Password that a user has.
    pub(super) fn password(&self, user: &str) -> Result<Vec<u8>, Failure> {
        match self.without_terminal()? {
            Some(password) => Ok(password),
            None => ask(&mut open_terminal()?, &format!("Password of {user}: ")),
        }
    }

    /// Password that a user gets: it is asked twice on a terminal.
    pub(super) fn new_password(&self, user: &str) -> Result<Vec<u8>, Failure> {
        if let Some(password) = self.without_terminal()? {
            return Ok(password);
        }
        let mut terminal = open_terminal()?;
        let password = ask(&mut terminal, &format!("Password for {user}: "))?;
        if ask(&mut terminal, "The same again: ")? != password {
            return Err(Failure::new("the two passwords differ: do it again"));
        }
        Ok(password)
    }

    fn without_terminal(&self) -> Result<Option<Vec<u8>>, Failure> {
        if self.stdin {
            return first_line(io::stdin().lock(), "standard input").map(Some);
        }
        if let Some(path) = &self.password_file {
            let name = path.display().to_string();
            return open(path, &name).and_then(|file| first_line(BufReader::new(file), &name)).map(Some);
        }
        Ok(std::env::var_os(VARIABLE).map(OsStringExt::into_vec))
    }
}

fn open(path: &Path, name: &str) -> Result<File, Failure> {
    File::open(path).map_err(|error| Failure::new(format!("cannot read {name}: {error}")))
}

fn first_line(source: impl BufRead, name: &str) -> Result<Vec<u8>, Failure> {
    secret::first_line(source, MAX_PASSWORD_BYTES)
        .map_err(|error| Failure::new(format!("cannot read {name}: {error}")))
}

fn open_terminal() -> Result<HiddenInput, Failure> {
    HiddenInput::open().map_err(|error| {
        Failure::new(format!(
            "there is no terminal to ask for the password ({error}): pass --stdin or --password-file, or set {VARIABLE}"
        ))
    })
}

fn ask(terminal: &mut HiddenInput, prompt: &str) -> Result<Vec<u8>, Failure> {
    terminal.ask(&printable(prompt)).map_err(|error| match error.kind() {
        ErrorKind::Interrupted => Failure::new("interrupted: nothing was done"),
        ErrorKind::InvalidInput => Failure::new(
            "the typed line is too long or contains a control character: use others, or pass --password-file",
        ),
        _ => Failure::new(format!("cannot read the terminal: {error}")),
    })
}
