use std::time::Duration;

/// The Session Expiry Interval (MQTT 5, 3.1.2.11.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SessionExpiry(u32);

impl SessionExpiry {
    /// The session ends with its connection: Clean Session 1 of MQTT 3.
    pub const WITH_CONNECTION: Self = Self(0);
    /// The session never expires: Clean Session 0 of MQTT 3.
    pub const NEVER: Self = Self(u32::MAX);

    /// An interval in seconds; `u32::MAX` is [`SessionExpiry::NEVER`].
    pub const fn from_secs(seconds: u32) -> Self {
        Self(seconds)
    }

    /// The interval in seconds.
    pub const fn as_secs(self) -> u32 {
        self.0
    }

    /// Whether the session outlives its connection.
    pub const fn outlives_connection(self) -> bool {
        self.0 > 0
    }

    /// The time from the end of the connection to the end of the session; `None` when it never ends.
    pub fn interval(self) -> Option<Duration> {
        (self != Self::NEVER).then(|| Duration::from_secs(self.0.into()))
    }
}
