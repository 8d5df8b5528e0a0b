//! msquic itself: its settings, and bytes that it sends.

use std::ffi::c_void;
use std::sync::{Condvar, Mutex, PoisonError};

use msquic::{
    Api, BufferRef, Configuration, CredentialConfig, Registration, RegistrationConfig, SendFlags, Settings,
    Status, Stream, ffi,
};

/// Protocol of MQTT over QUIC.
pub(crate) const ALPN: &str = "mqtt";

/// msquic with the settings of one role.
pub(crate) struct Library {
    pub(crate) registration: Registration,
    pub(crate) configuration: Configuration,
}

impl Library {
    pub(crate) fn open(settings: Settings, credential: &CredentialConfig) -> Result<Self, Status> {
        let registration = Registration::new(&RegistrationConfig::default())?;
        let configuration = Configuration::open(&registration, &[BufferRef::from(ALPN)], Some(&settings))?;
        configuration.load_credential(credential)?;
        Ok(Self { registration, configuration })
    }
}

/// Bytes of all streams.
#[derive(Default)]
pub(crate) struct Bytes {
    /// Sent, and acknowledged.
    counts: Mutex<(u64, u64)>,
    changed: Condvar,
}

impl Bytes {
    pub(crate) fn handle_sent(&self, size: usize) {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).0 += size as u64;
    }

    pub(crate) fn handle_acknowledged(&self, size: usize) {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).1 += size as u64;
        self.changed.notify_all();
    }

    /// Returns once `wanted` have been acknowledged and none is on its way.
    pub(crate) fn wait(&self, wanted: u64) {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let on_the_way =
            |&mut (sent, acknowledged): &mut (u64, u64)| acknowledged < wanted || acknowledged < sent;
        drop(self.changed.wait_while(counts, on_the_way));
    }
}

/// Sets a parameter of a handle.
pub(crate) unsafe fn set<T>(handle: ffi::HQUIC, parameter: u32, value: &T) -> Result<(), Status> {
    let size = u32::try_from(size_of::<T>()).unwrap_or(u32::MAX);
    unsafe { Api::set_param(handle, parameter, size, std::ptr::from_ref(value).cast()) }
}

/// Bytes that msquic reads until it reports them as sent.
struct Sending {
    buffers: [BufferRef; 1],
    bytes: Vec<u8>,
}

/// Gives bytes to msquic. The stream's handler has to call `handle_sent`.
pub(crate) fn send(stream: &Stream, bytes: &[u8], flags: SendFlags) -> Result<(), Status> {
    let bytes = bytes.to_vec();
    let sending = Box::into_raw(Box::new(Sending { buffers: [BufferRef::from(bytes.as_slice())], bytes }));
    unsafe { stream.send(&(*sending).buffers, flags, sending.cast::<c_void>()) }
        .inspect_err(|_| drop(unsafe { Box::from_raw(sending) }))
}

/// Size of the bytes that msquic has done with.
///
/// # Safety
/// `context` is that of a `StreamEvent::SendComplete` after `send`, once.
pub(crate) unsafe fn handle_sent(context: *const c_void) -> usize {
    unsafe { Box::from_raw(context.cast::<Sending>().cast_mut()) }.bytes.len()
}
