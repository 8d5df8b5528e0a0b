//! Network namespaces that live as long as a descriptor, socket or process is in them.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic;
use std::path::Path;
use std::thread;

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use super::error::TestbedError;
use super::sys;

/// Network namespace. A descriptor of this process keeps it alive, as do sockets and processes in it; the kernel
/// removes it with the last of them.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    descriptor: OwnedFd,
}

impl Namespace {
    /// Creates a namespace with a loopback device, which is up. `name` appears in errors.
    ///
    /// # Errors
    /// This process may not create namespaces: it is outside the testbed and not root.
    pub fn create(name: &str) -> Result<Self, TestbedError> {
        let descriptor = on_own_thread(|| {
            sys::unshare(UnshareFlags::NEWNET)?;
            // IPv6 neighbour discovery and listener reports would be packets of no program. Later devices inherit this;
            // where /proc/sys is read-only, as in many containers, it is omitted.
            let _ = fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
            sys::raise("lo")?;
            Ok(File::open("/proc/thread-self/ns/net")?.into())
        })
        .map_err(TestbedError::kernel(format!("create the network namespace of {name}")))?;
        Ok(Self { name: name.to_owned(), descriptor })
    }

    /// Opens a namespace that another process of the testbed holds; `path` is that of its descriptor, `/proc/PID/fd/N`.
    ///
    /// # Errors
    /// The path does not exist.
    pub fn open(name: &str, path: &Path) -> Result<Self, TestbedError> {
        let what = format!("find the network namespace of {name} at {}", path.display());
        let descriptor = File::open(path).map_err(TestbedError::kernel(what))?.into();
        Ok(Self { name: name.to_owned(), descriptor })
    }

    /// Name in the experiment.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs `f` on a new thread in this namespace. Sockets that it opens and processes that it starts stay there.
    ///
    /// # Errors
    /// This process may not enter the namespace. A panic of `f` continues in the caller.
    pub fn run<T: Send>(&self, f: impl FnOnce() -> T + Send) -> Result<T, TestbedError> {
        on_own_thread(|| {
            move_into_link_name_space(self.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok(f())
        })
        .map_err(TestbedError::kernel(format!("move into the network namespace of {}", self.name)))
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Runs `f` on a new thread, so that the caller keeps its namespace.
fn on_own_thread<T: Send>(f: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("namespace".into()).spawn_scoped(scope, f)?;
        thread.join().unwrap_or_else(|panic| panic::resume_unwind(panic))
    })
}
