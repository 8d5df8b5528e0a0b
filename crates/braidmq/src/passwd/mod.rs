//! `braidmq passwd`: users of a password file, which the broker authenticates clients by.

pub(crate) mod file;
mod secret;
mod terminal;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use braid_auth::password::{
    Argon2idParams, PasswordFile, PasswordHash, SALT_BYTES, Verdict, check_user, remove, upsert,
};
use braid_auth::scram;
use clap::Subcommand;

use crate::output;
use crate::printable::printable;
use file::LockedFile;
use secret::PasswordSource;

/// Exit code of a wrong password and an unknown user.
const WRONG: u8 = 1;
/// Exit code when nothing was done and the user must change something.
const FAILED: u8 = 2;

/// Add, remove, verify and list the users of a password file
///
/// A password file has the names of users and hashes of their passwords, by which a broker authenticates clients. The
/// format is that of mosquitto_passwd: a line `user:hash` for each user, and comments that begin with `#`. Passwords
/// are asked on the terminal and never shown.
#[derive(clap::Args, Debug)]
#[command(after_help = HELP)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

const HELP: &str = "\
Examples:
  braidmq passwd add users.txt alice              # asks for the password twice; makes the file if there is none
  braidmq passwd add --scram users.txt bob        # bob may also log in by SCRAM-SHA-256
  pwgen 20 1 | tee secret | braidmq passwd add --stdin users.txt sensor
  braidmq passwd add --password-file secret users.txt sensor
  braidmq passwd verify users.txt alice && echo right
  braidmq passwd list users.txt
  braidmq passwd remove users.txt alice

Exit codes:
  0  done, and for verify: the password is right
  1  the password is wrong, or there is no such user
  2  nothing was done: the line on standard error names the remedy";

#[derive(Subcommand, Debug)]
enum Command {
    Add(Add),
    Remove(Remove),
    Verify(Verify),
    List(List),
}

/// Add a user, or give it another password
///
/// The file is made with permissions for its owner only, if there is none. Other lines of an existing file stay as they
/// are, and so do its owner and permissions. It is replaced at once: the broker never sees half of it.
#[derive(clap::Args, Debug)]
struct Add {
    /// Store a SCRAM-SHA-256 credential, in the form of PostgreSQL, instead of an argon2id hash
    ///
    /// With it the user may log in by SCRAM, which never sends the password, and with a password in the clear as well.
    /// An argon2id hash is better protected if the file is stolen.
    #[arg(long)]
    scram: bool,
    /// Iterations of the SCRAM credential, which the client computes each time that it connects
    #[arg(long, value_name = "N", requires = "scram", default_value_t = scram::DEFAULT_ITERATIONS,
        value_parser = clap::value_parser!(u32).range(
            i64::from(scram::MIN_ITERATIONS)..=i64::from(scram::MAX_ITERATIONS)))]
    iterations: u32,
    #[command(flatten)]
    source: PasswordSource,
    #[command(flatten)]
    user: User,
}

/// Remove a user
#[derive(clap::Args, Debug)]
struct Remove {
    #[command(flatten)]
    user: User,
}

/// Verify the password of a user
///
/// The exit code is 0 if it is right, and 1 if it is wrong or there is no such user.
#[derive(clap::Args, Debug)]
struct Verify {
    #[command(flatten)]
    source: PasswordSource,
    #[command(flatten)]
    user: User,
}

/// List the users, each with its kind of hash behind a tab
#[derive(clap::Args, Debug)]
struct List {
    /// The password file
    file: PathBuf,
}

#[derive(clap::Args, Debug)]
struct User {
    /// The password file
    file: PathBuf,
    /// User name, as the client sends it
    user: String,
}

/// Line about what went wrong and what to change.
#[derive(Debug)]
pub(crate) struct Failure(pub(crate) String);

impl Failure {
    fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let (file, done) = match &args.command {
        Command::Add(args) => (&args.user.file, add(args)),
        Command::Remove(args) => (&args.user.file, remove_user(&args.user)),
        Command::Verify(args) => (&args.user.file, verify(args)),
        Command::List(args) => (&args.file, list(args)),
    };
    if done.is_ok() {
        file::warn_of_readers(file);
    }
    done.unwrap_or_else(|Failure(message)| {
        complain(&message);
        ExitCode::from(FAILED)
    })
}

