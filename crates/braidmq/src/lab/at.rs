//! `braidmq lab at`: runs a command at one end of the link around its caller.

use std::ffi::OsString;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode};

use braid_lab::testbed::Namespace;

use super::{own, refuse};

/// Inside `lab run --link`: run a command at one end of the link
///
/// `braidmq lab run --link "loss=1%" -- sh -c 'braidmq lab at right -- iperf3 -s -1 & iperf3 -c $LAB_RIGHT'`
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The end
    #[arg(value_parser = ["left", "right"])]
    end: String,
    /// The command; `braidmq` is this program
    #[arg(value_name = "COMMAND", last = true, required = true)]
    command: Vec<OsString>,
}

/// Environment variable about an end, for programs. The prefix differs from BRAIDMQ_, which is for the configuration.
pub(super) fn variable(end: &str, what: &str) -> String {
    format!("LAB_{}{what}", end.to_uppercase())
}

/// Path under which other processes of the testbed open the namespace `fd`.
///
/// Many containers refuse to mount the /proc of the new PID namespace. The outer one, which stays then, has another number
/// for this process.
pub(super) fn path(fd: BorrowedFd<'_>) -> String {
    let number = std::fs::read_link("/proc/self").ok().and_then(|link| link.to_str()?.parse().ok());
    format!("/proc/{}/fd/{}", number.unwrap_or_else(std::process::id), fd.as_raw_fd())
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let variable = variable(&args.end, "_NS");
    let Some(path) = std::env::var_os(&variable) else {
        return refuse(&format!(
            "{variable} is not set: this command works inside `braidmq lab run --link ... -- COMMAND`"
        ));
    };
    let command = match own(args.command.clone()) {
        Ok(command) => command,
        Err(error) => return refuse(&error),
    };
    let Some((program, arguments)) = command.split_first() else {
        return refuse(&"the command is empty");
    };
    let run = || Command::new(program).args(arguments).status();
    match Namespace::open(&args.end, path.as_ref()).and_then(|end| end.run(run)) {
        Ok(Ok(status)) => {
            let code = status.code().or(status.signal().map(|number| 128 + number));
            ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
        }
        Ok(Err(error)) => refuse(&format!("{}: {error}", program.to_string_lossy())),
        Err(error) => refuse(&error),
    }
}
