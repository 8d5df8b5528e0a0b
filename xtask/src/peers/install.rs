//! Installs the clients: Debian packages, a Python environment, Node modules. Nothing is done twice.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Kind;

/// The clients of the suites, and the interpreters they run on: program and Debian package.
const PROGRAMS: &[(&str, &str)] = &[
    ("mosquitto_pub", "mosquitto-clients"),
    ("mosquitto_sub", "mosquitto-clients"),
    ("mosquitto_rr", "mosquitto-clients"),
    ("curl", "curl"),
    ("python3", "python3"),
    ("h2load", "nghttp2-client"),
    ("nginx", "nginx"),
    ("node", "nodejs"),
    ("npm", "npm"),
    ("chromium", "chromium"),
];

/// Tools of the sources of msquic.
const MSQUIC_TOOLS: &[(&str, &str)] = &[("cmake", "cmake"), ("perl", "perl")];

/// Relay to msquic below the directory of installed programs.
pub(super) const MSQUIC_RELAY: &str = "msquic/msquic-relay";

/// Makes every client available under `home`, from the pinned lists in `sources`.
///
/// # Errors
/// One line naming what could not be installed: a missing peer is a failure, never a skip.
pub(super) fn install(sources: &Path, home: &Path, kind: Kind) -> Result<(), String> {
    fs::create_dir_all(home).map_err(|error| format!("{}: {error}", home.display()))?;
    let others: &[_] = match kind {
        Kind::Braidmq => MSQUIC_TOOLS,
        Kind::Mosquitto => &[("mosquitto", "mosquitto")],
        Kind::Cluster => &[],
    };
    for (program, package) in PROGRAMS.iter().chain(others).copied() {
        if find(program).is_none() {
            debian_package(package)?;
        }
        let place = find(program).ok_or_else(|| format!("{package} is installed, but not {program}"))?;
        println!("# {program}: {}", place.display());
    }
    python_environment(sources, home)?;
    node_modules(sources, home)?;
    if kind == Kind::Braidmq { msquic_relay(&sources.join("msquic"), home) } else { Ok(()) }
}

/// `.peers/msquic` with the relay and the library that it loads, from the sources in the crate `msquic`.
fn msquic_relay(sources: &Path, home: &Path) -> Result<(), String> {
    let (place, target) = (home.join("msquic"), home.join("msquic/target"));
    let built = target.join("release");
    if !built.exists() {
        println!("# building {} into {} (about two minutes, once)", sources.display(), place.display());
    }
    let mut cargo = Command::new("cargo");
    cargo
        .args(["build", "--release", "--locked", "--quiet", "--manifest-path"])
        .arg(sources.join("Cargo.toml"));
    succeed(cargo.arg("--target-dir").arg(&target))?;
    let library =
        newest(&built.join("build"), "out/lib/libmsquic.so.2").ok_or("msquic has built no library")?;
    for (from, name) in [(built.join("msquic-relay"), "msquic-relay"), (library, "libmsquic.so.2")] {
        let to = place.join(name);
        fs::copy(&from, &to).map_err(|error| format!("{} to {}: {error}", from.display(), to.display()))?;
    }
    println!("# msquic: {}", place.display());
    Ok(())
}

/// Latest file of that path in the directories of `parent`.
fn newest(parent: &Path, path: &str) -> Option<PathBuf> {
    let found = fs::read_dir(parent).ok()?.flatten().map(|entry| entry.path().join(path));
    found
        .filter_map(|file| Some((fs::metadata(&file).ok()?.modified().ok()?, file)))
        .max()
        .map(|(_, file)| file)
}

fn debian_package(package: &str) -> Result<(), String> {
    println!("# installing {package} (Debian)");
    let line = ["apt-get", "install", "--yes", "--no-install-recommends", package];
    let mut command = if is_root() { Command::new(line[0]) } else { Command::new("sudo") };
    let rest = if is_root() { &line[1..] } else { &line[..] };
    succeed(command.args(rest).env("DEBIAN_FRONTEND", "noninteractive"))
}

/// `.peers/venv` with exactly `peers/requirements.txt`.
fn python_environment(sources: &Path, home: &Path) -> Result<(), String> {
    let (wanted, venv) = (sources.join("requirements.txt"), home.join("venv"));
    let installed = venv.join("requirements.txt");
    if !same(&wanted, &installed) {
        println!("# installing {} into {}", wanted.display(), venv.display());
        let made = succeed(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv));
        if made.is_err() {
            // Debian splits the module off; elsewhere it comes with the interpreter.
            debian_package("python3-venv")?;
            succeed(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv))?;
        }
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"];
        succeed(Command::new(venv.join("bin/python")).args(pip).arg(&wanted))?;
        fs::copy(&wanted, &installed).map_err(|error| format!("{}: {error}", installed.display()))?;
    }
    println!("# python: {}", pinned(&wanted));
    Ok(())
}

/// `.peers/node_modules` with exactly `peers/package-lock.json`.
fn node_modules(sources: &Path, home: &Path) -> Result<(), String> {
    let installed = home.join("node_modules/package-lock.json");
    let wanted = sources.join("package-lock.json");
    if !same(&wanted, &installed) {
        println!("# installing {} into {}", wanted.display(), home.join("node_modules").display());
        for name in ["package.json", "package-lock.json", ".npmrc"] {
            fs::copy(sources.join(name), home.join(name)).map_err(|error| format!("{name}: {error}"))?;
        }
        succeed(Command::new("npm").args(["ci", "--ignore-scripts", "--silent"]).current_dir(home))?;
        fs::copy(&wanted, &installed).map_err(|error| format!("{}: {error}", installed.display()))?;
    }
    for name in ["mqtt", "playwright-core", "axe-core"] {
        let manifest =
            fs::read_to_string(home.join("node_modules").join(name).join("package.json")).unwrap_or_default();
        let manifest: serde_json::Value = serde_json::from_str(&manifest).unwrap_or_default();
        let version = manifest["version"].as_str().ok_or_else(|| format!("npm ci did not install {name}"))?;
        println!("# node: {name}=={version}");
    }
    Ok(())
}

/// The PATH of this process, with the directories of system daemons.
pub(super) fn search_path() -> OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":/usr/local/sbin:/usr/sbin:/sbin");
    path
}

fn find(program: &str) -> Option<PathBuf> {
    std::env::split_paths(&search_path()).map(|directory| directory.join(program)).find(|path| path.is_file())
}

fn same(left: &Path, right: &Path) -> bool {
    matches!((fs::read(left), fs::read(right)), (Ok(left), Ok(right)) if left == right)
}

/// The first pins, the clients themselves; the rest is what they pull in.
fn pinned(requirements: &Path) -> String {
    let text = fs::read_to_string(requirements).unwrap_or_default();
    let pins = text.lines().filter(|line| line.contains("==")).take(4);
    pins.collect::<Vec<_>>().join(", ")
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}

fn succeed(command: &mut Command) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?} failed: {status}")),
        Err(error) => Err(format!("cannot run {command:?}: {error}")),
    }
}