fn add(args: &Add) -> Result<ExitCode, Failure> {
    let User { file, user } = &args.user;
    let name = file.display().to_string();
    check_user(user, args.scram)?;
    // A malformed file is told before the user types a password.
    if file.try_exists().unwrap_or(true) {
        remove(&file::read(file)?, &name, user)?;
    }
    let password = args.source.new_password(user)?;
    let hash = if args.scram {
        PasswordHash::scram_sha_256(&password, salt()?, args.iterations)?
    } else {
        PasswordHash::argon2id(&password, salt()?, Argon2idParams::default())?
    };
    let is_replaced = write(LockedFile::open_or_create(file)?, &name, user, &hash)?;
    print(&if is_replaced {
        format!("the password of {user} in {name} was replaced")
    } else {
        format!("{user} was added to {name}")
    })
}

fn salt() -> Result<[u8; SALT_BYTES], Failure> {
    let mut salt = [0; SALT_BYTES];
    getrandom::fill(&mut salt).map_err(|error| Failure::new(format!("no random numbers: {error}")))?;
    Ok(salt)
}

/// Writes the hash of a user. True if there was such a user.
fn write(locked: LockedFile, name: &str, user: &str, hash: &PasswordHash) -> Result<bool, Failure> {
    let edited = upsert(locked.text(), name, user, hash)?;
    locked.replace(&edited.text)?;
    Ok(edited.replaced)
}

/// Adds a user to an existing file or replaces its password, as `braidmq passwd add` does. True if there was such a
/// user.
///
/// # Errors
/// Name or password are not valid, or the file cannot be read or written.
pub(crate) fn set_password(file: &Path, user: &str, password: &str) -> Result<bool, Failure> {
    check_user(user, false)?;
    let hash = PasswordHash::argon2id(password.as_bytes(), salt()?, Argon2idParams::default())?;
    write(LockedFile::open(file)?, &file.display().to_string(), user, &hash)
}

/// Outcome of [`remove_from`].
pub(crate) enum Removal {
    Removed,
    Unknown,
    /// Refused: a broker goes on with the file that it has rather than with one without users.
    Last,
}

/// Removes a user from a file.
///
/// # Errors
/// The file cannot be read or written.
pub(crate) fn remove_from(file: &Path, user: &str) -> Result<Removal, Failure> {
    let name = file.display().to_string();
    let locked = LockedFile::open(file)?;
    let Some(text) = remove(locked.text(), &name, user)? else { return Ok(Removal::Unknown) };
    if PasswordFile::parse(&text, &name).is_err() {
        return Ok(Removal::Last);
    }
    locked.replace(&text)?;
    Ok(Removal::Removed)
}

fn remove_user(User { file, user }: &User) -> Result<ExitCode, Failure> {
    let name = file.display().to_string();
    match remove_from(file, user)? {
        Removal::Removed => print(&format!("{user} was removed from {name}")),
        Removal::Unknown => Ok(unknown(user, &name)),
        Removal::Last => Err(Failure::new(format!(
            "{user} is the last user of {name}, and the broker refuses a file without users: set another password \
             with `braidmq passwd add`, which ends the connections of {user} at a reload too, or add another user first"
        ))),
    }
}

fn verify(args: &Verify) -> Result<ExitCode, Failure> {
    let User { file, user } = &args.user;
    let name = file.display().to_string();
    let users = PasswordFile::parse(&file::read(file)?, &name)?;
    let password = args.source.password(user)?;
    match users.verify(user, &password) {
        Verdict::Right => print(&format!("the password of {user} is right")),
        Verdict::Wrong => {
            complain(&format!("the password of {user} in {name} is another one"));
            Ok(ExitCode::from(WRONG))
        }
        Verdict::Unknown => Ok(unknown(user, &name)),
    }
}

fn list(List { file }: &List) -> Result<ExitCode, Failure> {
    let users = PasswordFile::parse(&file::read(file)?, &file.display().to_string())?;
    let lines = users.users().map(|(user, kind)| format!("{}\t{kind}\n", printable(user)));
    print_text(&lines.collect::<String>())
}

fn unknown(user: &str, name: &str) -> ExitCode {
    complain(&format!("there is no user {user} in {name}"));
    ExitCode::from(WRONG)
}

fn print(line: &str) -> Result<ExitCode, Failure> {
    print_text(&format!("{}\n", printable(line)))
}

fn print_text(text: &str) -> Result<ExitCode, Failure> {
    let printed = output::print(text);
    printed.map_err(|error| Failure::new(format!("cannot write standard output: {error}")))?;
    Ok(ExitCode::SUCCESS)
}

fn complain(message: &str) {
    eprintln!("braidmq: {}", printable(message));
}
