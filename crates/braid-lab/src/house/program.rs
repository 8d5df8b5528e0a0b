//! A program at an end of the network.

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

use super::end::End;
use super::error::HouseError;
use super::lines::Line;
use super::namespace::Namespace;
use super::sys;
use super::watch::{Record, Watch};

/// What to start, and how.
#[derive(Debug, Clone)]
pub struct Launch {
    /// Its name in the experiment.
    pub name: String,
    /// The program and its arguments. Without a slash the program is looked for along the search path.
    pub argv: Vec<OsString>,
    /// What it finds in its environment beside what we have.
    pub env: Vec<(OsString, OsString)>,
    /// Its working directory.
    pub dir: PathBuf,
    /// Where its lines go: seconds since its start, `out` or `err`, the line.
    pub log: PathBuf,
    /// Whether it shares our standard input, output and errors, and our process group, as a command that the user
    /// gave. There are no lines and no log then.
    pub echo: bool,
}

/// A command in which a first word `braidmq` is the program at `own`, also where the search path has none or another.
pub fn own_command(mut argv: Vec<OsString>, own: &Path) -> Vec<OsString> {
    if let Some(first) = argv.first_mut().filter(|first| *first == "braidmq") {
        *first = own.into();
    }
    argv
}

/// A program that runs in a namespace. When it ends, what it has started in its process group is killed too; when this
/// is dropped, both are.
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
    /// Starts a program in `namespace`. Unless it is `echo` it leads its own process group, so that the terminal does
    /// not interrupt it, and reads nothing.
    ///
    /// # Errors
    /// One line when it cannot be started or its log not be written.
    pub fn start(namespace: &Namespace, launch: Launch) -> Result<Self, HouseError> {
        let command = command_line(&launch.argv);
        let fail =
            |why: String| HouseError::Start { name: launch.name.clone(), command: command.clone(), why };
        let log = (!launch.echo).then(|| File::create(&launch.log)).transpose().map_err(|source| {
            HouseError::Log { name: launch.name.clone(), path: launch.log.clone(), source }
        })?;
        let mut prepared = prepare(&launch).ok_or_else(|| fail("there is no program to start".into()))?;
        let mut child = namespace.run(|| prepared.spawn())?.map_err(|error| fail(reason(&error, &launch)))?;
        match watch(&mut child, &launch, log) {
            Ok((record, watch)) => {
                Ok(Self { name: launch.name, command, record, watch: Some(watch), id: child.id() })
            }
            Err(error) => {
                // Nobody would follow it. Both fail only if it has ended by itself.
                let _ = child.kill();
                let _ = child.wait();
                Err(fail(format!("nobody can follow it: {error}")))
            }
        }
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Its command line.
    pub fn command(&self) -> &str {
        &self.command
    }

    /// Those of its lines from number `first` on that are still kept: some thousand. Who asks again with the number
    /// after the last one misses nothing, or sees a gap in the numbers.
    pub fn lines(&self, first: u64) -> Vec<Line> {
        self.record.state().lines.since(first).cloned().collect()
    }

    /// Waits until a line holds `wanted`, one that has come already counts, for at most `within`.
    ///
    /// # Errors
    /// [`HouseError::Ended`] when the program ends before, [`HouseError::Silent`] when the time is over.
    pub fn wait_for(&self, wanted: &str, within: Duration) -> Result<Line, HouseError> {
        let deadline = Instant::now().checked_add(within);
        let mut seen = 0;
        let mut state = self.record.state();
        loop {
            if let Some(line) = state.lines.since(seen).find(|line| line.text.contains(wanted)) {
                return Ok(line.clone());
            }
            seen = state.lines.next();
            if let Some(end) = state.end {
                drop(state);
                return Err(self.ended(end));
            }
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                drop(state);
                return Err(self.silent(wanted, within));
            }
            state = self.record.wait(state, deadline);
        }
    }

    /// Waits for its end, for at most `within`.
    pub fn wait(&self, within: Duration) -> Option<End> {
        let deadline = Instant::now().checked_add(within);
        let mut state = self.record.state();
        while state.end.is_none() && deadline.is_none_or(|deadline| Instant::now() < deadline) {
            state = self.record.wait(state, deadline);
        }
        state.end
    }

    /// Its end, if it has ended.
    pub fn try_end(&self) -> Option<End> {
        self.record.state().end
    }

    /// The error that this program has ended with `end`: its name, command, how, and its last line.
    pub fn ended(&self, end: End) -> HouseError {
        let last = last_line(self.record.state().lines.last());
        HouseError::Ended { name: self.name.clone(), command: self.command.clone(), end, last }
    }

    /// The error that this program has not written `wanted` within that time: its name, command, and its last line.
    pub fn silent(&self, wanted: &str, within: Duration) -> HouseError {
        let last = last_line(self.record.state().lines.last());
        let (name, command) = (self.name.clone(), self.command.clone());
        HouseError::Silent { name, command, wanted: wanted.to_owned(), within, last }
    }

    /// Asks it to end: SIGINT to it and its process group.
    pub fn interrupt(&self) {
        self.record.signal(Signal::INT);
    }

    /// Ends it: SIGINT, and SIGKILL if it has not ended after `grace`.
    pub fn stop(self, grace: Duration) -> End {
        self.interrupt();
        if let Some(end) = self.wait(grace) {
            return end;
        }
        self.kill()
    }

    fn kill(&self) -> End {
        self.record.signal(Signal::KILL);
        let mut state = self.record.state();
        loop {
            if let Some(end) = state.end {
                return end;
            }
            state = self.record.wait(state, None);
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
        if let Some(watch) = self.watch.take() {
            // Its panic would be a bug that its own output shows; there is no one to hand it to.
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
            format!("there is no folder {} to start it in", launch.dir.display())
        }
        io::ErrorKind::NotFound => "there is no such program: install it or give its path".into(),
        // The search path may hold folders that this user may not enter.
        io::ErrorKind::PermissionDenied => {
            "there is no such program, or it may not be executed: give its path, or chmod +x it".into()
        }
        _ => error.to_string(),
    }
}

/// Follows `child` on a thread.
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

/// As a shell would take it, where that needs no escaping.
fn command_line(argv: &[OsString]) -> String {
    let word = |word: &OsString| {
        let text = word.to_string_lossy();
        let plain = !text.is_empty()
            && !text.contains(|letter: char| letter.is_whitespace() || "'\"$`\\".contains(letter));
        if plain { text.into_owned() } else { format!("'{}'", text.replace('\'', r"'\''")) }
    };
    argv.iter().map(word).collect::<Vec<_>>().join(" ")
}

fn last_line(line: Option<&Line>) -> String {
    line.map_or_else(String::new, |line| format!(": {}", line.text.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_word_stands_for_this_program() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        let own = Path::new("here/braidmq");
        assert_eq!(own_command(words("braidmq pub braidmq"), own), words("here/braidmq pub braidmq"));
        assert_eq!(own_command(words("./braidmq pub"), own), words("./braidmq pub"));
        assert_eq!(own_command(Vec::new(), own), Vec::<OsString>::new());
    }
}
