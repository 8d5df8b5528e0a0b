//! Programs that run at an end of the network.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};

use super::error::TestbedError;
use super::namespace::Namespace;
use super::output::{End, Line};
use super::sys;
use super::watch::{Record, Watch};

/// Command to start, with its environment.
#[derive(Debug, Clone)]
pub struct Launch {
    /// Name in the experiment.
    pub name: String,
    /// Program and arguments; a program without a slash is searched in PATH.
    pub argv: Vec<OsString>,
    /// Variables in addition to the environment of this process.
    pub env: Vec<(OsString, OsString)>,
    /// Working directory.
    pub dir: PathBuf,
    /// Log file; each line has the seconds since the start, `out` or `err`, and the text.
    pub log: PathBuf,
    /// Whether the program inherits standard input, output, errors and process group, as a command of the user does.
    /// Then there are neither lines nor a log.
    pub echo: bool,
}

/// Replaces a first word `braidmq` by the path `own` of this program, so that PATH does not matter.
pub fn own_command(mut argv: Vec<OsString>, own: &Path) -> Vec<OsString> {
    if let Some(first) = argv.first_mut().filter(|first| *first == "braidmq") {
        *first = own.into();
    }
    argv
}

/// Program that runs in a namespace. When it ends or this is dropped, its process group is killed.
#[derive(Debug)]
pub struct Program {
    name: String,
    command: String,
    record: Arc<Record>,
    /// Ends with the program.
    watch: Option<JoinHandle<()>>,
    id: u32,
}

impl Program {
    /// Starts a program in `namespace`. Unless `echo` is set, the program leads its own process group, so that the
    /// terminal does not interrupt it, and has no input.
    ///
    /// # Errors
    /// One line: the program cannot be started, or its log cannot be created.
    pub fn start(namespace: &Namespace, launch: Launch) -> Result<Self, TestbedError> {
        let command = command_line(&launch.argv);
        let Launch { name, log, .. } = &launch;
        let fail = |why: String| TestbedError::Other(format!("{name}: cannot start `{command}`: {why}"));
        let unwritable =
            |error| TestbedError::Other(format!("{name}: cannot write {}: {error}", log.display()));
        let log = (!launch.echo).then(|| File::create(log)).transpose().map_err(unwritable)?;
        let mut prepared = prepare(&launch).ok_or_else(|| fail("the command is empty".into()))?;
        let mut child = namespace.run(|| prepared.spawn())?.map_err(|error| fail(reason(&error, &launch)))?;
        match watch(&mut child, &launch, log) {
            Ok((record, watch)) => {
                Ok(Self { name: launch.name, command, record, watch: Some(watch), id: child.id() })
            }
            Err(error) => {
                // Both fail only if the program has ended by itself.
                let _ = child.kill();
                let _ = child.wait();
                Err(fail(format!("it cannot be watched: {error}")))
            }
        }
    }

    /// Process id.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Command line.
    pub fn command(&self) -> &str {
        &self.command
    }

    /// Kept lines from number `first` on; the last few thousand are kept. A gap in the numbers shows dropped lines.
    pub fn lines(&self, first: u64) -> Vec<Line> {
        self.record.state().lines.since(first).cloned().collect()
    }

    /// Waits for a line that contains `wanted`, for at most `within`; earlier lines count.
    ///
    /// # Errors
    /// [`TestbedError::Ended`] if the program ends first, [`TestbedError::Silent`] after `within`.
    pub fn wait_for(&self, wanted: &str, within: Duration) -> Result<Line, TestbedError> {
        let deadline = Instant::now().checked_add(within);
        let mut seen = 0;
        let found = self.record.wait_until(deadline, |state| {
            if let Some(line) = state.lines.since(seen).find(|line| line.text.contains(wanted)) {
                return Some(Ok(line.clone()));
            }
            seen = state.lines.next();
            state.end.map(Err)
        });
        match found {
            Some(Ok(line)) => Ok(line),
            Some(Err(end)) => Err(self.ended(end)),
            None => Err(self.silent(wanted, within)),
        }
    }

    /// Waits for the end of the program, for at most `within`.
    pub fn wait(&self, within: Duration) -> Option<End> {
        self.record.wait_until(Instant::now().checked_add(within), |state| state.end)
    }

