//! A network namespace that lives as long as somebody holds it.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic;
use std::path::Path;
use std::thread;

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use super::error::HouseError;
use super::sys;

/// A network namespace. It has no name outside this process: a descriptor holds it, and the sockets, devices and
/// processes in it. With the last of them it is gone.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    descriptor: OwnedFd,
}

impl Namespace {
    /// Makes a namespace with nothing in it but a loopback device, which is up. `name` is for errors.
    ///
    /// # Errors
    /// When this process may not make namespaces: outside the house, and not root.
    pub fn create(name: &str) -> Result<Self, HouseError> {
        let descriptor = on_own_thread(|| {
            sys::unshare(UnshareFlags::NEWNET)?;
            // Neighbour discovery and listener reports would be packets of no program. Devices to come take this over;
            // where /proc/sys is read-only, as in many containers, they do without.
            let _ = fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
            sys::raise("lo")?;
            Ok(File::open("/proc/thread-self/ns/net")?.into())
        })
        .map_err(HouseError::kernel(format!("make the network namespace of {name}")))?;
        Ok(Self { name: name.to_owned(), descriptor })
    }

    /// The namespace that another process of the house holds: `path` is that of its descriptor, `/proc/PID/fd/N`.
    ///
    /// # Errors
    /// When nothing is there.
    pub fn open(name: &str, path: &Path) -> Result<Self, HouseError> {
        let what = format!("find the network namespace of {name} at {}", path.display());
        let descriptor = File::open(path).map_err(HouseError::kernel(what))?.into();
        Ok(Self { name: name.to_owned(), descriptor })
    }

    /// Its name in the experiment.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs `f` on a thread of its own in this namespace. The sockets that it opens and the processes that it starts
    /// stay there.
    ///
    /// # Errors
    /// When this process may not move into the namespace. A panic of `f` goes on here.
    pub fn run<T: Send>(&self, f: impl FnOnce() -> T + Send) -> Result<T, HouseError> {
        on_own_thread(|| {
            move_into_link_name_space(self.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok(f())
        })
        .map_err(HouseError::kernel(format!("move into the network namespace of {}", self.name)))
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// A thread's namespace is its own, so that the caller's stays what it is.
fn on_own_thread<T: Send>(f: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("namespace".into()).spawn_scoped(scope, f)?;
        thread.join().unwrap_or_else(|panic| panic::resume_unwind(panic))
    })
}
