//! Runs a command inside the testbed: `testbed_entry COMMAND ARGUMENTS`. Its exit code is that of the command.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use braid_lab::testbed::{Entry, enter};

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let Some(program) = arguments.next() else {
        eprintln!("write testbed_entry COMMAND ARGUMENTS");
        return ExitCode::from(2);
    };
    match enter() {
        Ok(Entry::Ended(code)) => ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)),
        Ok(Entry::Inside) => {
            let error = Command::new(&program).args(arguments).exec();
            eprintln!("{}: {error}", program.display());
            ExitCode::from(127)
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}