    /// End of the program; `None` while it runs.
    pub fn try_end(&self) -> Option<End> {
        self.record.state().end
    }

    /// Error for an unexpected `end`, with name, command and last line.
    pub fn ended(&self, end: End) -> TestbedError {
        TestbedError::Ended(format!("{} ended with {end}: {}", self.name, self.command_and_last_line()))
    }

    /// Error for a text that was not written in time, with name, command and last line.
    pub fn silent(&self, wanted: &str, within: Duration) -> TestbedError {
        let last = self.command_and_last_line();
        TestbedError::Silent(format!("{} has not written \"{wanted}\" within {within:?}: {last}", self.name))
    }

    /// Command line, and the last line that it wrote.
    fn command_and_last_line(&self) -> String {
        let state = self.record.state();
        let last = state.lines.last().map_or_else(String::new, |line| format!(": {}", line.text.trim()));
        format!("`{}`{last}", self.command)
    }

    /// Sends SIGINT to the program and its process group.
    pub fn interrupt(&self) {
        self.record.signal(Signal::INT);
    }

    /// Ends the program: SIGINT, then SIGKILL after `grace`.
    pub fn stop(self, grace: Duration) -> End {
        self.interrupt();
        self.wait(grace).unwrap_or_else(|| self.kill())
    }

    fn kill(&self) -> End {
        self.record.signal(Signal::KILL);
        loop {
            if let Some(end) = self.record.wait_until(None, |state| state.end) {
                return end;
            }
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
        if let Some(watch) = self.watch.take() {
            // A panic of that thread has been printed already.
            let _ = watch.join();
        }
    }
}

fn prepare(launch: &Launch) -> Option<Command> {
    let (program, arguments) = launch.argv.split_first()?;
    let mut command = Command::new(program);
    command.args(arguments).envs(launch.env.iter().cloned()).current_dir(&launch.dir);
    if !launch.echo {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        sys::make_interruptible(&mut command);
    }
    Some(command)
}

fn reason(error: &io::Error, launch: &Launch) -> String {
    match error.kind() {
        io::ErrorKind::NotFound if !launch.dir.is_dir() => {
            format!("the working directory {} does not exist", launch.dir.display())
        }
        io::ErrorKind::NotFound => "no such program: install it or give its path".into(),
        // PATH may hold directories that this user may not enter.
        io::ErrorKind::PermissionDenied => {
            "no such program, or it is not executable: give its path, or chmod +x it".into()
        }
        _ => error.to_string(),
    }
}

/// Starts the thread that watches `child`.
fn watch(child: &mut Child, launch: &Launch, log: Option<File>) -> io::Result<(Arc<Record>, JoinHandle<()>)> {
    let id = Pid::from_raw(i32::try_from(child.id()).map_err(io::Error::other)?)
        .ok_or_else(|| io::Error::other("it has no process id"))?;
    let record = Arc::new(Record::new(id, !launch.echo));
    let ended = pidfd_open(id, PidfdFlags::empty())?;
    let pipes = [child.stdout.take().map(OwnedFd::from), child.stderr.take().map(OwnedFd::from)];
    let watch = Watch::new(ended, pipes, log)?;
    let followed = Arc::clone(&record);
    let follow = move || watch.follow(&followed);
    Ok((record, thread::Builder::new().name("program".into()).spawn(follow)?))
}

/// Command line in shell syntax, for messages.
fn command_line(argv: &[OsString]) -> String {
    let word = |word: &OsString| {
        let text = word.to_string_lossy();
        let plain = !text.is_empty()
            && !text.contains(|letter: char| letter.is_whitespace() || "'\"$`\\".contains(letter));
        if plain { text.into_owned() } else { format!("'{}'", text.replace('\'', r"'\''")) }
    };
    argv.iter().map(word).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_word_is_replaced_by_this_program() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        let own = Path::new("here/braidmq");
        assert_eq!(own_command(words("braidmq pub braidmq"), own), words("here/braidmq pub braidmq"));
        assert_eq!(own_command(words("./braidmq pub"), own), words("./braidmq pub"));
        assert_eq!(own_command(Vec::new(), own), Vec::<OsString>::new());
    }
}
