//! `braidmq lab at`: runs a command at one end of the link around its caller.

use std::ffi::OsString;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode};

use braid_lab::testbed::Namespace;

use super::{Refusal, own};

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
/// Many containers refuse to mount the /proc of the new PID namespace. The outer one, which stays then, has another
/// number for this process.
pub(super) fn path(fd: BorrowedFd<'_>) -> String {
    let number = std::fs::read_link("/proc/self").ok().and_then(|link| link.to_str()?.parse().ok());
    format!("/proc/{}/fd/{}", number.unwrap_or_else(std::process::id), fd.as_raw_fd())
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Refusal> {
    let variable = variable(&args.end, "_NS");
    let Some(path) = std::env::var_os(&variable) else {
        let where_it_works = "this command works inside `braidmq lab run --link ... -- COMMAND`";
        return Err(format!("{variable} is not set: {where_it_works}").into());
    };
    let command = own(args.command.clone())?;
    let (program, arguments) = command.split_first().ok_or("the command is empty")?;
    let run = || Command::new(program).args(arguments).status();
    let status = Namespace::open(&args.end, path.as_ref())?.run(run)?;
    let status = status.map_err(|error| format!("{}: {error}", program.to_string_lossy()))?;
    let code = status.code().or(status.signal().map(|number| 128 + number));
    Ok(ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}
